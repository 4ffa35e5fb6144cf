"""Which splits of which CommitLog a read has to touch.

Whatever is asked for, Spark gets the same kind of partition: a split of one log, read in the order in which it
lies on disk. The driver opens the store, freezes where it ends, and cuts it up:

    whole log   from record to record. A split begins where a record begins: at the start of a file, or at an
                address that a ConsumeQueue vouches for.
    by queue    the units of the chosen queues say which records are wanted. The log is divided into equal slices,
                the wanted bytes of each are counted, and slices are put together to splits of near-equal bytes;
                a split carries the queue offsets between which its records lie.

Where keys are wanted of queues, the index says which of their messages can have one (see `_with_keys`).

Splits outside of the wanted time are dropped. The log is in order of storeTimestamp except where a clock was set
back, therefore they are dropped only beyond `CLOCK_SLACK_MS`, and every row is compared as well.

The end of the log is the end of the last whole record that can be reached from the last unit of the ConsumeQueues:
what follows is unwritten, or half written by a broker that is running.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import log2
from typing import Final, NamedTuple

import numpy as np
from pyspark.sql.datasource import InputPartition

from rucola.errors import ConfigError, InvalidMessage, StoreError
from rucola.message.record import peek
from rucola.spark.source.options import ReadOptions
from rucola.spark.source.source_offsets import (
    BrokerLog,
    BrokerQueue,
    OffsetRanges,
    Origin,
    SourceBounds,
    is_chosen,
    limit_ranges,
)
from rucola.store.reader import StoreReader
from rucola.store.scan import ScanEnd

TARGET_SIZE: Final = 128 * 1024 * 1024
"""Bytes in a partition, about, unless the log is huge. A task costs Spark some thirty milliseconds to start, which is
little beside the time to read so many."""

SMALL_SIZE: Final = TARGET_SIZE // 4
FEW: Final = 4
"""Up to so many partitions are as small as this, so that more than one core is at work on a small log."""

CLOCK_SLACK_MS: Final = 10 * 60 * 1000
"""How far the broker's clock may have been set back before messages are missed by time."""

_SLICES: Final = 4096
_UNITS_AT_ONCE: Final = 300_000
_QUEUES_TO_ASK: Final = 16
_MOST_HITS: Final = 10_000


class QueueRange(NamedTuple):
    """Messages of one queue, by queue offset, half-open."""

    topic: str
    queue_id: int
    begin: int
    end: int


@dataclass
class LogSplit(InputPartition):
    """One partition: the log of one store from physical offset `begin` to `end`, half-open.

    With `queues` only the records of these ranges are read, all of which lie inside; without, all records are, and
    one begins at `begin`.
    """

    broker_name: str
    store: str
    begin: int
    end: int
    queues: tuple[QueueRange, ...] | None = None


class StoreSource:
    """What is chosen of store directories. Each question opens them anew and looks at their ends."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def bounds(self, known: Iterable[Origin] = ()) -> SourceBounds:
        """Return the bounds of every log or chosen queue; nothing of a store that can be opened is ever unavailable."""
        bounds: dict[Origin, tuple[int, int]] = {}
        present: set[tuple[str, int]] = set()
        for broker_name, path in self._options.stores.items():
            with StoreReader(path) as reader:
                if not self._options.by_queue:
                    bounds[BrokerLog(broker_name)] = reader.min_physical_offset, log_end(reader)
                    continue
                present |= reader.queues().keys()
                for (topic, queue_id), (least, most) in reader.queues().items():
                    if is_chosen(self._options, queue := BrokerQueue(topic, broker_name, queue_id)):
                        bounds[queue] = least, most
        _check_topics_exist(self._options, present)
        return SourceBounds(bounds)

    def plan(self, ranges: OffsetRanges) -> list[LogSplit]:
        """The partitions are in the order of each store's log."""
        splits: list[LogSplit] = []
        for broker_name, path in self._options.stores.items():
            with StoreReader(path) as reader:
                found = list(self._cut(reader, broker_name, ranges))
                splits += _in_time(reader, found, self._options)
        return splits

    def _cut(self, reader: StoreReader, broker_name: str, ranges: OffsetRanges) -> Iterator[LogSplit]:
        if not self._options.by_queue:
            begin, end = ranges.get(BrokerLog(broker_name), (0, 0))
            return _whole_log(reader, broker_name, begin, end, self._options)
        chosen = [
            QueueRange(origin.topic, origin.queue_id, begin, end)
            for origin, (begin, end) in sorted(ranges.items())
            if isinstance(origin, BrokerQueue) and origin.broker_name == broker_name
        ]
        if self._options.keys is not None:
            chosen = _with_keys(reader, chosen, self._options.keys)
        return _by_queue(reader, broker_name, chosen, self._options)

    def at_times(self, times: Mapping[BrokerQueue, int], bounds: OffsetRanges) -> Mapping[BrokerQueue, int]:
        found: dict[BrokerQueue, int] = {}
        for broker_name, path in self._options.stores.items():
            named = [queue for queue in times if queue.broker_name == broker_name]
            if named:
                with StoreReader(path) as reader:
                    for queue in named:
                        begin, end = bounds[queue]
                        stored = partial(_stored, reader, queue)
                        found[queue] = begin + bisect_left(range(begin, end), times[queue], key=stored)
        return found

    def limit(self, ranges: OffsetRanges, count: int) -> OffsetRanges:
        if self._options.by_queue:
            return limit_ranges(ranges, count)
        limited: dict[Origin, tuple[int, int]] = {}
        logs = {origin: bounds for origin, bounds in ranges.items() if bounds[0] < bounds[1]}
        for number, (origin, (begin, end)) in enumerate(logs.items()):
            share = count * (number + 1) // len(logs) - count * number // len(logs)
            with StoreReader(self._options.stores[origin.broker_name]) as reader:
                limited[origin] = begin, _after_records(reader, begin, end, max(share, 1))[0]
        return limited

    def count(self, ranges: OffsetRanges, most: int) -> int:
        if self._options.by_queue:
            return sum(end - begin for begin, end in ranges.values())
        found = 0
        for origin, (begin, end) in ranges.items():
            if found < most and begin < end:
                with StoreReader(self._options.stores[origin.broker_name]) as reader:
                    found += _after_records(reader, begin, end, most - found)[1]
        return found


def _stored(reader: StoreReader, queue: BrokerQueue, queue_offset: int) -> int:
    """Return when a message of a queue was stored. Raises StoreError where that cannot be read."""
    units = reader.units(queue.topic, queue.queue_id, queue_offset, queue_offset + 1)
    return reader.record(int(units["physical_offset"][0]), decompress=False).store_timestamp


def _after_records(reader: StoreReader, begin: int, end: int, count: int) -> tuple[int, int]:
    """Return the address behind `count` records from `begin` on, or `end` if there are fewer, and their number."""
    left = count
    for item in reader.runs(begin):
        if isinstance(item, ScanEnd):
            # What is damaged goes into the batch that meets it, up to where records begin again.
            further = next_record(reader, item.physical_offset + 1)
            return end if further is None else min(further, end), count - left
        if len(item.positions) > left:
            return min(item.file.begin + int(item.positions[left]), end), count
        left -= len(item.positions)
        if left == 0 or item.end >= end:
            return min(item.end, end), count - left
    raise AssertionError("a walk ends with a ScanEnd")


def log_end(reader: StoreReader) -> int:
    """Return the physical offset behind the last whole record."""
    begin = max([_end_of_last(reader, *queue) for queue in reader.queues()], default=0)
    end = _end_of_run(reader, max(begin, reader.min_physical_offset))
    # Damage that more records follow is no end; whoever reads that far will say what is wrong.
    for file in reader.commit_log_files:
        if file.begin > end and (further := _end_of_run(reader, file.begin)) > file.begin:
            end = further
    return end


def _end_of_run(reader: StoreReader, begin: int) -> int:
    """Return where the chain of whole records from `begin` ends."""
    for item in reader.runs(begin):
        if isinstance(item, ScanEnd):
            return item.physical_offset
    raise AssertionError("a walk ends with a ScanEnd")


def next_record(reader: StoreReader, physical_offset: int, most_queues: int | None = None) -> int | None:
    """Return where a record begins at `physical_offset` or behind it; None where nothing tells.

    The ConsumeQueues tell, and the files, each of which begins with one. With `most_queues` only so many of the
    largest queues are asked: the answer is near the next record then, not always the next.
    """
    queues = sorted(reader.queues().items(), key=lambda item: item[1][0] - item[1][1])[:most_queues]
    found = [_first_at_or_after(reader, *name, *bounds, physical_offset) for name, bounds in queues]
    found += [file.begin for file in reader.commit_log_files if file.begin >= physical_offset][:1]
    return min((offset for offset in found if offset is not None), default=None)


def _end_of_last(reader: StoreReader, topic: str, queue_id: int) -> int:
    _, end = reader.queues()[topic, queue_id]
    last = reader.units(topic, queue_id, end - 1, end)
    return int(last["physical_offset"][0] + last["size"][0]) if len(last) else 0


def _first_at_or_after(
    reader: StoreReader, topic: str, queue_id: int, begin: int, end: int, physical_offset: int
) -> int | None:
    """Return the address of the queue's first record at `physical_offset` or behind it."""
    found = _search(reader, topic, queue_id, begin, end, physical_offset)
    return int(reader.units(topic, queue_id, found, found + 1)["physical_offset"][0]) if found < end else None


def _search(reader: StoreReader, topic: str, queue_id: int, begin: int, end: int, physical_offset: int) -> int:
    """Return the first queue offset from `begin` on whose record lies at `physical_offset` or behind it, else `end`."""
    while begin < end:
        middle = (begin + end) // 2
        if int(reader.units(topic, queue_id, middle, middle + 1)["physical_offset"][0]) < physical_offset:
            begin = middle + 1
        else:
            end = middle
    return begin


def _with_keys(reader: StoreReader, ranges: list[QueueRange], keys: frozenset[str]) -> list[QueueRange]:
    """Return the parts of these ranges that can hold messages with one of these keys.

    The index knows the messages between its first and its last; others are left in. Where it is none, or not to be
    relied on, or knows so many that looking at each would take longer, all are.
    """
    known = _indexed(reader, {each.topic for each in ranges}, keys)
    if known is None:
        return ranges
    first, last, hits = known
    left: list[QueueRange] = []
    for each in ranges:
        begin = _search(reader, *each, first)
        end = _search(reader, each.topic, each.queue_id, begin, each.end, last)
        found = sorted(offset for offset in hits.get((each.topic, each.queue_id), ()) if begin <= offset < end)
        parts = [(each.begin, begin), *((offset, offset + 1) for offset in found), (end, each.end)]
        left += [each._replace(begin=start, end=stop) for start, stop in parts if start < stop]
    return left


def _indexed(
    reader: StoreReader, topics: Iterable[str], keys: frozenset[str]
) -> tuple[int, int, dict[tuple[str, int], set[int]]] | None:
    """Return the part of the log whose keys are all in the index, and of each queue the offsets that may have one.

    Of its first and its last message some keys may lie in a file that is gone, or not there yet.
    """
    hits: dict[tuple[str, int], set[int]] = {}
    try:
        files = reader.index.files
        if not files or not all(file.has_valid_end() for file in files):
            return None
        addresses = {
            address for topic in topics for key in keys for address in reader.index.query(topic, key, _MOST_HITS)
        }
        if len(addresses) >= _MOST_HITS:
            return None
        for address in addresses:
            if address >= reader.min_physical_offset:
                message = reader.record(address, decompress=False)
                hits.setdefault((message.topic, message.queue_id), set()).add(message.queue_offset)
    except StoreError:
        return None  # whatever is damaged is met when it is read, if that is asked for
    return files[0].begin_physical_offset + 1, files[-1].end_physical_offset, hits


def partition_count(size: int) -> int:
    """Return into how many partitions `size` bytes of records should be cut."""
    fitting = max(size / TARGET_SIZE, min(size / SMALL_SIZE, FEW), 1)
    # Cores mostly are a power of two; so many partitions of one size keep them all at work to the end.
    return 1 << round(log2(fitting))


def _count(size: int, options: ReadOptions) -> int:
    """Return into how many splits `size` bytes of one store should be cut."""
    return max(-(-options.min_partitions // len(options.stores)), min(partition_count(size), _SLICES))


def _whole_log(reader: StoreReader, broker_name: str, begin: int, end: int, options: ReadOptions) -> Iterator[LogSplit]:
    count = _count(end - begin, options)
    near = [begin + (end - begin) * k // count for k in range(1, count)]
    cuts = {next_record(reader, offset, _QUEUES_TO_ASK) for offset in near}
    inside = [cut for cut in cuts if cut is not None and begin < cut < end]
    for first, last in pairwise(sorted({begin, *inside, end})):
        yield LogSplit(broker_name, str(reader.path), first, last)


def _by_queue(
    reader: StoreReader, broker_name: str, ranges: list[QueueRange], options: ReadOptions
) -> Iterator[LogSplit]:
    log_begin = reader.min_physical_offset
    log_size = max([_end_of_last(reader, *queue) for queue in reader.queues()], default=log_begin) - log_begin
    slice_size = max(1, -(-log_size // _SLICES))
    sizes = np.zeros(_SLICES, np.int64)
    counts = np.zeros((len(ranges), _SLICES), np.int64)
    for number, (topic, queue_id, begin, end) in enumerate(ranges):
        for first in range(begin, end, _UNITS_AT_ONCE):
            units = reader.units(topic, queue_id, first, min(first + _UNITS_AT_ONCE, end))
            slices = (units["physical_offset"].astype(np.int64) - log_begin) // slice_size
            slices = np.clip(slices, 0, _SLICES - 1)  # for damaged units, which are met when they are read
            sizes += np.bincount(slices, weights=np.maximum(units["size"], 0), minlength=_SLICES).astype(np.int64)
            counts[number] += np.bincount(slices, minlength=_SLICES)

    before = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    split_of_slice = before * _count(total, options) // max(total, 1)
    passed = np.array([each.begin for each in ranges], np.int64)
    for group in np.split(np.arange(_SLICES), np.flatnonzero(np.diff(split_of_slice)) + 1):
        upto = passed + counts[:, group].sum(axis=1)
        inside = tuple(
            QueueRange(each.topic, each.queue_id, int(begin), int(end))
            for each, begin, end in zip(ranges, passed, upto, strict=True)
            if begin < end
        )
        if inside:
            edges = int(group[0]) * slice_size, (int(group[-1]) + 1) * slice_size
            yield LogSplit(broker_name, str(reader.path), log_begin + edges[0], log_begin + edges[1], inside)
        passed = upto


def _check_topics_exist(options: ReadOptions, queues: set[tuple[str, int]]) -> None:
    """Raise ConfigError for a topic or queue that is named and not among the queues of any store."""
    wanted: set[tuple[str, int | None]] = {(topic, None) for topic in options.topics or ()}
    wanted |= {(topic, queue_id) for topic, _, queue_id in options.assigned or ()}
    present: set[tuple[str, int | None]] = queues | {(topic, None) for topic, _ in queues}
    for topic, queue_id in sorted(wanted - present, key=str):
        queue = "" if queue_id is None else f"queue {queue_id} of "
        topics = ", ".join(sorted({topic for topic, _ in present})) or "no topic at all"
        raise ConfigError(
            f"{queue}topic {topic!r} is not in {', '.join(options.stores.values())}, which holds {topics}"
        )


def _in_time(reader: StoreReader, splits: list[LogSplit], options: ReadOptions) -> list[LogSplit]:
    """Return the splits that can hold messages of the wanted time."""
    begin, end = options.starting_timestamp, options.ending_timestamp
    if begin is None and end is None:
        return splits
    stored = [_first_stored(reader, split) for split in splits]
    kept = []
    for split, (first, following) in zip(splits, pairwise([*stored, None]), strict=True):
        too_early = begin is not None and following is not None and following < begin - CLOCK_SLACK_MS
        too_late = end is not None and first is not None and first >= end + CLOCK_SLACK_MS
        if not too_early and not too_late:
            kept.append(split)
    return kept


def _first_stored(reader: StoreReader, split: LogSplit) -> int | None:
    """Return when the first message of a split was stored; None where that cannot be read."""
    address = split.begin
    if split.queues is not None:
        units = [reader.units(each.topic, each.queue_id, each.begin, each.begin + 1) for each in split.queues]
        address = min(int(unit["physical_offset"][0]) for unit in units)
    for file in reader.commit_log_files:
        if file.begin <= address < file.begin + file.size:
            try:
                return peek(reader.buffer(file), address - file.begin).store_timestamp
            except InvalidMessage:
                return None
    return None
