"""Parquet files of a lake, read and written by Arrow, in this process or in Spark's tasks.

Timestamps are INT64 microseconds, and INT96 in files that Spark has written for earlier versions. `write_rows` buffers
up to `_MAX_BUFFERED` bytes of rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rucola.message.record import MIN_RECORD_SIZE
from rucola.spark.lake.data_files import (
    MAX_LONG,
    MESSAGES,
    ROW_GROUP_SIZE,
    open_parquet,
    partition_directory,
    row_group_bounds,
)
from rucola.spark.lake.key_index import entries_of, write_entries
from rucola.spark.lake.snapshot import NO_DAY, RowFile
from rucola.spark.lake.storage import Storage, Stream
from rucola.spark.session import SMALL_SIZE
from rucola.spark.source import columns
from rucola.spark.source.array_conversions import bools, combined, ints, mask, milliseconds, repeated

_MILLISECONDS_PER_DAY: Final = 86_400_000
_MAX_BUFFERED: Final = 64 * 1024 * 1024
_MERGED_SIZE: Final = 256 * 1024 * 1024
"""Maximum bytes of a merged file before compression, which are in memory."""
_PART_SIZE: Final = 32 * 1024 * 1024
_SMALL_PART_SIZE: Final = _PART_SIZE // 4
_FEW: Final = 4
"""Compressed bytes that one task of Spark reads, and those of a part if `_FEW` of this size suffice."""
_OPENING: Final = 256 * 1024
"""Bytes that are read in the time that opening a file takes."""
_MAX_OPENED_FILES: Final = 1000
"""Files that are opened to measure their contents. More files count as large."""

_UNIQUE: Final = ("body", "msgId", "offsetMsgId", "queueOffset", "commitLogOffset")
"""Columns without repeated values, for which a dictionary would be useless."""


class FilePiece(NamedTuple):
    """The row groups of a file that begin between two positions, half-open."""

    file: RowFile
    begin: int = 0
    end: int = MAX_LONG


def parts(files: Sequence[RowFile], least: int) -> list[tuple[FilePiece, ...]]:
    """Divide files into parts of nearly equal size; at least `least` if they have that many bytes.

    Files are cut where a part ends, so a piece may be without a row group.
    """
    total = sum(file.size + _OPENING for file in files)
    count = max(-(-total // _PART_SIZE), min(-(-total // _SMALL_PART_SIZE), _FEW), least)
    found: list[list[FilePiece]] = [[]]
    passed = 0
    for file in files:
        begin, upto = 0, passed + _OPENING + file.size
        # `edge` is the size at which the current part ends; it may be inside this file several times.
        while len(found) < count and (edge := total * len(found) // count) < upto:
            if begin < (cut := edge - passed - _OPENING):
                found[-1].append(FilePiece(file, begin, cut))
                begin = cut
            found.append([])
        found[-1].append(FilePiece(file, begin))
        passed = upto
    return [tuple(part) for part in found if part]


def read_rows(root: Path | Storage, files: Iterable[RowFile], names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of lake files, file by file, one batch per row group."""
    wanted = tuple(names)
    for file in files:
        yield from read_file(root, file, wanted)


def read_file(root: Path | Storage, file: RowFile, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of one lake file, one batch per row group; StoreCorrupt if it is damaged."""
    return read_piece(root, FilePiece(file), tuple(names))


def read_piece(
    root: Path | Storage, piece: FilePiece, names: Sequence[str], offsets: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read as `read_file` does; with ascending physical offsets only row groups that may have one of them."""
    with open_parquet(root, piece.file) as opened:
        groups = [n for n in range(opened.num_row_groups) if piece.begin <= _position(opened, n) < piece.end]
        if offsets is not None:
            bounds = row_group_bounds(opened.metadata, "commitLogOffset")
            groups = [n for n in groups if bisect_left(offsets, bounds[n][0]) < bisect_left(offsets, bounds[n][1] + 1)]
        for group in groups:
            yield read_group(opened, group, piece.file.topic, names)


def _position(opened: pq.ParquetFile, group: int) -> int:
    """Return where a row group begins."""
    first = opened.metadata.row_group(group).column(0)
    found: int = first.data_page_offset if first.dictionary_page_offset is None else first.dictionary_page_offset
    return found


def read_group(opened: pq.ParquetFile, group: int, topic: str, names: Sequence[str]) -> pa.RecordBatch:
    """Return one row group of a file, with the topic, which a file of an earlier version lacks."""
    schema = columns.schema_of(names)
    known = opened.schema_arrow.names
    stored = [name for name in schema.names if name != "topic" and name in known]
    # With threads, a group of 4 MiB takes a tenth more CPU, of cores that have tasks of their own.
    table = opened.read_row_group(group, stored or ["queueId"], use_threads=False)
    # A file of an earlier version lacks columns that are null for nearly all messages.
    arrays = {field.name: pa.nulls(len(table), field.type) for field in schema if field.name not in stored}
    arrays |= {name: _cast(table[name], schema.field(name).type) for name in stored}
    if "topic" in schema.names:
        arrays["topic"] = repeated(topic, len(table))
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and column.type.tz is None:  # Spark writes UTC without a time zone
        column = column.cast(pa.int64())
    return combined(column if column.type == kind else column.cast(kind))


def estimate_size(root: Path | Storage, files: Sequence[RowFile]) -> int:
    """Estimate the bytes of lake files; at least `SMALL_SIZE` for many or large ones, which are not opened."""
    least = max(sum(file.size for file in files), sum(file.rows for file in files) * MIN_RECORD_SIZE)
    if least >= SMALL_SIZE or len(files) > _MAX_OPENED_FILES:
        return max(least, SMALL_SIZE)
    stored = plain = 0
    for file in files:
        with open_parquet(root, file) as opened:
            stored += pc.sum(opened.read(["storeSize"])["storeSize"]).as_py() or 0
            groups = range(opened.num_row_groups)
            plain += sum(opened.metadata.row_group(group).total_byte_size for group in groups)
    return max(stored, plain)


class WrittenFiles(NamedTuple):
    """Paths of row files and of files with entries of the key index, and the number of entries."""

    rows: list[str]
    entries: list[str]
    entry_count: int


def write_rows(batches: Iterable[pa.RecordBatch], storage: Storage, name: str, entries_directory: str) -> WrittenFiles:
    """Write messages by topic and day, and their entries of the key index, to files `<name>-<number>.parquet`.

    Each file of entries is sorted by hash, and written before the messages.
    """
    buffered: dict[tuple[str, str | None], list[pa.RecordBatch]] = {}
    written = WrittenFiles([], [], 0)
    size = number = count = 0

    def flush() -> int:
        entries = [entries_of(part, topic, day or NO_DAY) for (topic, day), parts in buffered.items() for part in parts]
        if entries:
            written.entries.append(f"{entries_directory}/{name}-{number:05d}.parquet")
            with storage.writing(written.entries[-1]) as stream:
                write_entries(pa.concat_tables(entries), stream)
        for (topic, day), parts in buffered.items():
            written.rows.append(row_path(topic, day, f"{name}-{number:05d}.parquet"))
            with storage.writing(written.rows[-1]) as stream:
                write_row_file(pa.Table.from_batches(parts), stream)
        buffered.clear()
        return sum(map(len, entries))

    for batch in batches:
        for topic, day, rows in by_partition(batch):
            buffered.setdefault((topic, day), []).append(rows)
            size += rows.nbytes
        if size >= _MAX_BUFFERED:
            count += flush()
            size, number = 0, number + 1
    return written._replace(entry_count=count + flush())


def row_path(topic: str, day: str | None, name: str) -> str:
    """Return the path of a row file."""
    return f"data/{partition_directory(topic, day)}/{name}"


def write_row_file(rows: pa.Table, stream: Stream) -> None:
    """Write rows of one topic and day, with bloom filters for engines that do not read the key index."""
    size = max(1, len(rows) * ROW_GROUP_SIZE // max(rows.nbytes, 1))
    pq.write_table(
        rows.cast(MESSAGES),
        stream,
        row_group_size=size,
        bloom_filter_options={leaf: {"ndv": min(size, len(rows)), "fpp": 0.01} for leaf in _leaves(("msgId", "keys"))},
        compression="zstd",
        use_dictionary=_leaves(name for name in rows.schema.names if name not in _UNIQUE),
        write_page_index=True,
    )


def _leaves(names: Iterable[str]) -> list[str]:
    nested = {
        "properties": ["properties.key_value.key", "properties.key_value.value"],
        "keys": ["keys.list.element"],
    }
    return [leaf for name in names for leaf in nested.get(name, [name])]


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, str | None, pa.RecordBatch]]:
    """Yield the rows of a batch by topic and UTC day, None for those without storeTimestamp."""
    topics = batch["topic"].dictionary_encode()
    names = topics.dictionary.to_pylist()
    times = batch["storeTimestamp"]
    days = np.where(bools(times.is_valid()), milliseconds(times) // _MILLISECONDS_PER_DAY, -1)
    # The partition of a row as one integer: day * number of topics + topic code.
    partitions = days * len(names) + ints(topics.indices)
    for partition in np.unique(partitions).tolist():
        day, topic = divmod(partition, len(names))
        iso = None if day < 0 else date.fromordinal(_EPOCH + day).isoformat()
        yield names[topic], iso, batch.filter(mask(partitions == partition))


_EPOCH: Final = date(1970, 1, 1).toordinal()


def merged_files(root: Path | Storage, files: Iterable[RowFile]) -> Iterator[list[RowFile]]:
    """Yield the groups of files, of one topic and day each, that are merged into one file of limited size."""
    group: list[RowFile] = []
    size = 0
    for file in sorted(files, key=lambda file: (file.topic, file.day or "", file.least)):
        with open_parquet(root, file) as opened:
            own = _plain_size(opened.metadata)
        if group and ((file.topic, file.day) != (group[0].topic, group[0].day) or size + own > _MERGED_SIZE):
            yield group
            group, size = [], 0
        group.append(file)
        size += own
    if group:
        yield group


def merge_rows(storage: Storage, files: Sequence[RowFile], name: str) -> str:
    """Merge row files of one topic and day into one, ordered by broker and physical offset, and return its path."""
    rows = pa.Table.from_batches(list(read_rows(storage, files, columns.SCHEMA.names)))
    order = pc.sort_indices(rows, [("brokerName", "ascending"), ("commitLogOffset", "ascending")])
    path = row_path(files[0].topic, files[0].day, name)
    with storage.writing(path) as stream:
        write_row_file(rows.take(order), stream)
    return path


def _plain_size(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
