"""Timer messages: delivery at an individual time, up to a hundred years ahead.

Clients request a time by TIMER_DELIVER_MS (milliseconds since 1970), TIMER_DELAY_SEC or TIMER_DELAY_MS. Such a message
is stored in queue 0 of rmq_sys_wheel_timer, with REAL_TOPIC, REAL_QID and its due time TIMER_OUT_MS, which is also the
tagsCode of its unit. A time in the past means immediate delivery; a delay level takes precedence over a time.

The queue is ordered by arrival. Therefore the nearest messages are kept in memory:

    due times    |  delivered  |  near: a heap of a capacity to twice that  |  far: only on disk
                               ^ now                                           ^ horizon

Invariant: every waiting message with a key (due time, queue offset) below the horizon is in the heap. The algorithm:

1. A new message goes into the heap if it is below the horizon (or if there is none), else it is far.
2. The capacity is NEAR_CAPACITY, or a SCANS-th of the far messages. If the heap exceeds it twice, the horizon moves
   back to the key at the capacity; the rest becomes far.
3. `deliver` pops due messages, DELIVERY_BATCH per call.
4. When the heap is half empty and far messages exist, a scan of the queue finds the next nearest ones, one segment of
   SEGMENT_UNITS units per call, so that requests continue in between.
5. At the end of the scan the nearest, as many as the capacity, enter the heap, and the horizon moves after the last of
   them. If all far messages fit, there is no horizon.

Of far messages, memory holds the least and greatest due time per segment. A scan skips segments whose messages are all
delivered, and those later than the nearest messages found so far.

The progress is a checkpoint in `config/timer.json`, written every 10 s after a flush, and at the stop (not before the
first timer message, so that Apache's broker finds no unknown file):

    {"deliveredMs": d, "queueOffset": q, "rolledOffset": r, "logEnd": e}        e: see `broker.log_end`

Of the units before q, all that were due at d or earlier are delivered; those before r were rolled: put again at the end
of the same queue, with TIMER_ROLL_TIMES incremented, before their log file is deleted (see `broker.delivery.rolling`).

A recall is a timer message with TIMER_DEL_UNIQKEY, the unique key of another message of the same topic, and is due a
millisecond before it. Instead of a delivery, the key is remembered until all messages of that time are delivered; a
message with it is skipped. Until then the recall counts as waiting.

Delivery is at least once, with duplicates found by their unique key after a crash, as for delay levels. A put that
fails is retried; deliveredMs, rolledOffset and the log file stay until it succeeds.

Corresponds to `TimerMessageStore` of Apache RocketMQ 5; 4.9.8 has no timer messages and delivers them immediately.
Deliberate differences: millisecond precision instead of seconds; a limit of a hundred years instead of timerMaxDelaySec
(three days); no timer wheel and no timerlog, because the ConsumeQueue contains the same information.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rucola.broker.delivery.delay import redirect_by_level
from rucola.broker.delivery.due_delivery import DELIVERY_BATCH, DueDelivery, indexed
from rucola.broker.delivery.internal_puts import Backoff, InternalPuts
from rucola.broker.delivery.progress import ProgressFile
from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.pending import DUE_BOUNDS_MS, DUE_NAMES, DueCounts
from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import MessageExt, properties
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rucola.store.config import PutMessageStatus
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

TIMER_PROPERTIES = (properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS, properties.TIMER_DELIVER_MS)
"""Properties that request a time; the first in this order counts."""
TIMER_FILE = "timer.json"
MAX_DELAY_MS = 100 * 366 * 24 * 3_600_000
"""A time beyond a hundred years is a mistake, such as microseconds."""
NEAR_CAPACITY = 1 << 13
"""Messages in the heap at least; twice as many for a short time."""
SCANS = 64
"""The heap has at least one of this number of far messages, so that each is scanned a few times, however many wait."""
SEGMENT_UNITS = 1 << 14
_COUNTED_PER_STEP: Final = 64

_QUEUE = (TIMER_TOPIC, 0)
_MEMBERS: Final = ("deliveredMs", "queueOffset", "rolledOffset")
_LATEST_MS = (1 << 63) - 1
_is_count = re.compile("[0-9]{1,9}").fullmatch

_Key = tuple[int, int]
"""(due time in ms, queue offset); messages are delivered in this order."""


def redirect_delayed(
    topic: str, queue_id: int, pairs: dict[str, str], level_count: int, now_ms: int
) -> tuple[str, int]:
    """Return topic and queue id to store in; a delayed message's target and due time are added to `pairs`.

    Raises InvalidMessage if the delay or the time is not a number.
    """
    target = redirect_by_level(topic, queue_id, pairs, level_count)
    if target[0] == SCHEDULE_TOPIC or properties.TIMER_OUT_MS in pairs:  # delayed by level, or delivered by the timer
        return target
    requested = next((name for name in TIMER_PROPERTIES if name in pairs), None)
    if requested is None:
        return target
    try:
        number = int(pairs[requested][:40])
    except ValueError:
        raise InvalidMessage(
            f"its property {requested} is {pairs[requested][:40]!r}; it must be a whole number", subject=requested
        ) from None
    due_ms = number if requested == properties.TIMER_DELIVER_MS else now_ms + number * _UNITS_MS[requested]
    if due_ms - now_ms > MAX_DELAY_MS:
        unit = "seconds" if requested == properties.TIMER_DELAY_SEC else "milliseconds"
        raise InvalidMessage(
            f"its property {requested} is {number} {unit}, more than a hundred years ahead; is it in another unit?",
            subject=requested,
        )
    if properties.TIMER_DEL_UNIQKEY in pairs:
        due_ms = max(due_ms, now_ms) - 1  # before the message
    elif due_ms <= now_ms:
        return target
    pairs[properties.TIMER_OUT_MS] = str(due_ms)
    pairs[properties.REAL_TOPIC] = topic
    pairs[properties.REAL_QID] = str(queue_id)
    return _QUEUE


_UNITS_MS = {properties.TIMER_DELAY_SEC: 1000, properties.TIMER_DELAY_MS: 1}


class TimerCheckpoint(NamedTuple):
    delivered_ms: int
    queue_offset: int
    rolled_offset: int


@dataclass(slots=True)
class _FarSegment:
    least_ms: int
    greatest_ms: int


@dataclass(slots=True)
class _Scan:
    """Scan in progress, of the units before `end`."""

    segments: list[int]
    """Remaining segments, the next one last."""
    end: int
    capacity: int
    found: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """Due times and queue offsets, each of shape (n, 2)."""
    arrived: list[_Key] = field(default_factory=list)
    """Far messages that arrived during the scan."""
    count: int = 0
    limit_ms: int | None = None
    """Due time of the last message that fits, once more were found. Later messages stay far."""

    def keep_nearest(self) -> npt.NDArray[np.int64]:
        """Drop all but the `capacity` nearest messages found, and return those in order of delivery."""
        keys = np.concatenate([*self.found, np.array(self.arrived, np.int64).reshape(-1, 2)])
        # By due time, then by queue offset: the last key of lexsort is the first to compare.
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        if len(order) > self.capacity:
            self.limit_ms = int(keys[order[self.capacity - 1], 0])
        nearest: npt.NDArray[np.int64] = keys[order[: self.capacity]]
        self.found, self.arrived, self.count = [nearest], [], len(nearest)
        return nearest


class TimerMessageService(DueDelivery[TimerCheckpoint]):
    """Delivers due timer messages of one store."""

    name = "timer messages"
    topic = TIMER_TOPIC

    def __init__(
        self,
        store: MessageStore,
        puts: InternalPuts,
        topics: TopicConfigTable,
        config_directory: Path,
        *,
        near_capacity: int = NEAR_CAPACITY,
        segment_units: int = SEGMENT_UNITS,
    ) -> None:
        super().__init__(store, puts, topics)
        self._backoff = Backoff()
        self.file: ProgressFile[TimerCheckpoint] = timer_file(config_directory)
        self._near_capacity = near_capacity
        self._segment_units = segment_units
        self._near: list[_Key] = []
        self._horizon: _Key | None = None
        """Least possible key of a far message; None without far messages."""
        self._far: dict[int, _FarSegment] = {}
        """Segments with far messages, by queue offset divided by `segment_units`."""
        self._scan: _Scan | None = None
        self._delivered_ms = 0
        self._end = 0
        """End offset of the units that are in the heap or counted as far."""
        self._rolled_offset = 0
        """Units before this queue offset were rolled, or do not wait."""
        self._recalled: defaultdict[int, set[tuple[str | None, str | None]]] = defaultdict(set)
        """By due time: topics and unique keys of recalled messages, of recalls that were due."""

    def load(self) -> None:
        # Units before its queue offset count as far, with unknown due times; later ones are processed as new arrivals.
        begin, end = self._store.min_offset(*_QUEUE), self._store.max_offset(*_QUEUE)
        stored = self.file.load(
            self._store.max_physical_offset,
            lambda stored: max(stored.queue_offset, stored.rolled_offset) > end,
        )
        # Retention may have deleted the start of the queue.
        self._rolled_offset = max(begin, min(stored.rolled_offset, end))
        self._end = max(self._rolled_offset, min(stored.queue_offset, end))
        # All before the first that waits is delivered, but what arrives from now on may be due before it.
        self._delivered_ms = min(stored.delivered_ms, self._store.last_store_timestamp)
        if self._rolled_offset < self._end:
            # Everything due at deliveredMs or before is delivered, so far messages begin one millisecond later.
            self._horizon = (min(stored.delivered_ms + 1, _LATEST_MS), 0)
            # Segments of 100 units, rolled up to 250 and an end of 420: segments 2, 3 and 4.
            for segment in range(self._rolled_offset // self._segment_units, -(-self._end // self._segment_units)):
                self._far[segment] = _FarSegment(0, _LATEST_MS)
        while units := self._store.units(*_QUEUE, self._end, self._segment_units):
            self.on_arrival(self._end + len(units), [due_ms for _, _, due_ms in units])
        self._check_duplicates_until_ms = self._store.last_store_timestamp

    def on_arrival(self, end: int, due_times_ms: Sequence[int]) -> None:
        # Step 1: below the horizon into the heap, else far.
        for queue_offset, due_ms in enumerate(due_times_ms, end - len(due_times_ms)):
            key = (due_ms, queue_offset)
            if self._horizon is None or key < self._horizon:
                heappush(self._near, key)
            else:
                self._put_far(key)
        self._end = end
        if len(self._near) > 2 * self._capacity:
            self._shrink_heap()

    def progress(self) -> TimerCheckpoint:
        """Return the progress: everything due before the first waiting message is delivered."""
        first = self._first()
        # A millisecond before the first that waits: others of its millisecond may be delivered already.
        return TimerCheckpoint(self._delivered_ms if first is None else first[0] - 1, self._end, self._rolled_offset)

    def due_steps(self, now_ms: int) -> Generator[None, None, DueCounts]:
        """Count the messages that wait, by due time, in small steps. One that is recalled counts until it is due."""
        due = DueCounts()
        self._store.max_offset(*_QUEUE)  # dispatches pending records now
        # What a put changes between two steps is counted before or after it.
        for step, (due_ms, queue_offset) in enumerate(self._near.copy()):
            if queue_offset >= self._rolled_offset:
                due.add(due_ms, now_ms)
            if step % _COUNTED_PER_STEP == 0:
                yield
        for segment in sorted(self._far):
            if (horizon := self._horizon) is None:
                break
            units = self._far_keys(segment, horizon, self._end)[:, 0]
            for place, count in enumerate(_counts(units - now_ms)):
                due.counts[place] += count
            due.last_due_ms = max(due.last_due_ms, int(units.max(initial=0)))
            yield
        return due

    def deliver(self, now_ms: int) -> int | None:
        self._store.max_offset(*_QUEUE)  # dispatches pending records now: a recall goes before its message
        # Step 3. During a backoff nothing is delivered, but the scan below continues.
        count = 0
        retry_ms = self._backoff.next_ms(now_ms)
        while retry_ms is None and self._near and self._near[0][0] <= now_ms and count < DELIVERY_BATCH:
            if self._deliver_first(now_ms):
                self._backoff.succeeded()
                count += 1
            else:
                retry_ms = self._backoff.failed(now_ms)
        if self._recalled:
            self._forget_recalled(now_ms)
        # Step 4. Refill at half the capacity, so that the scan ends before the heap is empty.
        if self._horizon is not None and len(self._near) <= self._capacity // 2:
            self._scan_segment()
            return now_ms
        if not self._near:
            return None
        # A due message remains only after a full batch (call again at once) or during a backoff (call at its end).
        due_ms = self._near[0][0]
        return due_ms if retry_ms is None or due_ms > now_ms else retry_ms

    def roll_some(self, file_end: int, now_ms: int) -> bool | None:
        self._rolled_offset = max(self._rolled_offset, self._store.min_offset(*_QUEUE))
        units = self._store.units(*_QUEUE, self._rolled_offset, DELIVERY_BATCH)
        first = self._first()
        for physical_offset, _, due_ms in units:
            if physical_offset >= file_end:
                return True
            # Units with keys below the first waiting one are delivered already.
            waits = first is not None and (due_ms, self._rolled_offset) >= first
            if waits and not self._roll_one(physical_offset, now_ms):
                return False
            self._rolled_offset += 1
        return None if units else True

    # -- recalls -------------------------------------------------------------------------------------------------------

    def waits(self, topic: str, unique_key: str, due_ms: int) -> bool:
        """Return whether a message of this topic waits for this time, according to the index."""
        wanted = {properties.REAL_TOPIC: topic, properties.TIMER_OUT_MS: str(due_ms), properties.UNIQ_KEY: unique_key}
        return due_ms > self._delivered_ms and any(
            found.properties.items() >= wanted.items() for found in indexed(self._store, TIMER_TOPIC, unique_key, -1)
        )

    def _is_recalled(self, message: MessageExt, due_ms: int) -> bool:
        topic, recalled = map(message.properties.get, (properties.REAL_TOPIC, properties.TIMER_DEL_UNIQKEY))
        if recalled is not None:
            self._recalled[due_ms + 1].add((topic, recalled))
            return True
        return (topic, message.unique_key) in self._recalled.get(due_ms, ())

    def _forget_recalled(self, now_ms: int) -> None:
        first = self._near[0] if self._near else self._horizon
        least_ms = now_ms + 1 if first is None else min(first[0], now_ms + 1)
        for due_ms in [due_ms for due_ms in self._recalled if due_ms < least_ms]:
            del self._recalled[due_ms]

    # -- delivering and rolling ----------------------------------------------------------------------------------------

    def _deliver_first(self, now_ms: int) -> bool:
        key = heappop(self._near)  # first: the put may dispatch, and new arrivals change the heap
        delivered = False
        try:
            delivered = self._deliver_one(key, now_ms)
        finally:
            if not delivered:
                heappush(self._near, key)
        if delivered:
            self._delivered_ms = max(self._delivered_ms, key[0])
        return delivered

    def _deliver_one(self, key: _Key, now_ms: int) -> bool:
        due_ms, queue_offset = key
        if queue_offset < self._rolled_offset:  # its copy at the end of the queue is delivered instead
            return True
        units = self._store.units(*_QUEUE, queue_offset, 1)
        if not units:
            logger.error(
                "timer message: retention deleted the message at offset %d of %s before it was due; "
                "the disk is too small for the waiting messages",
                queue_offset,
                TIMER_TOPIC,
            )
            return True
        return self._put_due("timer message", units[0][0], due_ms, now_ms)

    def _roll_one(self, physical_offset: int, now_ms: int) -> bool:
        if (message := self._read_to_roll("timer roll", physical_offset)) is None:
            return True
        times = message.properties.get(properties.TIMER_ROLL_TIMES, "")
        counted = message.properties | {properties.TIMER_ROLL_TIMES: str(int(times) + 1 if _is_count(times) else 1)}
        with suppress(InvalidMessage):  # properties that leave no space for the count: roll the message without it
            properties.join(counted)
            message.properties = counted
        return self._puts.put_again("timer roll", message, now_ms, is_roll=True).status is PutMessageStatus.PUT_OK

    # -- heap, horizon and scan ----------------------------------------------------------------------------------------

    def _first(self) -> _Key | None:
        first = self._near[0] if self._near else self._horizon
        if not self._recalled:
            return first
        recall = (min(self._recalled) - 1, 0)
        return recall if first is None else min(first, recall)

    @property
    def _capacity(self) -> int:
        return max(self._near_capacity, len(self._far) * self._segment_units // SCANS)

    def _put_far(self, key: _Key) -> None:
        due_ms, queue_offset = key
        far = self._far.setdefault(queue_offset // self._segment_units, _FarSegment(due_ms, due_ms))
        far.least_ms, far.greatest_ms = min(far.least_ms, due_ms), max(far.greatest_ms, due_ms)
        if self._scan is not None:
            self._scan.arrived.append(key)

    def _shrink_heap(self) -> None:
        self._scan = None  # it searches after the previous horizon, and would miss the messages between the two
        capacity = self._capacity
        # For example, capacity 2 and due times 10 20 30 40 50: 10 and 20 stay, and the horizon is at 30.
        self._near.sort()
        self._horizon = self._near[capacity]
        beyond = self._near[capacity:]
        del self._near[capacity:]
        for key in beyond:
            self._put_far(key)

    def _scan_segment(self) -> None:
        """Scan one more segment (step 4); after the last, refill the heap (step 5)."""
        self._store.max_offset(*_QUEUE)  # dispatches pending records now, so that none arrive within this step
        scan = self._scan
        if scan is None:
            scan = self._scan = _Scan(sorted(self._far, reverse=True), self._end, self._capacity)
        if scan.segments:
            self._collect(scan, scan.segments.pop())
            if scan.count > 2 * scan.capacity:  # bounds the memory of the scan
                scan.keep_nearest()
            return
        self._scan = None
        # Step 5. If messages were left out, the horizon is right after the last that fits.
        nearest = [(due_ms, queue_offset) for due_ms, queue_offset in scan.keep_nearest().tolist()]
        if scan.limit_ms is not None:
            self._horizon = (nearest[-1][0], nearest[-1][1] + 1)
        else:
            self._horizon = None
            self._far.clear()
        self._near += nearest
        heapify(self._near)

    def _collect(self, scan: _Scan, segment: int) -> None:
        far, horizon = self._far[segment], self._horizon
        assert horizon is not None, "far messages without a horizon"
        # 1. Skip a segment whose messages have all become near, and one without a message that is near enough.
        if far.greatest_ms < horizon[0]:
            del self._far[segment]
            return
        if scan.limit_ms is not None and far.least_ms > scan.limit_ms:
            return
        # 2. Read the due times of its units in one array, and select those after the horizon.
        keys = self._far_keys(segment, horizon, scan.end)
        scan.found.append(keys)
        scan.count += len(keys)
        # 3. Tighten the bounds, unless units have arrived in this segment since the scan began.
        if scan.end < (segment + 1) * self._segment_units:
            return
        if len(keys):
            far.least_ms, far.greatest_ms = int(keys[:, 0].min()), int(keys[:, 0].max())
        else:
            del self._far[segment]

    def _far_keys(self, segment: int, horizon: _Key, limit: int) -> npt.NDArray[np.int64]:
        """Return due times and queue offsets of the far messages of a segment before the queue offset `limit`."""
        begin = max(segment * self._segment_units, self._rolled_offset, self._store.min_offset(*_QUEUE))
        units = self._store.unit_array(*_QUEUE, begin, min((segment + 1) * self._segment_units, limit))
        keys = np.empty((len(units), 2), np.int64)
        keys[:, 0] = units["tags_code"]
        keys[:, 1] = np.arange(begin, begin + len(units))
        far: npt.NDArray[np.int64] = keys[
            (keys[:, 0] > horizon[0]) | ((keys[:, 0] == horizon[0]) & (keys[:, 1] >= horizon[1]))
        ]
        return far


def _counts(remaining_ms: npt.NDArray[np.int64]) -> list[int]:
    """Return how many of these times are in each range of DUE_NAMES."""
    places = np.searchsorted(DUE_BOUNDS_MS, remaining_ms)
    return [int(count) for count in np.bincount(places, minlength=len(DUE_NAMES))]


def timer_file(config_directory: Path) -> ProgressFile[TimerCheckpoint]:
    """Return the file of the checkpoint."""
    return ProgressFile(config_directory / TIMER_FILE, TimerCheckpoint(0, 0, 0), _document, _parse_checkpoint)


def _document(checkpoint: TimerCheckpoint) -> dict[str, Any]:
    return dict(zip(_MEMBERS, checkpoint, strict=True))


def _parse_checkpoint(source: Path | str, document: Any) -> TimerCheckpoint:
    try:
        return TimerCheckpoint(*[int(document[name]) for name in _MEMBERS])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(source, 0, f"not a checkpoint of timer messages ({error!r})") from None
