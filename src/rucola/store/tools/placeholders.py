"""Placeholders: queue offsets that a damaged log lost, and the holes in which their messages are replaced.

The queue offsets of a queue rise by one in the order of the log. Each missing offset between two records gets a
placeholder in a hole between them; so do lost offsets at both ends of a queue, which only surviving units show.

The CRC covers the body only, so an intact record may state a wrong queue or queue offset. Nothing is guessed about it:
per queue, the longest rising sequence of queue offsets is kept, and any other record becomes a hole. Of two records
with the same queue offset, the one at which a unit points is kept. If a gap has no hole with room, the record after it
becomes one as well. For example, queue T-0, as queueOffset@physicalOffset in the order of the log:

    stated    0@0   1@100   7@200             3@300   (hole 400 to 500)   5@500
    kept      0@0   1@100                     3@300                       5@500     0 1 3 5 is longer than 0 1 7
    result    0@0   1@100   placeholder 2     3@300   placeholder 4       5@500
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rucola.errors import StoreCorrupt
from rucola.message.record import MIN_RECORD_SIZE
from rucola.store.consume_queue import FILLER_SIZE, opened_queue, queue_directories
from rucola.store.tools.salvage import Hole, QueueName, QueueRecords, SalvagedLog

_BEFORE: Final = -1
_AFTER: Final = 1 << 62
_CONTRADICTS: Final = "which the other records of its queue contradict"
_NO_ROOM: Final = "and messages before it are lost for whose queue offsets no hole has room"


class LostMessage(NamedTuple):
    queue: QueueName
    queue_offset: int

    def __str__(self) -> str:
        return f"{self.queue[0]}|{self.queue[1]}|{self.queue_offset}"


@dataclass(slots=True)
class Plan:
    """The holes of a log, with dropped records, and the lost messages; by the hole's offset or the log's end."""

    holes: list[Hole]
    placeholders: dict[int, list[LostMessage]] = field(default_factory=dict)
    lost: dict[int, list[LostMessage]] = field(default_factory=dict)


class _Record(NamedTuple):
    queue_offset: int
    physical_offset: int
    size: int


_Parts: TypeAlias = list[list[_Record]]
"""The records of a queue, in one part for each time that its topic was created."""


class _Gap(NamedTuple):
    """Lost queue offsets `begin` to `end` between two physical offsets, and the record after them, if any."""

    queue: QueueName
    begin: int
    end: int
    after: int
    before: int
    following: _Record | None


class _Missing(NamedTuple):
    """The gaps of a queue, and the hole, or end of the log, into which the unit of a lost queue offset points."""

    gaps: list[_Gap]
    in_holes: dict[int, int]


class _Units(NamedTuple):
    """The physical offsets in a surviving ConsumeQueue from queue offset `begin` on; -1 for no unit."""

    begin: int
    physical_offsets: npt.NDArray[np.int64]

    def at(self, queue_offset: int) -> int:
        index = queue_offset - self.begin
        return int(self.physical_offsets[index]) if 0 <= index < len(self.physical_offsets) else -1


_NO_UNITS: Final = _Units(0, np.empty(0, np.int64))


def plan_placeholders(found: SalvagedLog, consume_queues: Path) -> Plan:
    """Return the changes after which every queue of the log is consecutive."""
    units = dict(_surviving_units(consume_queues))
    # Keep the records of each queue that are in order; the others become holes.
    kept: dict[QueueName, _Parts] = {queue: [] for queue in units}
    holes = list(found.holes)
    for queue, records in found.queues.items():
        kept[queue], strays = _in_order(records, units.get(queue, _NO_UNITS))
        holes += [_hole_of(queue, stray, _CONTRADICTS, found) for stray in strays]
    # Without a hole, the record after the gap becomes one; only the first such record, since the others may have room
    # in it.
    missing: dict[QueueName, _Missing] = {}
    while True:
        plan = Plan(sorted(holes))
        for queue in kept.keys() - missing.keys():
            missing[queue] = _missing(queue, kept[queue], units.get(queue, _NO_UNITS), plan.holes, found)
        blocked = _place(plan, missing)
        if blocked is None:
            return plan
        queue, record = blocked
        holes.append(_hole_of(queue, record, _NO_ROOM, found))
        kept[queue] = [left for part in kept[queue] if (left := [each for each in part if each != record])]
        del missing[queue]


def _place(plan: Plan, missing: dict[QueueName, _Missing]) -> tuple[QueueName, _Record] | None:
    """Fill in the tables of a plan; return the record after the first gap that no hole has room for, if any."""
    left = {hole.begin: hole.end - hole.begin for hole in plan.holes}
    begins = [hole.begin for hole in plan.holes]
    named = {LostMessage(queue, offset): at for queue, each in missing.items() for offset, at in each.in_holes.items()}
    # The gap that ends first is filled first, and from its start: no order of filling fills more.
    for gap in sorted((gap for each in missing.values() for gap in each.gaps), key=lambda gap: (gap.before, gap.after)):
        need = MIN_RECORD_SIZE + len(gap.queue[0].encode())
        between = begins[bisect_right(begins, gap.after) : bisect_left(begins, gap.before)]
        if sum(left[at] // need for at in between) < gap.end - gap.begin:
            if gap.following is not None:
                return gap.queue, gap.following
            continue  # at an end of a queue, which is shorter then
        queue_offset = gap.begin
        for at in between:
            while left[at] >= need and queue_offset < gap.end:
                lost = LostMessage(gap.queue, queue_offset)
                plan.placeholders.setdefault(at, []).append(lost)
                named.setdefault(lost, at)
                left[at] -= need
                queue_offset += 1
    for lost, at in sorted(named.items()):
        plan.lost.setdefault(at, []).append(lost)
    return None


def _missing(queue: QueueName, parts: _Parts, units: _Units, holes: list[Hole], found: SalvagedLog) -> _Missing:
    in_holes = dict(_units_of_lost(holes, found, parts, units))
    return _Missing(list(_gaps(queue, parts, in_holes, found)), in_holes)


def _gaps(queue: QueueName, parts: _Parts, in_holes: dict[int, int], found: SalvagedLog) -> Iterator[_Gap]:
    after, expected = _BEFORE, 0
    in_log = {queue_offset for queue_offset, at in in_holes.items() if at < found.end}
    if found.begin or not parts:  # the first files may be deleted: only units show their messages
        expected = parts[0][0].queue_offset if parts else min(in_log, default=0) if found.begin else 0
        while expected - 1 in in_log:
            expected -= 1
    for number, part in enumerate(parts):
        for record in part:
            if record.queue_offset > expected:
                is_begin = number == 0 and record == part[0] and found.begin > 0
                following = None if is_begin else record
                yield _Gap(queue, expected, record.queue_offset, after, record.physical_offset, following)
            after, expected = record.physical_offset, record.queue_offset + 1
        if number < len(parts) - 1:
            expected = 0  # the topic was deleted and created again
    end = expected
    while end in in_log and in_holes[end] > after:
        end += 1
    if end > expected:
        yield _Gap(queue, expected, end, after, _AFTER, None)


def _units_of_lost(holes: list[Hole], found: SalvagedLog, parts: _Parts, units: _Units) -> Iterator[tuple[int, int]]:
    """Yield (queue offset, hole) of each unit that points into a hole, or (queue offset, end) after the log's end."""
    addresses = units.physical_offsets
    kept = np.array([record.queue_offset for record in parts[-1]] if parts else [], np.int64)
    is_lost = (addresses >= found.begin) & ~np.isin(np.arange(len(addresses)) + units.begin, kept)
    for index in np.flatnonzero(is_lost).tolist():
        at = int(addresses[index])
        number = bisect_right(holes, at, key=lambda hole: hole.begin) - 1
        if at >= found.end:
            yield units.begin + index, found.end
        elif number >= 0 and at < holes[number].end:
            yield units.begin + index, holes[number].begin


def _in_order(records: QueueRecords, units: _Units) -> tuple[_Parts, list[_Record]]:
    every = list(map(_Record, records.queue_offsets, records.physical_offsets, records.sizes))
    offsets = np.array(records.queue_offsets)
    if (np.diff(offsets) == 1).all():
        return [every], []
    is_first = (offsets == 0) & (np.append(offsets[1:], 1) == 1)
    cuts = [0, *(np.flatnonzero(is_first[1:]) + 1).tolist(), len(every)]
    parts = [_longest_rising(every[begin:end], units) for begin, end in pairwise(cuts)]
    kept = {record.physical_offset for part in parts for record in part}
    return parts, [record for record in every if record.physical_offset not in kept]


def _longest_rising(records: list[_Record], units: _Units) -> list[_Record]:
    """Return the longest subsequence with rising queue offsets, preferring records with a unit: patience sorting."""
    confirmed = {r.queue_offset for r in records if units.at(r.queue_offset) == r.physical_offset}
    ends: list[int] = []
    chains: list[Any] = []
    """For each of `ends` the records up to it, linked backwards: (record, chain before it)."""
    for record in records:
        if record.queue_offset in confirmed and units.at(record.queue_offset) != record.physical_offset:
            continue
        at = bisect_left(ends, record.queue_offset)
        chain = record, chains[at - 1] if at else None
        ends[at : at + 1], chains[at : at + 1] = [record.queue_offset], [chain]
    kept, link = [], chains[-1]
    while link is not None:
        record, link = link
        kept.append(record)
    return kept[::-1]


def _hole_of(queue: QueueName, record: _Record, why: str, found: SalvagedLog) -> Hole:
    stated = LostMessage(queue, record.queue_offset)
    begin = record.physical_offset
    return Hole(begin, begin + record.size, f"the record states {stated}, {why}", found.last_timestamp)


def _surviving_units(directory: Path) -> Iterable[tuple[QueueName, _Units]]:
    for topic, queue_id, path in queue_directories(directory):
        with suppress(StoreCorrupt), opened_queue(topic, queue_id, path) as queue:
            rows = queue.units(queue.min_offset, queue.max_offset)
            is_unit = (rows["size"] >= MIN_RECORD_SIZE) & (rows["size"] != FILLER_SIZE)
            addresses = np.where(is_unit, rows["physical_offset"], -1).astype(np.int64)
            yield (topic, queue_id), _Units(queue.min_offset, addresses)
