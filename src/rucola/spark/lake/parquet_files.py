"""Rows of a lake as Arrow: read from its files, and written to staging, in this process.

What is written is what the archive job has Spark write (see `lake` and `key_index`): the same columns, partitions and
order of entries. Files differ in what readers do not notice: timestamps are INT64 microseconds, where Spark writes
INT96.

Memory: writing keeps up to `_MOST_BUFFERED` bytes of rows, which then become one file for each topic and day. Entries
of the key index are sorted in memory; a message takes some 200 bytes there.
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
from rucola.spark.source.arrays import arrow, ints, mask, repeated

_MICROSECONDS_A_DAY: Final = 86_400_000_000
_MOST_BUFFERED: Final = 64 * 1024 * 1024
_MOST_FILES: Final = 1000
"""So many files are opened to find out how much is in them; more of them are taken for much."""

_ROW_COLUMNS: Final = tuple(name for name in columns.SCHEMA.names if name not in PARTITION_COLUMNS)
_UNIQUE: Final = ("body", "msgId", "offsetMsgId", "queueOffset", "commitLogOffset")
"""Columns without repeated values, for which a dictionary is in vain."""

_ENTRY: Final = pa.schema(
    [
        ("hash", pa.int64()),
        ("topic", pa.string()),
        ("date", pa.date32()),
        ("brokerName", pa.string()),
        ("commitLogOffset", pa.int64()),
    ]
)
_ENTRIES_A_ROW_GROUP: Final = 128 * 1024
"""Entries in about 1 MiB of a key file (`key_index.KEY_OPTIONS`)."""


def read_rows(root: Path, files: Iterable[RowFile], names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the rows in some files of a lake, file by file, a batch for each row group."""
    wanted = tuple(names)
    for file in files:
        yield from read_file(root, file, wanted)


def read_file(root: Path, file: RowFile, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the rows in one file of a lake. Raises StoreCorrupt if it is damaged."""
    with open_parquet(root, file) as opened:
        yield from _row_groups(opened, file.topic, names)


def read_staged_rows(path: Path, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the rows in one staged file; its path says the topic."""
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as opened:
        yield from _row_groups(opened, topic_and_date(path)[0], names)


def _row_groups(opened: pq.ParquetFile, topic: str, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    schema = columns.schema_of(tuple(names))
    stored = [name for name in schema.names if name != "topic"]
    for group in range(opened.num_row_groups):
        table = opened.read_row_group(group, stored or ["queueId"])
        arrays = {name: _as(table[name], schema.field(name).type) for name in stored}
        if "topic" in schema.names:
            arrays["topic"] = repeated(topic, len(table))
        yield pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and column.type.tz is None:  # as Spark writes them; they are UTC
        column = column.cast(pa.int64())
    return column.cast(kind).combine_chunks()


def estimate_size(root: Path, files: Sequence[RowFile]) -> int:
    """Return about how many bytes of records, or of columns if these are more, are in some files of a lake.

    Of many or large files it is at least `SMALL_SIZE`; they are not opened.
    """
    least = max(sum(file.size for file in files), sum(file.rows for file in files) * MIN_RECORD_SIZE)
    if least >= SMALL_SIZE or len(files) > _MOST_FILES:
        return max(least, SMALL_SIZE)
    stored = plain = 0
    for file in files:
        with open_parquet(root, file) as opened:
            stored += pc.sum(opened.read(["storeSize"])["storeSize"]).as_py() or 0
            groups = range(opened.num_row_groups)
            plain += sum(opened.metadata.row_group(group).total_byte_size for group in groups)
    return max(stored, plain)


def write_rows(batches: Iterable[pa.RecordBatch], directory: Path) -> None:
    """Write messages, of all columns, below a directory by topic and day, as Spark does."""
    buffered: dict[tuple[str, date], list[pa.RecordBatch]] = {}
    size = number = 0

    def flush() -> None:
        for (topic, day), parts in buffered.items():
            place = directory / f"topic={_escaped(topic)}" / f"date={day.isoformat()}"
            write_row_file(pa.Table.from_batches(parts), place / f"part-{number:05d}.parquet")
        buffered.clear()

    for batch in batches:
        for topic, day, rows in _by_place(batch):
            buffered.setdefault((topic, day), []).append(rows)
            size += rows.nbytes
        if size >= _MOST_BUFFERED:
            flush()
            size, number = 0, number + 1
    flush()


def write_row_file(rows: pa.Table, path: Path) -> None:
    """Write rows of one topic and day, without these two columns."""
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
    """Return the columns of a Parquet file that these columns become."""
    nested = {
        "properties": ["properties.key_value.key", "properties.key_value.value"],
        "keys": ["keys.list.element"],
    }
    return [leaf for name in names for leaf in nested.get(name, [name])]


def _by_place(batch: pa.RecordBatch) -> Iterator[tuple[str, date, pa.RecordBatch]]:
    """Yield the rows of each topic and day, in their order, as files hold them."""
    topics = batch["topic"].dictionary_encode()
    names = topics.dictionary.to_pylist()
    days = ints(batch["storeTimestamp"].view(pa.int64())) // _MICROSECONDS_A_DAY
    places = days * len(names) + ints(topics.indices)
    rows = batch.select(list(_ROW_COLUMNS))
    for place in np.unique(places).tolist():
        day = date.fromordinal(_EPOCH + place // len(names))
        yield names[place % len(names)], day, rows.filter(mask(places == place))


_EPOCH: Final = date(1970, 1, 1).toordinal()
_ESCAPED: Final = {
    ord(character): f"%{ord(character):02X}" for character in [*map(chr, range(1, 0x20)), "\x7f", *"\"#%'*/:=?\\{[]^"]
}
"""The characters that Hive, and so Spark, escapes in the name of a partition's directory."""


def _escaped(topic: str) -> str:
    return topic.translate(_ESCAPED)


def merge_rows(root: Path, files: Iterable[RowFile], directory: Path) -> None:
    """Write the rows of each topic and day as one file below a directory, in the order of brokers and logs."""
    places: dict[Path, list[RowFile]] = {}
    for file in files:
        places.setdefault(Path(file.path).parent, []).append(file)
    for place, group in places.items():
        rows = pa.Table.from_batches(list(read_rows(root, group, _ROW_COLUMNS)))
        order = pc.sort_indices(rows, [("brokerName", "ascending"), ("commitLogOffset", "ascending")])
        write_row_file(rows.take(order), directory / place / "part-00000.parquet")


def staged_key_entries(paths: Iterable[Path]) -> pa.Table:
    """Return the entries of the key index for the rows in staged files, in any order."""
    names = ("brokerName", "commitLogOffset", "msgId", "keys")
    found = [_entries_of(batch, *topic_and_date(path)) for path in paths for batch in read_staged_rows(path, names)]
    return pa.concat_tables([pa.Table.from_batches([], _ENTRY), *found])


def _entries_of(batch: pa.RecordBatch, topic: str, day: str) -> pa.Table:
    """Return an entry for each of a message's keys and for its msgId, one for keys that it has twice."""
    keys = batch["keys"]
    words = pa.concat_arrays([batch["msgId"], keys.flatten()]).dictionary_encode()
    hashes = np.array([zlib.crc32(word.encode()) for word in words.dictionary.to_pylist()], np.int64)
    row = np.concatenate([np.arange(len(batch)), ints(pc.list_parent_indices(keys))])
    row, word = np.divmod(np.unique(row * len(hashes) + ints(words.indices)), max(len(hashes), 1))
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
    """Return the entries in some files of the key index. Raises StoreCorrupt if one is damaged."""
    found = [pa.Table.from_batches([], _ENTRY)]
    for file in files:
        with open_parquet(root, file) as opened:
            found.append(opened.read().select(_ENTRY.names).cast(_ENTRY))
    return pa.concat_tables(found)


def write_key_entries(found: pa.Table, directory: Path) -> None:
    """Write entries as one run: sorted, and cut by hash into files of about `ENTRIES_PER_FILE`."""
    if not len(found):
        return
    directory.mkdir(parents=True)
    order = pc.sort_indices(found, [(name, "ascending") for name in ("hash", "date", "commitLogOffset")])
    found = found.take(order)
    hashes = ints(found["hash"])
    files = -(-len(found) // ENTRIES_PER_FILE)
    edges = np.searchsorted((hashes * files) >> HASH_BITS, np.arange(files + 1)).tolist()
    for number, (begin, end) in enumerate(pairwise(edges)):
        if begin < end:
            pq.write_table(
                found.slice(begin, end - begin),
                directory / f"part-{number:05d}.parquet",
                row_group_size=_ENTRIES_A_ROW_GROUP,
                compression="snappy",
                data_page_version="2.0",
                use_dictionary=["topic", "date", "brokerName"],
                column_encoding={"hash": "DELTA_BINARY_PACKED", "commitLogOffset": "DELTA_BINARY_PACKED"},
                write_page_index=True,
            )
