"""Check job: compares a lake with the log that is archived in it, queue by queue.

    gap         offsets that are archived by the progress of the lake, but not in it
    duplicate   offsets that are in the lake more than once
    beyond      offsets in the lake that its progress does not have, so that the next run would archive them again
    unread      offsets that are in the queue by its bounds, but not in the log
    different   messages whose bodies differ in lake and log

The lake keeps the messages of a queue that was deleted and created again: what it has of each time is checked for gaps
and duplicates, and that of the last one is compared with the log.

Lake and log are read once, as streams. For each queue the offsets are kept as ranges, and for each 1024 offsets of the
range that both have a sum of hashes of offset and CRC-32 of the body. Only queues with sums that differ are read again.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from rucola.spark.archive import Archive
from rucola.spark.jobs.lake_status import ArchivedLog, Log, archived_log
from rucola.spark.source import batch_reader
from rucola.spark.source.array_conversions import Array, arrow, ints
from rucola.spark.source.grouping import Groups
from rucola.spark.source.source_offsets import BrokerQueue, Origin

Batches: TypeAlias = Iterable[pa.RecordBatch]
Range: TypeAlias = tuple[int, int]
Recreated: TypeAlias = Mapping[BrokerQueue, Sequence[int]]
"""Physical offsets at which a queue begins that was deleted and created again."""
Sums: TypeAlias = dict[tuple[BrokerQueue, int], int]

_COLUMNS: Final = ("topic", "brokerName", "queueId", "queueOffset", "commitLogOffset", "body")
BLOCK_BITS: Final = 10
"""Blocks of 1024 offsets have one sum."""
MAX_BLOCKS: Final = 64
"""Blocks of a queue that are compared message by message at a time. Others that differ are named as a whole, except
those with a gap or duplicates."""
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True)
class Difference:
    """Offsets of a queue, half-open, at which lake and log are not as they should be; `kind` is one of the above."""

    kind: str
    topic: str
    broker_name: str
    queue_id: int
    begin: int
    end: int


@dataclass(frozen=True)
class CheckResult:
    """Queues and archived messages that were checked, messages that lake and log both have, and all differences."""

    lake: str
    queues: int
    messages: int
    compared: int
    differences: tuple[Difference, ...]


class _Ranges:
    """A set of offsets as ranges that neither overlap nor touch."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> list[Range]:
        """Add offsets, and return the ones that it had."""
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        before = list(zip(self._begins[first:last], self._ends[first:last], strict=True))
        self._begins[first:last] = [min([begin, *(each for each, _ in before)])]
        self._ends[first:last] = [max([end, *(each for _, each in before)])]
        overlaps = [(max(begin, least), min(end, most)) for least, most in before]
        return [each for each in overlaps if each[0] < each[1]]

    def __iter__(self) -> Iterator[Range]:
        return zip(self._begins, self._ends, strict=True)

    def missing(self, begin: int, end: int) -> list[Range]:
        """Return the offsets from `begin` to `end` that are not in the set."""
        found = []
        for least, most in self:
            if begin < min(least, end):
                found.append((begin, min(least, end)))
            begin = max(begin, most)
        return [*found, (begin, end)] if begin < end else found


@dataclass
class _Side:
    """What was read of the lake or of the log; bodies are hashed in the ranges that both have."""

    common: Mapping[BrokerQueue, Range]
    recreated: Recreated = field(default_factory=dict)
    offsets: dict[tuple[BrokerQueue, int], _Ranges] = field(default_factory=dict)
    """By queue, and how often it was created again before."""
    duplicates: list[tuple[BrokerQueue, Range]] = field(default_factory=list)
    sums: Sums = field(default_factory=dict)
    count: int = 0

    def read(self, batches: Batches) -> None:
        for queue, number, offsets, bodies in _by_queue(batches, self.recreated):
            self.count += len(offsets)
            ranges = self.offsets.setdefault((queue, number), _Ranges())
            for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
                found = ranges.add(int(run[0]), int(run[-1]) + 1)
                self.duplicates += [(queue, each) for each in found]
            begin, end = self.common.get(queue, (0, 0)) if number == len(self.recreated.get(queue, ())) else (0, 0)
            inside = np.flatnonzero((offsets >= begin) & (offsets < end))
            if len(inside):
                self._add_sums(queue, offsets[inside], _crcs(bodies.take(arrow(inside))))

    def latest(self, queue: BrokerQueue) -> _Ranges:
        """Return the offsets of a queue since it was last created."""
        return self.offsets.get((queue, len(self.recreated.get(queue, ()))), _Ranges())

    def has_once(self, queue: BrokerQueue, span: Range) -> bool:
        """Return whether every offset of the span was read once."""
        begin, end = span
        repeated = any(each == queue and least < end and begin < most for each, (least, most) in self.duplicates)
        return not repeated and not self.latest(queue).missing(begin, end)

    def _add_sums(self, queue: BrokerQueue, offsets: Array, crcs: Array) -> None:
        blocks = offsets >> BLOCK_BITS
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        for block, total in zip(blocks[starts].tolist(), np.add.reduceat(_hashes(offsets, crcs), starts), strict=True):
            self.sums[queue, block] = (self.sums.get((queue, block), 0) + int(total)) & _MASK


def run(lake: str | Path | Archive, log: Log, topics: Collection[str] = ()) -> CheckResult:
    """Compare a lake with its log, named by options of the data source (`storePath` and `brokerName`, or `nameServer`).

    Only messages archived by the current commit are checked. Raises as a read of lake and log does: RemotingError for
    a missing broker, StoreError if there is no lake, or if the log was deleted or belongs to another lake.
    """
    archive = Archive(lake)
    found = archived_log(archive, log, topics, fail_on_missing_broker=True)
    progress = found.lake.archived_offsets(found.options)
    common: dict[BrokerQueue, Range] = {}
    for queue, end in progress.items():
        assert isinstance(queue, BrokerQueue)
        least, most = found.bounds.ranges.get(queue, (0, 0))
        if least < min(most, end):
            common[queue] = least, min(most, end)
    of_lake, of_log = _Side(common, found.lake.recreated()), _Side(common)
    of_lake.read(_lake_batches(found))
    of_log.read(_log_batches(found, common))
    differences = [*_offset_differences(progress, of_lake, of_log), *_body_differences(found, of_lake, of_log)]
    return CheckResult(
        str(archive),
        len({queue for queue, _ in of_lake.offsets} | progress.keys()),
        of_lake.count,
        sum(end - begin for begin, end in common.values()),
        tuple(sorted(differences, key=lambda each: (each.topic, each.broker_name, each.queue_id, each.begin))),
    )


def _offset_differences(progress: Mapping[Origin, int], lake: _Side, log: _Side) -> Iterator[Difference]:
    for queue, end in progress.items():
        assert isinstance(queue, BrokerQueue)
        ranges = list(lake.latest(queue))
        # What the log still has must be in the lake, and what is in the lake has no gaps.
        firsts = [begin for begin, _ in (*ranges[:1], *([lake.common[queue]] if queue in lake.common else []))]
        if firsts:
            missing = lake.latest(queue).missing(min(firsts), end)
            yield from (Difference("gap", *queue, *each) for each in missing)
        yield from (Difference("beyond", *queue, max(least, end), most) for least, most in ranges if most > end)
        if queue in log.common:
            missing = log.latest(queue).missing(*log.common[queue])
            yield from (Difference("unread", *queue, *each) for each in missing)
    for (queue, number), former in lake.offsets.items():
        if number < len(lake.recreated.get(queue, ())):
            bounds = list(former)
            yield from (Difference("gap", *queue, *each) for each in former.missing(bounds[0][0], bounds[-1][1]))
    yield from (Difference("duplicate", *queue, *each) for queue, each in lake.duplicates)


def _body_differences(found: ArchivedLog, lake: _Side, log: _Side) -> Iterator[Difference]:
    wrong: dict[BrokerQueue, list[int]] = {}
    for queue, block in sorted(lake.sums.keys() | log.sums.keys()):
        if lake.sums.get((queue, block)) != log.sums.get((queue, block)):
            wrong.setdefault(queue, []).append(block)
    for queue, blocks in wrong.items():
        begin, end = lake.common[queue]
        spans = [(max(begin, block << BLOCK_BITS), min(end, (block + 1) << BLOCK_BITS)) for block in blocks]
        # The sum of a block with a gap or duplicates differs in any case.
        doubtful = [span for span in spans if not (lake.has_once(queue, span) and log.has_once(queue, span))]
        whole = [span for span in spans if span not in doubtful]
        ranges = _Ranges()
        for span in whole[MAX_BLOCKS:]:
            ranges.add(*span)
        chosen = [*doubtful, *whole[:MAX_BLOCKS]]
        for first in range(0, len(chosen), MAX_BLOCKS):
            for offset in _differing(found, queue, chosen[first : first + MAX_BLOCKS]):
                ranges.add(offset, offset + 1)
        yield from (Difference("different", *queue, *each) for each in ranges)


def _differing(found: ArchivedLog, queue: BrokerQueue, spans: Sequence[Range]) -> list[int]:
    archived = _crcs_by_offset(_lake_batches(found, queue), queue, spans, found.lake.recreated())
    stored: dict[int, set[int]] = {}
    for span in spans:
        stored |= _crcs_by_offset(_log_batches(found, {queue: span}), queue, [span], {})
    return [offset for offset in archived.keys() & stored.keys() if archived[offset] != stored[offset]]


def _crcs_by_offset(
    batches: Batches, queue: BrokerQueue, spans: Sequence[Range], recreated: Recreated
) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for each, number, offsets, bodies in _by_queue(batches, recreated):
        if each == queue and number == len(recreated.get(queue, ())):
            for begin, end in spans:
                inside = np.flatnonzero((offsets >= begin) & (offsets < end))
                crcs = _crcs(bodies.take(arrow(inside)))
                for offset, crc in zip(offsets[inside].tolist(), crcs.tolist(), strict=True):
                    found.setdefault(offset, set()).add(crc)
    return found


def _lake_batches(found: ArchivedLog, queue: BrokerQueue | None = None) -> Batches:
    for partition in found.lake.plan():
        for batch in batch_reader.read(partition, found.options, _COLUMNS):
            if queue is None or batch["topic"][0].as_py() == queue.topic:
                yield batch


def _log_batches(found: ArchivedLog, ranges: Mapping[BrokerQueue, Range]) -> Batches:
    origins: dict[Origin, Range] = dict(ranges.items())
    for partition in batch_reader.source_of(found.options).plan(origins):
        yield from batch_reader.read(partition, found.options, _COLUMNS)


def _by_queue(batches: Batches, recreated: Recreated) -> Iterator[tuple[BrokerQueue, int, Array, pa.Array]]:
    """Yield each queue of each batch: how often it was created again before, and its offsets and bodies, by offset."""
    for batch in batches:
        groups = Groups(batch, ("topic", "brokerName", "queueId"))
        offsets, physical_offsets = (ints(batch[name]) for name in ("queueOffset", "commitLogOffset"))
        for key, numbers in zip(groups.keys.to_pylist(), groups.numbers(), strict=True):
            queue = BrokerQueue(*key.values())
            rows = np.array(numbers)[np.argsort(offsets[numbers], kind="stable")]
            times = np.searchsorted(recreated.get(queue, ()), physical_offsets[rows], "right")
            for number in np.unique(times).tolist():
                chosen = rows[times == number]
                yield queue, number, offsets[chosen], batch["body"].take(arrow(chosen))


def _crcs(bodies: pa.Array) -> Array:
    return np.array([zlib.crc32(body) for body in bodies.to_pylist()], np.uint64)


def _hashes(offsets: Array, crcs: Array) -> Array:
    """Return 64-bit hashes of pairs (splitmix64)."""
    mixed: Any = (offsets.astype(np.uint64) << np.uint64(32)) ^ crcs
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: Array = mixed ^ (mixed >> np.uint64(31))
    return hashed
