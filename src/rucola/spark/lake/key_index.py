"""Key index of a lake: from message key to the location of the message, the counterpart of IndexFiles.

    <lake>/_rucola/keys/data/<run>-<number>.parquet
        hash             bigint    CRC-32 of the key's UTF-8
        topic            string    the partition of the message,
        date             date
        brokerName       string    and its address
        commitLogOffset  bigint

A message has one entry for each key, and one for its msgId, which is the unique key if it has one. Only the hash of a
key, without its topic, is stored, so a search must compare the keys of the messages it finds.

A commit adds its entries as one run: sorted by hash and cut into files with disjoint ranges of hashes, of which a
search opens one. It adds them before its messages, since an entry without a message does no harm. Compaction merges
eight runs of a size tier into one of the next.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import date
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rucola.spark.lake.data_files import row_group_bounds, with_field_ids
from rucola.spark.lake.snapshot import KEYS_DIRECTORY, KeyFile
from rucola.spark.lake.storage import Storage, Stream
from rucola.spark.source.array_conversions import arrow, ints, mask, repeated

ENTRIES_PER_FILE: Final = 4_000_000

ENTRY: Final = with_field_ids(
    pa.schema(
        [
            ("hash", pa.int64()),
            ("topic", pa.string()),
            ("date", pa.date32()),
            ("brokerName", pa.string()),
            ("commitLogOffset", pa.int64()),
        ]
    )
)
ENTRY_COLUMNS: Final = ("brokerName", "commitLogOffset", "msgId", "keys")
"""The columns of rows that `entries_of` needs."""

_ENTRIES_PER_ROW_GROUP: Final = 128 * 1024
"""About 1 MiB of a file. Row groups are small, because a search reads one of each run."""
_HASHES: Final = 1 << 32
_EPOCH: Final = date(1970, 1, 1).toordinal()
_LEAST_TIER: Final = 100_000
"""Maximum entries of a run in the first tier."""
TIER: Final = 8
"""The growth factor between tiers, and the number of runs of a tier that are merged."""

OpenFile = Callable[[], AbstractContextManager[pq.ParquetFile]]


def key_hash(key: str) -> int:
    """Return the hash of a key in the index."""
    return zlib.crc32(key.encode())


def entries_of(rows: pa.RecordBatch, topic: str, day: str) -> pa.Table:
    """Return the entries of messages of one topic and date, unsorted; `rows` have the columns `ENTRY_COLUMNS`."""
    # 1. Number the distinct words, and hash only these.
    keys = rows["keys"]
    words = pa.concat_arrays([rows["msgId"], keys.flatten()]).dictionary_encode()
    hashes = np.array([key_hash(word) for word in words.dictionary.to_pylist()], np.int64)
    # 2. Pair each row with its msgId and its keys. A pair is one integer, so that `unique` removes repeated keys.
    row = np.concatenate([np.arange(len(rows)), ints(pc.list_parent_indices(keys))])
    row, word = np.divmod(np.unique(row * len(hashes) + ints(words.indices)), max(len(hashes), 1))
    # 3. Make the entries.
    count, taken = len(row), arrow(row)
    arrays = [
        arrow(hashes[word]),
        repeated(topic, count),
        arrow(np.full(count, date.fromisoformat(day).toordinal() - _EPOCH, np.int32)).view(pa.date32()),
        rows["brokerName"].take(taken),
        rows["commitLogOffset"].take(taken),
    ]
    return pa.Table.from_arrays(arrays, schema=ENTRY)


def write_entries(entries: pa.Table, stream: Stream) -> None:
    """Write entries as one file, sorted by hash."""
    order = pc.sort_indices(entries, [(name, "ascending") for name in ("hash", "date", "commitLogOffset")])
    pq.write_table(
        entries.take(order),
        stream,
        row_group_size=_ENTRIES_PER_ROW_GROUP,
        compression="zstd",
        data_page_version="2.0",
        use_dictionary=["topic", "date", "brokerName"],
        column_encoding={"hash": "DELTA_BINARY_PACKED", "commitLogOffset": "DELTA_BINARY_PACKED"},
        write_page_index=True,
    )


def merge(files: Sequence[OpenFile], storage: Storage, run: str) -> tuple[list[str], int]:
    """Merge files of sorted entries into one run, and return its files and the number of entries.

    Reads one range of hashes after the other, so that some `ENTRIES_PER_FILE` entries are in memory.
    """
    paths = []
    count, bounds = 0, []
    for open_file in files:
        with open_file() as opened:
            count += opened.metadata.num_rows
            bounds.append(row_group_bounds(opened.metadata, "hash"))
    parts = -(-count // ENTRIES_PER_FILE)
    for number in range(parts):
        begin, end = _HASHES * number // parts, _HASHES * (number + 1) // parts
        found = [pa.Table.from_batches([], ENTRY)]
        for open_file, of_file in zip(files, bounds, strict=True):
            groups = [group for group, (least, most) in enumerate(of_file) if least < end and begin <= most]
            if groups:
                with open_file() as opened:
                    entries = opened.read_row_groups(groups).select(ENTRY.names).cast(ENTRY)
                hashes = ints(entries["hash"])
                found.append(entries.filter(mask((begin <= hashes) & (hashes < end))))
        entries = pa.concat_tables(found)
        if len(entries):
            paths.append(f"{KEYS_DIRECTORY}/data/{run}-{number:05d}.parquet")
            with storage.writing(paths[-1]) as stream:
                write_entries(entries, stream)
    return paths, count


def runs_to_merge(files: Iterable[KeyFile], least_runs: int = TIER) -> frozenset[str]:
    """Return the runs that compaction merges into one; none if no tier has `least_runs`.

    If the merged run completes the next tier, the runs of that tier are merged as well.
    """
    entries: dict[str, int] = {}
    for file in files:
        entries[file.run] = entries.get(file.run, 0) + file.entries
    # Tiers ascend. `total` is the size of the merged run so far, which counts as a member of its own tier.
    merged: set[str] = set()
    total = 0
    for tier in sorted({_tier(count) for count in entries.values()}):
        members = {run for run, count in entries.items() if _tier(count) == tier}
        grown = bool(merged) and _tier(total) >= tier  # the run merged so far belongs to this tier or a higher one
        if len(members) + grown >= least_runs or (grown and _tier(total) > tier):
            merged |= members
            total += sum(entries[run] for run in members)
    return frozenset(merged)


def _tier(entries: int) -> int:
    """Return the rounded-up logarithm of a run's size."""
    return 0 if entries <= _LEAST_TIER else math.ceil(math.log(entries / _LEAST_TIER, TIER))
