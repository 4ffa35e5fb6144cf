"""Queue reconstruction: queue offsets that a damaged log lost, and records that claim wrong ones.

The CRC of a record covers its body only, so a record that looks intact may state a wrong topic, queue id, queueOffset.
Two sources tell: the queue offsets of each queue are consecutive in the order of the log, and the ConsumeQueues of the
damaged store, if they survived, point at the record of each queue offset.

1. Per queue, trust the longest rising sequence of queue offsets. The other records are strays, and the offsets between
   the trusted ones are missing.
2. Give missing offsets to strays, in this order:

    the surviving unit of the offset points at the stray                        the stray gets it
    as many strays of the queue between two trusted records as offsets          the strays get them, in order
    two strays of the queue claim the offset                                    the one that fits nowhere else gets it
    a stray of a queue whose name or id differs in one byte claims the offset   the stray gets it

3. Every other stray becomes a hole. Every other missing offset gets a placeholder in a hole between its neighbours, or,
   if no hole has room for one, the later records of the queue move up by one.

For example, queue T-0 without surviving units, as queueOffset@physicalOffset in the order of the log:

    claimed      0@0   1@100   7@200   3@300   (hole 400 to 500)   5@500
    trusted      0@0   1@100           3@300                       5@500     0 1 3 5 is longer than 0 1 7
    missing                    2                 4
    result       0@0   1@100   2@200   3@300   4: placeholder      5@500     one stray for offset 2, a hole for 4

The result can be wrong in one case: without units, a record damaged in its queue id or topic claims the offset of an
intact record of another queue, and both records are between the neighbours of both offsets. For example T-0 and T-1
have 0@0 and 0@100, then offset 1 of both at 200 and 300, and the damaged one claims T-1, too. Nothing in the log says
which of the two is damaged. The first one keeps T-1 then, so the two records may be exchanged. (If both are the last of
their queues, not even the lost offset shows, and the second one becomes offset 2 of T-1.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rucola.errors import StoreCorrupt
from rucola.message.record import MIN_RECORD_SIZE
from rucola.store.consume_queue import FILLER_SIZE, UNIT_SIZE, ConsumeQueue, queue_directories
from rucola.store.mapped_file import MappedFileQueue
from rucola.store.tools.salvage import Hole, QueueName, QueueRecords, SalvagedLog

_LOG_END: Final = 1 << 62
"""The physical offset after a range of missing offsets at the end of a queue."""


class RecordLocation(NamedTuple):
    """A record's location, true or claimed: queue, queue offset, physical offset and size."""

    queue: QueueName
    queue_offset: int
    physical_offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.queue[0]}|{self.queue[1]}|{self.queue_offset}"


@dataclass(slots=True)
class Reconstruction:
    """The changes that make every queue of the log consecutive."""

    holes: list[Hole]
    """The holes of the log and the strays that became holes, in order."""
    placeholders: dict[int, list[RecordLocation]] = field(default_factory=dict)
    """{physical offset of a hole: the lost records that it needs placeholders for}; size 0 if it is unknown."""
    corrections: list[tuple[RecordLocation, RecordLocation]] = field(default_factory=list)
    """(the location that a record claims, its true location)."""
    strays: list[RecordLocation] = field(default_factory=list)
    """Records that became holes."""
    tail: list[RecordLocation] = field(default_factory=list)
    """Records after the end of the log that only the surviving units know."""
    gaps: list[RecordLocation] = field(default_factory=list)
    """Lost records that no hole has room for, so that later records of the queue move up."""


class SurvivingUnits:
    """The ConsumeQueues of a damaged store, which may be damaged or missing themselves."""

    def __init__(self, directory: Path) -> None:
        self._queues: dict[QueueName, ConsumeQueue] = {}
        for topic, queue_id, path in queue_directories(directory):
            try:
                self._queues[topic, queue_id] = ConsumeQueue(topic, queue_id, MappedFileQueue.open(path))
            except StoreCorrupt:
                continue

    def at(self, name: QueueName, queue_offset: int) -> tuple[int, int]:
        """Return (physical offset, size) of a unit, or (-1, 0) if there is none."""
        queue = self._queues.get(name)
        if queue is None or not queue.files.begin // UNIT_SIZE <= queue_offset < queue.max_offset:
            return -1, 0
        physical_offset, size, _ = queue.unit(queue_offset)
        return (-1, 0) if size == FILLER_SIZE else (physical_offset, size)

    def names(self) -> list[QueueName]:
        """Return the names of all queues."""
        return list(self._queues)

    def begin(self, name: QueueName, physical_offset: int) -> int | None:
        """Return the first queue offset whose record is at or after `physical_offset`; None without units."""
        queue = self._queues.get(name)
        if queue is None or queue.max_offset <= queue.min_offset:
            return None
        return queue.first_at_or_after(physical_offset)

    def end(self, name: QueueName) -> int:
        """Return the queue offset after the last unit."""
        queue = self._queues.get(name)
        return queue.max_offset if queue else 0

    def close(self) -> None:
        """Close all files."""
        for queue in self._queues.values():
            queue.files.close()


class _Missing(NamedTuple):
    """Missing queue offsets between two trusted records at physical offsets `begin` and `end`."""

    queue: QueueName
    begin: int
    end: int
    offsets: list[int]
    """Shrinks as offsets are found."""

    def spans(self, physical_offset: int) -> bool:
        """Tell whether a record there can have one of the offsets."""
        return self.begin < physical_offset < self.end


def reconstruct_queues(log: SalvagedLog, units: SurvivingUnits) -> Reconstruction:
    """Return the corrections that make the queues of a damaged log consecutive."""
    return _Reconstructor(log, units).run()


class _Reconstructor:
    def __init__(self, log: SalvagedLog, units: SurvivingUnits) -> None:
        self._log = log
        self._units = units
        self._strays: dict[int, RecordLocation] = {}
        """Strays that have no offset yet, by physical offset."""
        self._missing: list[_Missing] = []
        self._ends: dict[QueueName, tuple[int, int]] = {}
        """(queue offset, physical offset) of the last trusted record of each queue."""
        self._result = Reconstruction([])

    def run(self) -> Reconstruction:
        log, result = self._log, self._result
        # 1. Compare each queue. Short ones first: a queue that exists only in one damaged record is a stray early.
        queues = {name: log.queues.get(name) or QueueRecords() for name in {*log.queues, *self._units.names()}}
        for name in sorted(queues, key=lambda name: (len(queues[name].sizes), name)):
            self._compare(name, queues[name])
        # 2. Give missing offsets to strays.
        self._correct_known()
        self._correct_neighbours()
        self._correct_ends()
        # 3. Turn the other strays into holes, and fill them and the holes of the log.
        result.strays = sorted(self._strays.values(), key=lambda stray: stray.physical_offset)
        holes = [
            Hole(s.physical_offset, s.physical_offset + s.size, _why(s), log.last_timestamp) for s in result.strays
        ]
        result.holes = sorted([*log.holes, *holes])
        self._place_placeholders()
        self._close_gaps()
        return result

    # -- step 1: one queue --------------------------------------------------------------------------------------------

    def _compare(self, name: QueueName, records: QueueRecords) -> None:
        """Find the trusted records, the strays and the missing offsets of a queue."""
        log, units = self._log, self._units
        # 1. The first offset: 0 if the log begins at 0, otherwise the earlier of unit and record.
        known = units.begin(name, log.begin)
        claimed = np.frombuffer(records.queue_offsets, np.int64)
        first = int(claimed[0]) if len(claimed) else 0
        begin = 0 if log.begin == 0 else first if known is None else min(known, first) if len(claimed) else known
        # 2. Nearly all queues are consecutive, which numpy tells at once.
        if len(claimed) and first == begin and bool((np.diff(claimed) == 1).all()):
            last, last_at = int(claimed[-1]), records.physical_offsets[-1]
        else:
            last, last_at = begin - 1, log.begin - 1
            for epoch in self._epochs(name, records):
                last = begin - 1
                for record in self._trusted(epoch, last):
                    if record.queue_offset > last + 1:
                        offsets = [*range(last + 1, record.queue_offset)]
                        self._missing.append(_Missing(name, last_at, record.physical_offset, offsets))
                    last, last_at = record.queue_offset, record.physical_offset
                begin = 0
        self._ends[name] = last, last_at
        # 3. Units after the last trusted record are lost messages, if they point at a stray, a hole or the log's tail.
        lost = []
        for queue_offset in range(last + 1, units.end(name)):
            physical_offset, size = units.at(name, queue_offset)
            if log.end <= physical_offset < (log.tail.end if log.tail else log.end):
                self._result.tail.append(RecordLocation(name, queue_offset, physical_offset, size))
            elif last_at < physical_offset < log.end and (
                physical_offset in self._strays or _hole_at(log.holes, physical_offset)
            ):
                lost.append(queue_offset)
            else:
                break
        if lost:
            self._missing.append(_Missing(name, last_at, _LOG_END, lost))

    def _epochs(self, name: QueueName, records: QueueRecords) -> Iterator[list[RecordLocation]]:
        """Split the records of a queue where it starts at 0 again.

        It does after its topic was deleted and created again. A record that claims offset 0 in the middle may also be
        damaged. It starts an epoch if the next record has offset 1, or its unit is the first of the queue, unless it
        only lost the next offset of the old epoch:

            5 6 0 1 2     an epoch begins at 0
            5 6 0 8 9     offset 7 is damaged
            0 0 1 2       an epoch begins at the second 0, unless a similar queue lacks offset 0 and one of them is its
        """
        all_records = _locations(name, records)
        begin = 0
        for k, record in enumerate(all_records):
            if record.queue_offset == 0 and k > begin:
                before = all_records[k - 1].queue_offset
                following = all_records[k + 1].queue_offset if k + 1 < len(all_records) else -1
                is_next = self._units.at(name, before + 1)[0] == record.physical_offset
                restarts = following == 1 or self._units.at(name, 0)[0] == record.physical_offset
                is_rival = k == begin + 1 and self._belongs_elsewhere(record)
                continues = is_next or is_rival or (before and following in (before + 1, before + 2))
                if restarts and not continues:
                    yield all_records[begin:k]
                    begin = k
        if all_records:
            yield all_records[begin:]

    def _trusted(self, epoch: list[RecordLocation], last: int) -> list[RecordLocation]:
        """Return an epoch's trusted records, given the last offset before; the others become strays."""
        # 1. Of several records with one offset trust only the one that its unit points at.
        rivals: dict[int, int] = {}
        for record in epoch:
            rivals[record.queue_offset] = rivals.get(record.queue_offset, 0) + 1
        candidates = []
        for record in epoch:
            known = self._units.at(record.queue, record.queue_offset)[0]
            if rivals[record.queue_offset] > 1 and known != record.physical_offset:
                self._strays[record.physical_offset] = record
            else:
                candidates.append(record)
        # 2. Trust the longest rising sequence. A damaged offset that is far too high may end it: drop that and retry.
        while kept := _longest_rising(candidates, last):
            if self._can_end(kept, candidates, last):
                break
            self._strays[kept[-1].physical_offset] = kept[-1]
            candidates.remove(kept[-1])
        trusted = {record.physical_offset for record in kept}
        for record in candidates:
            if record.physical_offset not in trusted:
                self._strays[record.physical_offset] = record
        return kept

    def _can_end(self, kept: list[RecordLocation], candidates: list[RecordLocation], last: int) -> bool:
        """Tell whether enough records can be lost before the last kept one for its offset."""
        tail, before = kept[-1], kept[-2] if len(kept) > 1 else None
        expected = before.queue_offset + 1 if before else last + 1
        if tail.queue_offset == expected or self._units.at(*tail[:2])[0] == tail.physical_offset:
            return True
        if before is None and len(candidates) == 1 and self._belongs_elsewhere(tail):
            return False
        begin = before.physical_offset if before else self._log.begin - 1
        is_expected = self._units.at(tail.queue, expected)[0] == tail.physical_offset
        untrusted = sum(1 for record in candidates if begin < record.physical_offset < tail.physical_offset)
        room = self._room(begin, tail) + self._count_hidden(begin, tail, expected)
        return not is_expected and room + untrusted >= tail.queue_offset - expected

    def _count_hidden(self, begin: int, tail: RecordLocation, expected: int) -> int:
        """Count the offsets from `expected` up to the tail's whose records may look like others.

        Such a record is marked as prepared, or one of two that claim the same offset of a similar queue.
        """
        found = set()
        for at, (queue, queue_offset, _) in self._log.undispatched.items():
            if (
                queue == tail.queue
                and begin < at < tail.physical_offset
                and expected <= queue_offset < tail.queue_offset
            ):
                found.add(queue_offset)
        for name, records in self._log.queues.items():
            if _is_similar(name, tail.queue):
                offsets = records.queue_offsets
                for queue_offset, at in zip(offsets, records.physical_offsets, strict=True):
                    is_between = begin < at < tail.physical_offset and expected <= queue_offset < tail.queue_offset
                    if is_between and at not in self._strays and offsets.count(queue_offset) > 1:
                        found.add(queue_offset)
        return len(found)

    def _belongs_elsewhere(self, lone: RecordLocation) -> bool:
        """Tell whether a record can belong to a similar queue that lacks its offset."""
        for name, records in self._log.queues.items():
            offsets = records.queue_offsets
            if _is_similar(name, lone.queue) and offsets and max(offsets) + 1 >= lone.queue_offset not in offsets:
                return True
        return False

    def _room(self, begin: int, tail: RecordLocation) -> int:
        """Return the number of records that can be lost between two records of a queue.

        They can be lost in holes, or as strays.
        """
        smallest = MIN_RECORD_SIZE + len(tail.queue[0].encode())
        holes = [hole for hole in self._log.holes if begin < hole.begin < tail.physical_offset]
        strays = sum(1 for at in self._strays if begin < at < tail.physical_offset)
        return sum((hole.end - hole.begin) // smallest for hole in holes) + strays

    # -- step 2: strays -----------------------------------------------------------------------------------------------

    def _correct_known(self) -> None:
        """Give missing offsets to records that units know, and to the queue's strays in between."""
        for missing in self._missing:
            for queue_offset in missing.offsets[:]:
                record = self._known_record(missing, queue_offset)
                if record is not None:
                    self._assign(record, missing, queue_offset)
            own = [
                stray
                for at, stray in sorted(self._strays.items())
                if missing.spans(at) and stray.queue == missing.queue
            ]
            if len(own) == len(missing.offsets):
                for stray, queue_offset in zip(own, missing.offsets[:], strict=True):
                    self._assign(stray, missing, queue_offset)
            # Of several that claim one offset, a record that could be one of another queue comes last.
            for stray in sorted(own, key=self._fits_another_queue):
                if stray.queue_offset in missing.offsets and stray.physical_offset in self._strays:
                    del self._strays[stray.physical_offset]
                    missing.offsets.remove(stray.queue_offset)

    def _known_record(self, missing: _Missing, queue_offset: int) -> RecordLocation | None:
        """Return the record of a missing offset: marked as prepared, or where its unit points."""
        for at, (queue, claimed, size) in self._log.undispatched.items():
            if missing.spans(at) and (queue, claimed) == (missing.queue, queue_offset):
                return RecordLocation(missing.queue, queue_offset, at, size)
        physical_offset, size = self._units.at(missing.queue, queue_offset)
        stray = self._strays.get(physical_offset) or self._unconfirmed(physical_offset)
        if (
            stray is not None
            and stray.size == size
            and missing.spans(physical_offset)
            and len(stray.queue[0].encode()) == len(missing.queue[0].encode())
        ):
            return stray
        return None

    def _unconfirmed(self, physical_offset: int) -> RecordLocation | None:
        """Return the record at a physical offset, or None.

        Only if it is the last of its queue and no unit points at it there.
        """
        for name, records in self._log.queues.items():
            if records.physical_offsets and records.physical_offsets[-1] == physical_offset:
                last = RecordLocation(name, records.queue_offsets[-1], physical_offset, records.sizes[-1])
                return last if self._units.at(name, last.queue_offset)[0] != physical_offset else None
        return None

    def _fits_another_queue(self, stray: RecordLocation) -> bool:
        """Tell whether a similar queue lacks the stray's queue offset here in the log."""
        return any(
            missing.spans(stray.physical_offset)
            and stray.queue_offset in missing.offsets
            and _is_similar(stray.queue, missing.queue)
            for missing in self._missing
        )

    def _correct_neighbours(self) -> None:
        """Give missing offsets to strays that claim them in a queue with a similar name."""
        for missing in self._missing:
            for stray in list(self._strays.values()):
                if (
                    missing.spans(stray.physical_offset)
                    and stray.queue_offset in missing.offsets
                    and _is_similar(stray.queue, missing.queue)
                ):
                    self._assign(stray, missing, stray.queue_offset)

    def _correct_ends(self) -> None:
        """Give strays after the last trusted record of their queue the next offsets.

        They get them if the units confirm it, if one of them claims the next offset, or if all claim 0 or all the last
        one. Otherwise a stray that has the right offset is trusted only if all before it are.
        """
        after: dict[QueueName, list[RecordLocation]] = {}
        for stray in sorted(self._strays.values(), key=lambda stray: stray.physical_offset):
            last, last_at = self._ends[stray.queue]
            if stray.physical_offset > last_at:
                after.setdefault(stray.queue, []).append(stray)
        for name, strays in after.items():
            last, _ = self._ends[name]
            claims = {stray.queue_offset for stray in strays}
            are_next = last + 1 in claims or claims == {0} or claims == {last + len(strays)}
            is_complete = True
            for queue_offset, stray in enumerate(strays, last + 1):
                is_known = self._units.at(name, queue_offset) == (stray.physical_offset, stray.size)
                if stray.queue_offset == queue_offset and (is_known or is_complete):
                    del self._strays[stray.physical_offset]
                elif is_known or are_next:
                    self._correct(stray, name, queue_offset)
                else:
                    is_complete = False

    def _assign(self, record: RecordLocation, missing: _Missing, queue_offset: int) -> None:
        """Give a missing offset to a record."""
        missing.offsets.remove(queue_offset)
        self._correct(record, missing.queue, queue_offset)

    def _correct(self, claimed: RecordLocation, name: QueueName, queue_offset: int) -> None:
        self._strays.pop(claimed.physical_offset, None)
        actual = RecordLocation(name, queue_offset, claimed.physical_offset, claimed.size)
        self._result.corrections.append((claimed, actual))

    # -- step 3: lost records -----------------------------------------------------------------------------------------

    def _place_placeholders(self) -> None:
        """Find a hole for each offset still missing, in order; offsets without one become gaps."""
        result = self._result
        left = {hole.begin: hole.end - hole.begin for hole in result.holes}
        for missing in sorted(self._missing, key=lambda missing: missing.begin):
            name, begin, end, offsets = missing
            need = MIN_RECORD_SIZE + len(name[0].encode())
            between = [hole for hole in result.holes if begin < hole.begin < end]
            for queue_offset in offsets:
                # 1. The hole that the unit points into, or else the first with room.
                physical_offset, size = self._units.at(name, queue_offset)
                known = _hole_at(between, physical_offset)
                options = [known] if known and left[known.begin] >= need else []
                options += [hole for hole in between if left[hole.begin] >= need]
                # 2. Without one: a record that is alone in an unknown similar queue, or a gap.
                if not options:
                    if (alone := self._alone(missing, queue_offset)) is not None:
                        self._correct(alone, name, queue_offset)
                    elif end != _LOG_END:
                        result.gaps.append(RecordLocation(name, queue_offset, end, 0))
                    continue
                # 3. The next offsets must not be in earlier holes.
                hole = options[0]
                between = [other for other in between if other.begin >= hole.begin]
                left[hole.begin] -= need
                lost = RecordLocation(name, queue_offset, physical_offset if known else -1, size if known else 0)
                result.placeholders.setdefault(hole.begin, []).append(lost)

    def _alone(self, missing: _Missing, queue_offset: int) -> RecordLocation | None:
        """Return the record that claims an offset in a similar one-message queue without units."""
        for name, records in self._log.queues.items():
            if (
                list(records.queue_offsets) == [queue_offset]
                and missing.spans(records.physical_offsets[0])
                and not self._units.end(name)
                and _is_similar(name, missing.queue)
            ):
                return RecordLocation(name, queue_offset, records.physical_offsets[0], records.sizes[0])
        return None

    def _close_gaps(self) -> None:
        """Move the records and placeholders after each gap of a queue up by one."""
        result = self._result
        for name in {gap.queue for gap in result.gaps}:
            gaps = [gap.physical_offset for gap in result.gaps if gap.queue == name]
            corrected = {claimed.physical_offset: (claimed, actual) for claimed, actual in result.corrections}
            strays = {stray.physical_offset for stray in result.strays}
            pairs = [
                (record, record)
                for record in _locations(name, self._log.queues[name])
                if record.physical_offset not in corrected and record.physical_offset not in strays
            ]
            pairs += [pair for pair in corrected.values() if pair[1].queue == name]
            for claimed, actual in pairs:
                count = sum(1 for gap in gaps if gap <= claimed.physical_offset)
                if count:
                    if claimed.physical_offset in corrected:
                        result.corrections.remove((claimed, actual))
                    moved = actual._replace(queue_offset=actual.queue_offset - count)
                    result.corrections.append((claimed, moved))
            for begin, placeholders in result.placeholders.items():
                count = sum(1 for gap in gaps if gap <= begin)
                result.placeholders[begin] = [
                    one._replace(queue_offset=one.queue_offset - count * (one.queue == name)) for one in placeholders
                ]


def _locations(name: QueueName, records: QueueRecords) -> list[RecordLocation]:
    """Return the locations that a queue's records claim, in log order."""
    rows = zip(records.queue_offsets, records.physical_offsets, records.sizes, strict=True)
    return [RecordLocation(name, *row) for row in rows]


def _hole_at(holes: list[Hole], physical_offset: int) -> Hole | None:
    """Return the hole that contains a physical offset; `holes` are in order."""
    number = bisect_left(holes, physical_offset + 1, key=lambda hole: hole.begin) - 1
    return holes[number] if number >= 0 and physical_offset < holes[number].end else None


def _longest_rising(records: list[RecordLocation], last: int) -> list[RecordLocation]:
    """Return the longest subsequence with rising queue offsets greater than `last`. O(n log n).

    `ends[k]` is the smallest queue offset that a rising subsequence of length k + 1 can end with, so it rises, too, and
    each record finds by bisection the longest subsequence that it continues:

        offsets      0      1       7          3          5
        ends         [0]    [0 1]   [0 1 7]    [0 1 3]    [0 1 3 5]
    """
    ends: list[int] = []
    end_numbers: list[int] = []
    """The number of the record that each of `ends` is from."""
    previous: list[int] = []
    """For each record the number of the record before it in its subsequence; -1 for none."""
    for number, record in enumerate(records):
        if record.queue_offset <= last:
            previous.append(-1)
            continue
        at = bisect_left(ends, record.queue_offset)
        previous.append(end_numbers[at - 1] if at else -1)
        if at == len(ends):
            ends.append(record.queue_offset)
            end_numbers.append(number)
        else:
            ends[at], end_numbers[at] = record.queue_offset, number
    kept = []
    number = end_numbers[-1] if end_numbers else -1
    while number >= 0:
        kept.append(records[number])
        number = previous[number]
    return kept[::-1]


def _is_similar(one: QueueName, other: QueueName) -> bool:
    """Tell whether two queues differ only in queue id or one byte of the topic."""
    letters, others = one[0].encode(), other[0].encode()
    if len(letters) != len(others):
        return False
    return sum(a != b for a, b in zip(letters, others, strict=True)) + (one[1] != other[1]) == 1


def _why(stray: RecordLocation) -> str:
    return f"the record claims to be {stray}, which its neighbours contradict"
