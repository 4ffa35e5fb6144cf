"""Parquet files of a lake, read and written by Arrow in-process or in Spark tasks.

The output equals files of Spark's own writer. Timestamps are INT64 microseconds here, and INT96 in files that Spark has
compacted; readers accept both. `write_rows` buffers up to `_MAX_BUFFERED` bytes of rows; entries of the key index are
sorted in memory, at some 200 bytes per message.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rucola.message.record import MIN_RECORD_SIZE
from rucola.spark.lake.data_files import PARTITION_COLUMNS, ROW_GROUP_SIZE, open_parquet, topic_and_date
from rucola.spark.lake.key_index import ENTRIES_PER_FILE, HASH_BITS
from rucola.spark.lake.snapshot import KeyFile, RowFile
from rucola.spark.session import SMALL_SIZE
from rucola.spark.source import columns
from rucola.spark.source.array_conversions import arrow, ints, mask, milliseconds, repeated

_MILLISECONDS_PER_DAY: Final = 86_400_000
_MAX_BUFFERED: Final = 64 * 1024 * 1024
_MAX_OPENED_FILES: Final = 1000
"""Files that are opened to measure their contents. More files count as large."""

_ROW_COLUMNS: Final = tuple(name for name in columns.SCHEMA.names if name not in PARTITION_COLUMNS)
_UNIQUE: Final = ("body", "msgId", "offsetMsgId", "queueOffset", "commitLogOffset")
"""Columns without repeated values, for which a dictionary would be useless."""

_ENTRY: Final = pa.schema(
    [
        ("hash", pa.int64()),
        ("topic", pa.string()),
        ("date", pa.date32()),
        ("brokerName", pa.string()),
        ("commitLogOffset", pa.int64()),
    ]
)
_ENTRIES_PER_ROW_GROUP: Final = 128 * 1024
"""About 1 MiB of a key file, as in `key_index.KEY_OPTIONS`."""


def read_rows(root: Path, files: Iterable[RowFile], names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of lake files, file by file, one batch per row group."""
    wanted = tuple(names)
    for file in files:
        yield from read_file(root, file, wanted)


def read_file(root: Path, file: RowFile, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of one lake file, one batch per row group; StoreCorrupt if it is damaged."""
    with open_parquet(root, file) as opened:
        yield from _row_groups(opened, file.topic, names)


def read_staged_rows(path: Path, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of one staged file, with the topic from its path."""
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as opened:
        yield from _row_groups(opened, topic_and_date(path)[0], names)


def _row_groups(opened: pq.ParquetFile, topic: str, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the row groups of a file, with the topic, which the file lacks."""
    schema = columns.schema_of(tuple(names))
    stored = [name for name in schema.names if name != "topic" and name in opened.schema_arrow.names]
    for group in range(opened.num_row_groups):
        table = opened.read_row_group(group, stored or ["queueId"])
        # A file of an earlier version lacks columns that are null for nearly all messages.
        arrays = {field.name: pa.nulls(len(table), field.type) for field in schema if field.name not in stored}
        arrays |= {name: _cast(table[name], schema.field(name).type) for name in stored}
        if "topic" in schema.names:
            arrays["topic"] = repeated(topic, len(table))
        yield pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and column.type.tz is None:  # Spark writes UTC without a time zone
        column = column.cast(pa.int64())
    return column.cast(kind).combine_chunks()


def estimate_size(root: Path, files: Sequence[RowFile]) -> int:
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


def write_rows(batches: Iterable[pa.RecordBatch], directory: Path) -> None:
    """Write messages to `topic=.../date=...` below a directory; the date without storeTimestamp is 1970-01-01."""
    buffered: dict[tuple[str, date], list[pa.RecordBatch]] = {}
    size = number = 0

    def flush() -> None:
        for (topic, day), parts in buffered.items():
            target = directory / f"topic={_escaped(topic)}" / f"date={day.isoformat()}"
            write_row_file(pa.Table.from_batches(parts), target / f"part-{number:05d}.parquet")
        buffered.clear()

    for batch in batches:
        for topic, day, rows in _by_partition(batch):
            buffered.setdefault((topic, day), []).append(rows)
            size += rows.nbytes
        if size >= _MAX_BUFFERED:
            flush()
            size, number = 0, number + 1
    flush()


def write_row_file(rows: pa.Table, path: Path) -> None:
    """Write rows of one topic and date, without these two columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        rows,
        path,
        row_group_size=max(1, len(rows) * ROW_GROUP_SIZE // max(rows.nbytes, 1)),
        compression="snappy",
        use_dictionary=_leaves(name for name in rows.schema.names if name not in _UNIQUE),
        write_statistics=_leaves(name for name in rows.schema.names if name != "body"),
        write_page_index=True,
    )


def _leaves(names: Iterable[str]) -> list[str]:
    nested = {
        "properties": ["properties.key_value.key", "properties.key_value.value"],
        "keys": ["keys.list.element"],
    }
    return [leaf for name in names for leaf in nested.get(name, [name])]


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, date, pa.RecordBatch]]:
    topics = batch["topic"].dictionary_encode()
    names = topics.dictionary.to_pylist()
    days = milliseconds(batch["storeTimestamp"]) // _MILLISECONDS_PER_DAY
    # The partition of a row as one integer: day * number of topics + topic code.
    partitions = days * len(names) + ints(topics.indices)
    rows = batch.select(list(_ROW_COLUMNS))
    for partition in np.unique(partitions).tolist():
        day = date.fromordinal(_EPOCH + partition // len(names))
        yield names[partition % len(names)], day, rows.filter(mask(partitions == partition))


_EPOCH: Final = date(1970, 1, 1).toordinal()
_ESCAPED: Final = {
    ord(character): f"%{ord(character):02X}" for character in [*map(chr, range(1, 0x20)), "\x7f", *"\"#%'*/:=?\\{[]^"]
}
"""Characters that Hive and Spark escape in names of partition directories."""


def _escaped(topic: str) -> str:
    return topic.translate(_ESCAPED)


def merge_rows(root: Path, files: Iterable[RowFile], directory: Path) -> None:
    """Merge row files into one file per topic and date below `directory`, ordered by broker and physical offset."""
    partitions: dict[Path, list[RowFile]] = {}
    for file in files:
        partitions.setdefault(Path(file.path).parent, []).append(file)
    for partition, group in partitions.items():
        rows = pa.Table.from_batches(list(read_rows(root, group, _ROW_COLUMNS)))
        order = pc.sort_indices(rows, [("brokerName", "ascending"), ("commitLogOffset", "ascending")])
        write_row_file(rows.take(order), directory / partition / "part-00000.parquet")


def staged_key_entries(paths: Iterable[Path]) -> pa.Table:
    """Return key index entries for the rows in staged files, unsorted."""
    names = ("brokerName", "commitLogOffset", "msgId", "keys")
    found = [_entries_of(batch, *topic_and_date(path)) for path in paths for batch in read_staged_rows(path, names)]
    return pa.concat_tables([pa.Table.from_batches([], _ENTRY), *found])


def _entries_of(batch: pa.RecordBatch, topic: str, day: str) -> pa.Table:
    # 1. Number the distinct words, and hash only these.
    keys = batch["keys"]
    words = pa.concat_arrays([batch["msgId"], keys.flatten()]).dictionary_encode()
    hashes = np.array([zlib.crc32(word.encode()) for word in words.dictionary.to_pylist()], np.int64)
    # 2. Pair each row with its msgId and its keys. A pair is one integer, so that `unique` removes repeated keys.
    row = np.concatenate([np.arange(len(batch)), ints(pc.list_parent_indices(keys))])
    row, word = np.divmod(np.unique(row * len(hashes) + ints(words.indices)), max(len(hashes), 1))
    # 3. Make the entries.
    count, taken = len(row), arrow(row)
    arrays = [
        arrow(hashes[word]),
        repeated(topic, count),
        arrow(np.full(count, date.fromisoformat(day).toordinal() - _EPOCH, np.int32)).view(pa.date32()),
        batch["brokerName"].take(taken),
        batch["commitLogOffset"].take(taken),
    ]
    return pa.Table.from_arrays(arrays, schema=_ENTRY)


def read_key_entries(root: Path, files: Iterable[KeyFile]) -> pa.Table:
    """Return the entries of key files. Raises StoreCorrupt if one is damaged."""
    found = [pa.Table.from_batches([], _ENTRY)]
    for file in files:
        with open_parquet(root, file) as opened:
            found.append(opened.read().select(_ENTRY.names).cast(_ENTRY))
    return pa.concat_tables(found)


def write_key_entries(found: pa.Table, directory: Path) -> None:
    """Write entries as one sorted run, cut by hash into files of about `ENTRIES_PER_FILE`."""
    if not len(found):
        return
    directory.mkdir(parents=True)
    order = pc.sort_indices(found, [(name, "ascending") for name in ("hash", "date", "commitLogOffset")])
    found = found.take(order)
    hashes = ints(found["hash"])
    # File k gets the hashes whose product with the number of files has k in its upper bits: equal ranges of hashes.
    files = -(-len(found) // ENTRIES_PER_FILE)
    edges = np.searchsorted((hashes * files) >> HASH_BITS, np.arange(files + 1)).tolist()
    for number, (begin, end) in enumerate(pairwise(edges)):
        if begin < end:
            pq.write_table(
                found.slice(begin, end - begin),
                directory / f"part-{number:05d}.parquet",
                row_group_size=_ENTRIES_PER_ROW_GROUP,
                compression="snappy",
                data_page_version="2.0",
                use_dictionary=["topic", "date", "brokerName"],
                column_encoding={"hash": "DELTA_BINARY_PACKED", "commitLogOffset": "DELTA_BINARY_PACKED"},
                write_page_index=True,
            )
