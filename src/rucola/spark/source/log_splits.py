"""Splits of a CommitLog: the Spark partitions of a read from store directories.

A split is a range of one log, read in physical order. There are two ways to plan splits:

    whole log   follows records by their sizes, so cuts are made at the first record of a file and at addresses that
                ConsumeQueue units point at.
    by queue    reads the records that the units of the chosen queues point at. The log is divided into `_SLICES` equal
                slices, and consecutive slices are joined into splits of nearly equal chosen bytes. A split carries the
                queue offsets between which its records are.

`restrict_to_keys` and `drop_other_times` only save reading: each row is compared again when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2
from typing import Final, NamedTuple

import numpy as np
from pyspark.sql.datasource import InputPartition

from rucola.errors import InvalidMessage, StoreError
from rucola.message.record import peek
from rucola.spark.shared_files import PIECE_SIZE, SharedPiece
from rucola.spark.source.log_boundaries import next_record, queue_log_end, search_queue
from rucola.spark.source.options import ReadOptions
from rucola.spark.source.schema import LAST_TIME_MS
from rucola.store.directory_reader import StoreReader

TARGET_SIZE: Final = 128 * 1024 * 1024
"""Approximate bytes of a split. A task costs Spark some 30 ms to start, little compared to reading 128 MiB."""

SMALL_SIZE: Final = TARGET_SIZE // 4
"""Bytes of a split if `FEW` of this size suffice, so that a small log keeps more than one core busy."""
FEW: Final = 4

CLOCK_SLACK_MS: Final = 10 * 60 * 1000
"""How far a broker's clock may have been set back before a read by time misses messages."""

_SLICES: Final = 4096
"""Resolution of cuts by queue, and the maximum number of splits of one store."""
_UNITS_AT_ONCE: Final = 300_000
"""6 MB of a file, which bounds memory for large queues."""
_QUEUES_TO_SEARCH: Final = 16
_MAX_HITS: Final = 10_000
"""Index hits above which looking at each message costs more than reading the queues."""


class QueueRange(NamedTuple):
    """Messages of one queue by queue offset, half-open."""

    topic: str
    queue_id: int
    begin: int
    end: int


@dataclass
class LogSplit(InputPartition):
    """One partition: a store's log from physical offset `begin` to `end`, half-open. Pickled to a worker.

    With `queues`, only the records of these ranges are read; otherwise every record, and one starts exactly at `begin`.
    By `last_piece`, of the split's end, a worker recognises the driver's log.
    """

    broker_name: str
    store: str
    begin: int
    end: int
    queues: tuple[QueueRange, ...] | None = None
    last_piece: SharedPiece | None = None


def with_last_piece(reader: StoreReader, split: LogSplit) -> LogSplit:
    """Return a split with its `last_piece`: its end is removed last by retention, and no longer written to."""
    file = next((file for file in reader.commit_log_files if file.begin < split.end <= file.begin + file.size), None)
    if file is None:
        return split
    begin = max(file.begin, split.begin, split.end - PIECE_SIZE)
    return replace(split, last_piece=SharedPiece.of(file.path, begin - file.begin, split.end - begin))


def partition_count(size: int) -> int:
    """Return the number of partitions for `size` bytes of records."""
    fitting = max(size / TARGET_SIZE, min(size / SMALL_SIZE, FEW), 1)
    # 1 GiB gives 8 partitions of 128 MiB, 700 MiB give 4 of 175, and 64 MiB give 2 of 32.
    # Core counts mostly are powers of two; as many partitions of one size keep all cores busy to the end.
    return 1 << round(log2(fitting))


def _split_count(size: int, options: ReadOptions) -> int:
    return max(-(-options.min_partitions // len(options.stores)), min(partition_count(size), _SLICES))


def split_whole_log(
    reader: StoreReader, broker_name: str, begin: int, end: int, options: ReadOptions
) -> Iterator[LogSplit]:
    """Yield splits of the log from `begin` to `end`, cut at records near equal distances."""
    count = _split_count(end - begin, options)
    near = [begin + (end - begin) * k // count for k in range(1, count)]
    cuts = {next_record(reader, offset, _QUEUES_TO_SEARCH) for offset in near}
    inside = [cut for cut in cuts if cut is not None and begin < cut < end]
    for first, last in pairwise(sorted({begin, *inside, end})):
        yield LogSplit(broker_name, str(reader.path), first, last)


def split_queues(
    reader: StoreReader, broker_name: str, ranges: list[QueueRange], options: ReadOptions
) -> Iterator[LogSplit]:
    """Yield splits with nearly equal bytes of chosen records that hold the records of these queue ranges."""
    log_begin = reader.min_physical_offset
    log_size = max([queue_log_end(reader, *queue) for queue in reader.queues()], default=log_begin) - log_begin
    slice_size = max(1, -(-log_size // _SLICES))
    # 1. Count the chosen bytes of each slice, and the messages of each range in it.
    sizes, counts = _count_slices(reader, ranges, log_begin, slice_size)

    # 2. Number the slices by splits: a slice belongs to the split in which its first byte falls.
    #    Four slices of 4 bytes and two splits: `before` is 0 4 8 12, so the slices are of splits 0 0 1 1.
    before = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    split_of_slice = before * _split_count(total, options) // max(total, 1)

    # 3. Join the slices of each split. A queue's messages ascend in the log, so those in a split follow those before
    # it.
    passed = np.array([each.begin for each in ranges], np.int64)
    for group in np.split(np.arange(_SLICES), np.flatnonzero(np.diff(split_of_slice)) + 1):
        upto = passed + counts[:, group].sum(axis=1)
        inside = tuple(
            QueueRange(each.topic, each.queue_id, int(begin), int(end))
            for each, begin, end in zip(ranges, passed, upto, strict=True)
            if begin < end
        )
        if inside:
            edges = int(group[0]) * slice_size, min((int(group[-1]) + 1) * slice_size, log_size)
            yield LogSplit(broker_name, str(reader.path), log_begin + edges[0], log_begin + edges[1], inside)
        passed = upto


def _count_slices(
    reader: StoreReader, ranges: list[QueueRange], log_begin: int, slice_size: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    sizes = np.zeros(_SLICES, np.int64)
    counts = np.zeros((len(ranges), _SLICES), np.int64)
    for number, (topic, queue_id, begin, end) in enumerate(ranges):
        for first in range(begin, end, _UNITS_AT_ONCE):
            units = reader.units(topic, queue_id, first, min(first + _UNITS_AT_ONCE, end))
            slices = (units["physical_offset"].astype(np.int64) - log_begin) // slice_size
            slices = np.clip(slices, 0, _SLICES - 1)  # a damaged unit may point anywhere; the reader reports it
            sizes += np.bincount(slices, weights=np.maximum(units["size"], 0), minlength=_SLICES).astype(np.int64)
            counts[number] += np.bincount(slices, minlength=_SLICES)
    return sizes, counts


def restrict_to_keys(reader: StoreReader, ranges: list[QueueRange], keys: frozenset[str]) -> list[QueueRange]:
    """Return the parts of these ranges that can hold messages with one of the keys.

    Messages outside the index are kept, and all if there is no index, if it is damaged, or if it has too many hits.
    """
    indexed = _index_hits(reader, {each.topic for each in ranges}, keys)
    if indexed is None:
        return ranges
    first, last, hits = indexed
    left: list[QueueRange] = []
    for each in ranges:
        # begin .. end are the queue offsets that the index covers.
        begin = search_queue(reader, *each, first)
        end = search_queue(reader, each.topic, each.queue_id, begin, each.end, last)
        # A range 0:100 of which the index covers 10:90, with hits at 12 and 40, leaves 0:10, 12:13, 40:41, 90:100.
        found = sorted(offset for offset in hits.get((each.topic, each.queue_id), ()) if begin <= offset < end)
        parts = [(each.begin, begin), *((offset, offset + 1) for offset in found), (end, each.end)]
        left += [each._replace(begin=start, end=stop) for start, stop in parts if start < stop]
    return left


def _index_hits(
    reader: StoreReader, topics: Iterable[str], keys: frozenset[str]
) -> tuple[int, int, dict[tuple[str, int], set[int]]] | None:
    """Return the covered physical offsets and hits by queue; keys of the first and last message may be elsewhere."""
    hits: dict[tuple[str, int], set[int]] = {}
    try:
        files = reader.index.files
        if not files or not all(file.has_valid_end() for file in files):
            return None
        addresses = {
            address for topic in topics for key in keys for address in reader.index.query(topic, key, _MAX_HITS)
        }
        if len(addresses) >= _MAX_HITS:
            return None
        for address in addresses:
            if address >= reader.min_physical_offset:
                message = reader.record(address, decompress=False)
                hits.setdefault((message.topic, message.queue_id), set()).add(message.queue_offset)
    except StoreError:
        return None  # damage that the read meets is reported there
    return files[0].begin_physical_offset + 1, files[-1].end_physical_offset, hits


def drop_other_times(reader: StoreReader, splits: list[LogSplit], options: ReadOptions) -> list[LogSplit]:
    """Return the splits that can hold messages of the chosen times.

    Times at the starts of two splits bound the first one, give or take `CLOCK_SLACK_MS` for a clock that was set back.
    """
    begin, end = options.starting_timestamp, options.ending_timestamp
    if begin is None and end is None:
        return splits
    times = [_first_store_time(reader, split) for split in splits]
    kept = []
    for split, (first, following) in zip(splits, pairwise([*times, None]), strict=True):
        too_early = begin is not None and following is not None and following < begin - CLOCK_SLACK_MS
        too_late = end is not None and first is not None and first >= end + CLOCK_SLACK_MS
        if not too_early and not too_late:
            kept.append(split)
    return kept


def _first_store_time(reader: StoreReader, split: LogSplit) -> int | None:
    """Return the storeTimestamp of a split's first message, None if it is unreadable or no time."""
    address = split.begin
    if split.queues is not None:
        units = [reader.units(each.topic, each.queue_id, each.begin, each.begin + 1) for each in split.queues]
        address = min(int(unit["physical_offset"][0]) for unit in units)
    for file in reader.commit_log_files:
        if file.begin <= address < file.begin + file.size:
            try:
                time = peek(reader.buffer(file), address - file.begin).store_timestamp
                return time if 0 <= time <= LAST_TIME_MS else None
            except InvalidMessage:
                return None
    return None
