"""Which places in the queues a damaged log has lost, and which records claim a place that is not theirs.

A record's CRC covers its body only, so a record that looks sound may lie about its topic, queue or queueOffset. Two
witnesses tell: in every queue the queue offsets count up by one in the order of the log, and the ConsumeQueues of the
damaged store say which record lies at each place. Of a queue whose records contradict each other the longest rising
sequence of queue offsets is believed; a record outside it is a stray.

    a missing place, and a stray that the units know to lie there               the stray is mended
    as many missing places as there are strays of their queue in between        these are mended, in order
    a missing place that a stray claims but for one byte of the queue's name    the stray is mended
    any other stray                                                             becomes a hole
    any other missing place                                                     gets a stand-in, in a hole between
    a missing place without a hole that could take it                           what follows in the queue moves up
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
from rucola.store.tools.salvage import Hole, QueueName, SalvagedLog, Sequence

_NOWHERE: Final = 1 << 62


class RecordLocation(NamedTuple):
    """Where a record is, or says that it is: its queue, queue offset, physical offset and size."""

    queue: QueueName
    queue_offset: int
    physical_offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.queue[0]}|{self.queue[1]}|{self.queue_offset}"


@dataclass(slots=True)
class Reconstruction:
    """The outcome. All holes in order, those from strays among them; stand-ins by hole; strays and their true place."""

    holes: list[Hole]
    stand_ins: dict[int, list[RecordLocation]] = field(default_factory=dict)
    """{physical offset at which a hole begins: the places that it has to make up for}; a size of 0 is not known."""
    mended: list[tuple[RecordLocation, RecordLocation]] = field(default_factory=list)
    """(what a record said, where it belongs)."""
    strays: list[RecordLocation] = field(default_factory=list)
    """Records that became holes."""
    tail: list[RecordLocation] = field(default_factory=list)
    """Places known to the units alone, whose records should lie behind the end of the log."""
    gaps: list[RecordLocation] = field(default_factory=list)
    """Missing places that no hole could take, so that what follows in the queue had to move up."""


class SurvivingUnits:
    """The ConsumeQueues of a damaged store: a witness that may itself be damaged or missing."""

    def __init__(self, directory: Path) -> None:
        self._queues: dict[QueueName, ConsumeQueue] = {}
        for topic, queue_id, path in queue_directories(directory):
            try:
                self._queues[topic, queue_id] = ConsumeQueue(topic, queue_id, MappedFileQueue.open(path))
            except StoreCorrupt:
                continue

    def at(self, name: QueueName, queue_offset: int) -> tuple[int, int]:
        """Return (physical offset, size) of a unit, or (-1, 0) where none is."""
        queue = self._queues.get(name)
        if queue is None or not queue.files.begin // UNIT_SIZE <= queue_offset < queue.max_offset:
            return -1, 0
        physical_offset, size, _ = queue.unit(queue_offset)
        return (-1, 0) if size == FILLER_SIZE else (physical_offset, size)

    def names(self) -> list[QueueName]:
        """The queues that there are."""
        return list(self._queues)

    def begin(self, name: QueueName, physical_offset: int) -> int | None:
        """Return the first queue offset whose record lies at `physical_offset` or behind, or None without units."""
        queue = self._queues.get(name)
        if queue is None or queue.max_offset <= queue.min_offset:
            return None
        return queue.first_at_or_behind(physical_offset)

    def end(self, name: QueueName) -> int:
        """Return the queue offset behind the last unit."""
        queue = self._queues.get(name)
        return queue.max_offset if queue else 0

    def close(self) -> None:
        """Close all files."""
        for queue in self._queues.values():
            queue.files.close()


def reconstruct_queues(found: SalvagedLog, units: SurvivingUnits) -> Reconstruction:
    """Compare the records of each queue with each other and with the units."""
    return _Comparison(found, units).run()


class _Comparison:
    def __init__(self, found: SalvagedLog, units: SurvivingUnits) -> None:
        self._found = found
        self._units = units
        self._strays: dict[int, RecordLocation] = {}
        self._missing: list[tuple[QueueName, int, int, list[int]]] = []
        """(queue, physical offset before, physical offset behind, queue offsets that are missing in between)."""
        self._ends: dict[QueueName, tuple[int, int]] = {}
        """The queue offset and the physical offset of the last record that is believed."""
        self._places = Reconstruction([])

    def run(self) -> Reconstruction:
        found, places = self._found, self._places
        # A record that names a queue of which there is nothing else comes first, so that it is known for a stray.
        sequences = {name: found.queues.get(name) or Sequence() for name in {*found.queues, *self._units.names()}}
        for name in sorted(sequences, key=lambda name: (len(sequences[name].sizes), name)):
            self._compare(name, sequences[name])
        self._mend()
        places.strays = sorted(self._strays.values(), key=lambda stray: stray.physical_offset)
        holes = [
            Hole(s.physical_offset, s.physical_offset + s.size, _why(s), found.last_timestamp) for s in places.strays
        ]
        places.holes = sorted([*found.holes, *holes])
        self._make_up()
        self._close_gaps()
        return places

    # -- one queue ----------------------------------------------------------------------------------------------------

    def _compare(self, name: QueueName, sequence: Sequence) -> None:
        found, units = self._found, self._units
        known = units.begin(name, found.begin)
        claimed = np.frombuffer(sequence.queue_offsets, np.int64)
        first = int(claimed[0]) if len(claimed) else 0
        begin = 0 if found.begin == 0 else first if known is None else min(known, first) if len(claimed) else known
        if len(claimed) and first == begin and bool((np.diff(claimed) == 1).all()):
            last, last_at = int(claimed[-1]), sequence.physical_offsets[-1]
        else:
            last, last_at = begin - 1, found.begin - 1
            for epoch in self._epochs(name, sequence):
                last = begin - 1
                for place in self._believed(epoch, last):
                    if place.queue_offset > last + 1:
                        missing = [*range(last + 1, place.queue_offset)]
                        self._missing.append((name, last_at, place.physical_offset, missing))
                    last, last_at = place.queue_offset, place.physical_offset
                begin = 0
        self._ends[name] = last, last_at
        lost = []
        for queue_offset in range(last + 1, units.end(name)):
            physical_offset, size = units.at(name, queue_offset)
            if found.end <= physical_offset < (found.tail.end if found.tail else found.end):
                self._places.tail.append(RecordLocation(name, queue_offset, physical_offset, size))
            elif last_at < physical_offset < found.end and (
                physical_offset in self._strays or self._hole_at(found.holes, physical_offset)
            ):
                lost.append(queue_offset)
            else:
                break
        if lost:
            self._missing.append((name, last_at, _NOWHERE, lost))

    def _epochs(self, name: QueueName, sequence: Sequence) -> Iterator[list[RecordLocation]]:
        """Part the records of a queue where its topic was deleted and made anew, so that it began with 0 again."""
        rows = zip(sequence.queue_offsets, sequence.physical_offsets, sequence.sizes, strict=True)
        all_places = [RecordLocation(name, *row) for row in rows]
        begin = 0
        for k, place in enumerate(all_places):
            if place.queue_offset == 0 and k > begin:
                before = all_places[k - 1].queue_offset
                following = all_places[k + 1].queue_offset if k + 1 < len(all_places) else -1
                known = self._units.at(name, before + 1)[0] == place.physical_offset
                begins_anew = following == 1 or self._units.at(name, 0)[0] == place.physical_offset
                if begins_anew and not known and (following not in (before + 1, before + 2) or not before):
                    yield all_places[begin:k]
                    begin = k
        if all_places:
            yield all_places[begin:]

    def _believed(self, epoch: list[RecordLocation], last: int) -> list[RecordLocation]:
        """Return the records whose queue offsets rise; the others are strays."""
        units = self._units
        by_place: dict[int, list[RecordLocation]] = {}
        for place in epoch:
            by_place.setdefault(place.queue_offset, []).append(place)
        candidates = []
        for place in epoch:
            rivals = by_place[place.queue_offset]
            if len(rivals) > 1 and units.at(place.queue, place.queue_offset)[0] != place.physical_offset:
                self._strays[place.physical_offset] = place
            else:
                candidates.append(place)
        while kept := _rising(candidates, last):
            if self._can_end(kept, candidates, last):
                break
            self._strays[kept[-1].physical_offset] = kept[-1]
            candidates.remove(kept[-1])
        believed = {place.physical_offset for place in kept}
        for place in candidates:
            if place.physical_offset not in believed:
                self._strays[place.physical_offset] = place
        return kept

    def _can_end(self, kept: list[RecordLocation], candidates: list[RecordLocation], last: int) -> bool:
        """Tell whether the last of these records can be where it says, after so many as it says."""
        tail, before = kept[-1], kept[-2] if len(kept) > 1 else None
        expected = before.queue_offset + 1 if before else last + 1
        if tail.queue_offset == expected or self._units.at(*tail[:2])[0] == tail.physical_offset:
            return True
        if before is None and len(candidates) == 1 and self._is_known_elsewhere(tail):
            return False
        begin = before.physical_offset if before else self._found.begin - 1
        elsewhere = self._units.at(tail.queue, expected)[0] == tail.physical_offset
        unbelieved = sum(1 for place in candidates if begin < place.physical_offset < tail.physical_offset)
        return not elsewhere and self._room(begin, tail) + unbelieved >= tail.queue_offset - expected

    def _is_known_elsewhere(self, lone: RecordLocation) -> bool:
        """Tell whether the one record of a queue rather belongs to another queue of nearly the same name, which lacks
        that queue offset and goes on behind it."""
        for name, sequence in self._found.queues.items():
            offsets = sequence.queue_offsets
            if _is_alike(name, lone.queue) and offsets and max(offsets) + 1 >= lone.queue_offset not in offsets:
                return True
        return False

    def _room(self, begin: int, tail: RecordLocation) -> int:
        """Return how many records could have lain in the holes between two records of a queue."""
        least = MIN_RECORD_SIZE + len(tail.queue[0].encode())
        holes = [hole for hole in self._found.holes if begin < hole.begin < tail.physical_offset]
        strays = sum(1 for at in self._strays if begin < at < tail.physical_offset)
        return sum((hole.end - hole.begin) // least for hole in holes) + strays

    def _hole_at(self, holes: list[Hole], physical_offset: int) -> Hole | None:
        number = bisect_left(holes, physical_offset + 1, key=lambda hole: hole.begin) - 1
        return holes[number] if number >= 0 and physical_offset < holes[number].end else None

    # -- what is missing ----------------------------------------------------------------------------------------------

    def _mend(self) -> None:
        """Give strays the places that they are missing from."""
        for name, begin, end, missing in self._missing:
            for queue_offset in missing[:]:
                physical_offset, size = self._units.at(name, queue_offset)
                hidden = self._hidden(name, queue_offset, begin, end)
                if hidden is not None:
                    self._settle(hidden, name, queue_offset, missing)
                    continue
                stray = self._strays.get(physical_offset) or self._unconfirmed(physical_offset)
                if (
                    stray is not None
                    and stray.size == size
                    and begin < physical_offset < end
                    and len(stray.queue[0].encode()) == len(name[0].encode())
                ):
                    self._settle(stray, name, queue_offset, missing)
            own = [s for at, s in sorted(self._strays.items()) if begin < at < end and s.queue == name]
            if len(own) == len(missing):
                for stray, queue_offset in zip(own, missing[:], strict=True):
                    self._settle(stray, name, queue_offset, missing)
            for stray in own:  # the first of two that claim one place has it
                if stray.queue_offset in missing and stray.physical_offset in self._strays:
                    del self._strays[stray.physical_offset]
                    missing.remove(stray.queue_offset)
        for name, begin, end, missing in self._missing:
            for stray in list(self._strays.values()):
                between = begin < stray.physical_offset < end
                if between and stray.queue_offset in missing and _is_alike(stray.queue, name):
                    self._settle(stray, name, stray.queue_offset, missing)
        self._mend_ends()

    def _mend_ends(self) -> None:
        """Give strays behind the last believed record of their queue the next places, where one of them claims it or
        the units know it to be there."""
        behind: dict[QueueName, list[RecordLocation]] = {}
        for stray in sorted(self._strays.values(), key=lambda stray: stray.physical_offset):
            last, last_at = self._ends[stray.queue]
            if stray.physical_offset > last_at:
                behind.setdefault(stray.queue, []).append(stray)
        for name, strays in behind.items():
            last, _ = self._ends[name]
            claims = {stray.queue_offset for stray in strays}
            for number, stray in enumerate(strays, last + 1):
                known = self._units.at(name, number) == (stray.physical_offset, stray.size)
                if stray.queue_offset == number:
                    del self._strays[stray.physical_offset]
                elif known or last + 1 in claims or claims == {0}:
                    self._settle(stray, name, number, [number])

    def _hidden(self, name: QueueName, queue_offset: int, begin: int, end: int) -> RecordLocation | None:
        """Return the record that is what is missing, but for a flag that says that it takes no place in its queue."""
        for physical_offset, (queue, at, size) in self._found.without_place.items():
            if begin < physical_offset < end and (queue, at) == (name, queue_offset):
                return RecordLocation(name, queue_offset, physical_offset, size)
        return None

    def _unconfirmed(self, physical_offset: int) -> RecordLocation | None:
        """Return the record there if it is the last of the queue that it claims, which the units know nothing of."""
        for name, sequence in self._found.queues.items():
            if sequence.physical_offsets and sequence.physical_offsets[-1] == physical_offset:
                place = RecordLocation(name, sequence.queue_offsets[-1], physical_offset, sequence.sizes[-1])
                return place if self._units.at(name, place.queue_offset)[0] != physical_offset else None
        return None

    def _settle(self, stray: RecordLocation, name: QueueName, queue_offset: int, missing: list[int]) -> None:
        self._strays.pop(stray.physical_offset, None)
        missing.remove(queue_offset)
        self._places.mended.append((stray, RecordLocation(name, queue_offset, stray.physical_offset, stray.size)))

    def _make_up(self) -> None:
        """Find a hole for each place that is still missing."""
        places = self._places
        left = {hole.begin: hole.end - hole.begin for hole in places.holes}
        for name, begin, end, missing in sorted(self._missing, key=lambda item: item[1]):
            need = MIN_RECORD_SIZE + len(name[0].encode())
            between = [hole for hole in places.holes if begin < hole.begin < end]
            for queue_offset in missing:
                physical_offset, size = self._units.at(name, queue_offset)
                known = self._hole_at(between, physical_offset)
                options = [known] if known and left[known.begin] >= need else []
                options += [hole for hole in between if left[hole.begin] >= need]
                if not options:
                    if (alone := self._alone(name, queue_offset, begin, end)) is not None:
                        self._settle(alone, name, queue_offset, [queue_offset])
                    elif end != _NOWHERE:
                        places.gaps.append(RecordLocation(name, queue_offset, end, 0))
                    continue
                hole = options[0]
                between = [other for other in between if other.begin >= hole.begin]
                left[hole.begin] -= need
                places.stand_ins.setdefault(hole.begin, []).append(
                    RecordLocation(name, queue_offset, physical_offset if known else -1, size if known else 0)
                )

    def _alone(self, name: QueueName, queue_offset: int, begin: int, end: int) -> RecordLocation | None:
        """Return the record that claims this queue offset in a queue of one message of which the units know nothing."""
        for other, sequence in self._found.queues.items():
            if (
                list(sequence.queue_offsets) == [queue_offset]
                and begin < sequence.physical_offsets[0] < end
                and not self._units.end(other)
                and _is_alike(other, name)
            ):
                return RecordLocation(other, queue_offset, sequence.physical_offsets[0], sequence.sizes[0])
        return None

    def _close_gaps(self) -> None:
        """Let the records behind a gap move up in their queue."""
        places = self._places
        for name in {gap.queue for gap in places.gaps}:
            gaps = [gap for gap in places.gaps if gap.queue == name]
            moved = {said.physical_offset: (said, belongs) for said, belongs in places.mended}
            sequence = self._found.queues[name]
            rows = zip(sequence.queue_offsets, sequence.physical_offsets, sequence.sizes, strict=True)
            own = [RecordLocation(name, *row) for row in rows if row[1] not in moved]
            strays = {stray.physical_offset for stray in places.strays}
            pairs = [(place, place) for place in own if place.physical_offset not in strays]
            pairs += [pair for pair in moved.values() if pair[1].queue == name]
            for said, belongs in pairs:
                count = sum(1 for gap in gaps if gap.physical_offset <= said.physical_offset)
                if count:
                    if said.physical_offset in moved:
                        places.mended.remove((said, belongs))
                    at = belongs.queue_offset - count
                    places.mended.append((said, belongs._replace(queue_offset=at)))
            for begin, stand_ins in places.stand_ins.items():
                count = sum(1 for gap in gaps if gap.physical_offset <= begin)
                places.stand_ins[begin] = [
                    one._replace(queue_offset=one.queue_offset - count * (one.queue == name)) for one in stand_ins
                ]


def _rising(places: list[RecordLocation], last: int) -> list[RecordLocation]:
    """Return the longest sequence of places, in order, whose queue offsets rise and are greater than `last`."""
    ends: list[int] = []
    end_of: list[int] = []
    previous: list[int] = []
    for number, place in enumerate(places):
        if place.queue_offset <= last:
            previous.append(-1)
            continue
        at = bisect_left(ends, place.queue_offset)
        previous.append(end_of[at - 1] if at else -1)
        if at == len(ends):
            ends.append(place.queue_offset)
            end_of.append(number)
        else:
            ends[at], end_of[at] = place.queue_offset, number
    kept = []
    number = end_of[-1] if end_of else -1
    while number >= 0:
        kept.append(places[number])
        number = previous[number]
    return kept[::-1]


def _is_alike(one: QueueName, other: QueueName) -> bool:
    """Tell whether two queues differ by no more than the queue id, or one byte of the topic."""
    letters, others = one[0].encode(), other[0].encode()
    if len(letters) != len(others):
        return False
    return sum(a != b for a, b in zip(letters, others, strict=True)) + (one[1] != other[1]) == 1


def _why(stray: RecordLocation) -> str:
    return f"the record claims to be {stray}, which its neighbours contradict"
