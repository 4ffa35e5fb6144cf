"""Messages for a time of their own: TIMER_DELIVER_MS (milliseconds since 1970), TIMER_DELAY_SEC, TIMER_DELAY_MS.

Such a message waits in queue 0 of rmq_sys_wheel_timer. Its own place stands in REAL_TOPIC and REAL_QID, the time at
which it is due in TIMER_OUT_MS, and once more as the tagsCode of its unit, so that the ConsumeQueue alone says what is
due when. A time that is past means at once; a delay level, where there is one as well, is what counts.

The queue is in the order of arrival, not of due times. So the nearest messages are kept in memory:

    due times    |  delivered  |  near: a heap of 8,192 and more  |  far: on disk only
                               ^ now                              ^ horizon

Every message that waits and is due before the horizon is near. When half of the near ones are delivered, the queue is
looked through for those that follow, 16,384 units a turn, and the horizon moves on. Of far messages only this is kept:
which stretches of 16,384 units have some, and between which due times; stretches without are never looked at again.

What was delivered is said by two numbers in `config/timer.json`. Once anything has waited, it is written every 10 s
and at the stop, after a flush:

    {"deliveredMs": d, "queueOffset": q, "rolledOffset": r}

Of the units before q all that were due at d or before are delivered; those before r wait elsewhere. Retention would
take messages that wait longer than the log is kept. Therefore no file of the log goes before what waits in it has been
rolled: put once more at the end of the same queue, with TIMER_ROLL_TIMES raised.

Promise: as for delay levels. No message is lost, each is delivered at least once; after a crash, what was delivered
since the file was written is found by its unique key and passed over. There is no longest time. A delivery or a roll
whose put fails is retried (see `broker.internal_puts`): deliveredMs and rolledOffset stay, and so does the file of the
log.

`TimerMessageService` owns no clock: `deliver(now_ms)` delivers what is due and returns when something is due next.

Answers to `TimerMessageStore` of Apache RocketMQ 5; 4.9.8 has nothing like it, and keeps such messages where they are.
Deliberate differences: times are exact to the millisecond, not the second; there is no timerMaxDelaySec; neither wheel
nor timerlog, since the queue has all they could say.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rucola.broker.delivery.delay import redirect_by_level
from rucola.broker.delivery.due_delivery import DELIVERY_BATCH, deliver
from rucola.broker.delivery.internal_puts import Backoff, InternalPuts
from rucola.broker.stored_message import stored_message
from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import properties
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rucola.store import config_files
from rucola.store.config import PutMessageStatus
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

TIMER_PROPERTIES = (properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS, properties.TIMER_DELIVER_MS)
"""How clients ask for a time; the first that a message has is the one that counts."""
NEAR_CAPACITY = 1 << 13
"""How many messages are kept in memory, the nearest; twice as many for moments."""
SEGMENT_UNITS = 1 << 14
"""How many units are looked through in one turn."""

_QUEUE = (TIMER_TOPIC, 0)
_LATEST_MS = (1 << 63) - 1
_is_count = re.compile("[0-9]{1,9}").fullmatch

_Key = tuple[int, int]
"""When a message is due, and its queue offset: the order of delivery."""


def redirect_delayed(
    topic: str, queue_id: int, pairs: dict[str, str], level_count: int, now_ms: int
) -> tuple[str, int]:
    """Where a message for this queue goes: there, or where it waits when its properties ask for a delay or a time.

    Notes its own place and its time in `pairs` then. InvalidMessage where the delay or the time is no number.
    """
    place = redirect_by_level(topic, queue_id, pairs, level_count)
    if place[0] == SCHEDULE_TOPIC or properties.TIMER_OUT_MS in pairs:
        return place
    asked = next((name for name in TIMER_PROPERTIES if name in pairs), None)
    if asked is None:
        return place
    try:
        number = int(pairs[asked][:40])
    except ValueError:
        raise InvalidMessage(f"its property {asked} is {pairs[asked][:40]!r}; it must be a whole number") from None
    due_ms = number if asked == properties.TIMER_DELIVER_MS else now_ms + number * _UNITS_MS[asked]
    if due_ms > _LATEST_MS:
        raise InvalidMessage(f"its property {asked} is {number}, a time that no clock has")
    if due_ms <= now_ms:
        return place
    pairs[properties.TIMER_OUT_MS] = str(due_ms)
    pairs[properties.REAL_TOPIC] = topic
    pairs[properties.REAL_QID] = str(queue_id)
    return _QUEUE


_UNITS_MS = {properties.TIMER_DELAY_SEC: 1000, properties.TIMER_DELAY_MS: 1}


class TimerCheckpoint(NamedTuple):
    """How far delivery has come, as `config/timer.json` has it."""

    delivered_ms: int
    queue_offset: int
    rolled_offset: int


@dataclass(slots=True)
class _FarSegment:
    """A stretch of the queue that has far messages, due between these times."""

    least_ms: int
    greatest_ms: int


@dataclass(slots=True)
class _Scan:
    """A look through the stretches under way: what is still to be looked at, and the nearest that were found.

    It goes up to `end`; what has arrived since is found without it. Where more is found than can become near, nothing
    that is due after `limit_ms` will.
    """

    stretches: list[int]
    end: int
    found: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """Due times and queue offsets, each of shape (n, 2)."""
    arrived: list[_Key] = field(default_factory=list)
    count: int = 0
    limit_ms: int | None = None

    def keep_nearest(self, count: int) -> npt.NDArray[np.int64]:
        """The nearest of what was found, in their order; the others are forgotten."""
        keys = np.concatenate([*self.found, np.array(self.arrived, np.int64).reshape(-1, 2)])
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        if len(order) > count:
            self.limit_ms = int(keys[order[count - 1], 0])
        nearest: npt.NDArray[np.int64] = keys[order[:count]]
        self.found, self.arrived, self.count = [nearest], [], len(nearest)
        return nearest


class TimerMessageService:
    """Delivers what is due.

    `near` messages are kept in memory, `stretch` units are looked through in a turn.
    """

    def __init__(
        self,
        store: MessageStore,
        puts: InternalPuts,
        path: Path,
        *,
        near_capacity: int = NEAR_CAPACITY,
        segment_units: int = SEGMENT_UNITS,
    ) -> None:
        self._store = store
        self._puts = puts
        self._backoff = Backoff()
        self._path = path
        self._near_capacity = near_capacity
        self._segment_units = segment_units
        self._near: list[_Key] = []
        self._horizon: _Key | None = None
        """Where the far messages begin; None while there are none."""
        self._far: dict[int, _FarSegment] = {}
        self._look: _Scan | None = None
        self._delivered_ms = 0
        self._end = 0
        self._rolled_offset = 0
        self._looked_up_until_ms = 0

    def load(self) -> None:
        """Read how far delivery has come. StoreCorrupt where the file cannot be read.

        What waited then is far until it is looked for; what came later is taken as it arrived.
        """
        document = config_files.read_config(self._path)
        noted = TimerCheckpoint(0, 0, 0) if document is None else _progress(self._path, document)
        begin, end = self._store.min_offset(*_QUEUE), self._store.max_offset(*_QUEUE)
        self._rolled_offset = max(begin, min(noted.rolled_offset, end))
        self._end = max(self._rolled_offset, min(noted.queue_offset, end))
        self._delivered_ms = noted.delivered_ms
        if self._rolled_offset < self._end:
            self._horizon = (min(noted.delivered_ms + 1, _LATEST_MS), 0)
            for stretch in range(self._rolled_offset // self._segment_units, -(-self._end // self._segment_units)):
                self._far[stretch] = _FarSegment(0, _LATEST_MS)
        while units := self._store.units(*_QUEUE, self._end, self._segment_units):
            self.on_arrival(self._end + len(units), [due_ms for _, _, due_ms in units])
        self._looked_up_until_ms = self._store.last_store_timestamp

    def on_arrival(self, end: int, due_times_ms: Sequence[int]) -> None:
        """Take over the newest units of the queue, which ends at `end`."""
        for queue_offset, due_ms in enumerate(due_times_ms, end - len(due_times_ms)):
            key = (due_ms, queue_offset)
            if self._horizon is None or key < self._horizon:
                heappush(self._near, key)
            else:
                self._put_far(key)
        self._end = end
        if len(self._near) > 2 * self._near_capacity:
            self._draw_horizon()

    def checkpoint(self) -> TimerCheckpoint:
        """How far delivery has come."""
        first = self._first()
        return TimerCheckpoint(self._delivered_ms if first is None else first[0] - 1, self._end, self._rolled_offset)

    def persist(self, progress: TimerCheckpoint) -> None:
        """Write a progress, once the messages that it speaks of are on disk. For any thread."""
        if not progress.queue_offset and not self._path.exists():
            return  # nothing ever waited, so a store that Apache's broker may open again gets no file that it has not
        config_files.write_config(
            self._path,
            {
                "deliveredMs": progress.delivered_ms,
                "queueOffset": progress.queue_offset,
                "rolledOffset": progress.rolled_offset,
            },
        )

    def deliver(self, now_ms: int) -> int | None:
        """Deliver what is due and return when to come back, milliseconds; None when nothing waits."""
        count = 0
        retry_ms = self._backoff.next_ms(now_ms)
        while retry_ms is None and self._near and self._near[0][0] <= now_ms and count < DELIVERY_BATCH:
            if self._deliver_first(now_ms):
                self._backoff.succeeded()
                count += 1
            else:
                retry_ms = self._backoff.failed(now_ms)
        if self._horizon is not None and len(self._near) <= self._near_capacity // 2:
            self._look_further()
            return now_ms
        if not self._near:
            return None
        due_ms = self._near[0][0]
        return due_ms if retry_ms is None or due_ms > now_ms else retry_ms

    async def roll(self, clock: Callable[[], int]) -> bool:
        """Put what waits in the oldest file of the log once more, so that the file may go.

        False where the store takes none now. Nothing is rolled while the oldest file is the only one.
        """
        while True:
            done = self._roll_some(clock())
            if done is not None:
                return done
            await asyncio.sleep(0)

    @property
    def rolled_offset(self) -> int:
        """Units of the queue before this one have been put once more, or wait no longer."""
        return self._rolled_offset

    # -- one message --------------------------------------------------------------------------------------------------

    def _deliver_first(self, now_ms: int) -> bool:
        """Deliver the nearest message; False if its put failed, and it stays the nearest then."""
        key = heappop(self._near)  # before its delivery, during which others may arrive
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
        if queue_offset < self._rolled_offset:
            return True
        units = self._store.units(*_QUEUE, queue_offset, 1)
        if not units:
            logger.error(
                "timer message: the one at offset %d of %s left the log before it was due, and is lost; "
                "the disk is too small for what waits",
                queue_offset,
                TIMER_TOPIC,
            )
            return True
        check_duplicate = due_ms <= self._looked_up_until_ms
        return deliver(self._store, self._puts, "timer message", units[0][0], now_ms, check_duplicate=check_duplicate)

    def _roll_some(self, now_ms: int) -> bool | None:
        """Roll some messages: True when all are, None when more follow, False when the store takes none."""
        size = self._store.config.mapped_file_size_commit_log
        file_end = self._store.min_physical_offset // size * size + size
        if file_end >= self._store.max_physical_offset:
            return True
        self._rolled_offset = max(self._rolled_offset, self._store.min_offset(*_QUEUE))
        units = self._store.units(*_QUEUE, self._rolled_offset, DELIVERY_BATCH)
        first = self._first()
        for physical_offset, _, due_ms in units:
            if physical_offset >= file_end:
                return True
            waits = first is not None and (due_ms, self._rolled_offset) >= first
            if waits and not self._roll_one(physical_offset, now_ms):
                return False
            self._rolled_offset += 1
        return None if units else True

    def _roll_one(self, physical_offset: int, now_ms: int) -> bool:
        try:
            message = stored_message(self._store, physical_offset)
        except InvalidMessage as error:
            logger.error("timer roll: a message that waits cannot be read and is skipped: %s", error)
            return True
        times = message.properties.get(properties.TIMER_ROLL_TIMES, "")
        marked = message.properties | {properties.TIMER_ROLL_TIMES: str(int(times) + 1 if _is_count(times) else 1)}
        with suppress(InvalidMessage):  # without room for the mark the message is rolled without it
            properties.join(marked)
            message.properties = marked
        return self._puts.put_again("timer roll", message, now_ms).status is PutMessageStatus.PUT_OK

    # -- near and far -------------------------------------------------------------------------------------------------

    def _first(self) -> _Key | None:
        """The least key that may still wait; None where nothing does."""
        return self._near[0] if self._near else self._horizon

    def _put_far(self, key: _Key) -> None:
        due_ms, queue_offset = key
        far = self._far.setdefault(queue_offset // self._segment_units, _FarSegment(due_ms, due_ms))
        far.least_ms, far.greatest_ms = min(far.least_ms, due_ms), max(far.greatest_ms, due_ms)
        if self._look is not None:
            self._look.arrived.append(key)

    def _draw_horizon(self) -> None:
        """Keep the nearest messages near; the others become far."""
        self._look = None  # it looks for what is behind the horizon that was
        self._near.sort()
        self._horizon = self._near[self._near_capacity]
        beyond = self._near[self._near_capacity :]
        del self._near[self._near_capacity :]
        for key in beyond:
            self._put_far(key)

    def _look_further(self) -> None:
        """Look through one more stretch; after the last the nearest of what was found become near."""
        self._store.max_offset(*_QUEUE)  # so that nothing arrives in between
        look = self._look
        if look is None:
            look = self._look = _Scan(sorted(self._far, reverse=True), self._end)
        if look.stretches:
            self._look_through(look, look.stretches.pop())
            if look.count > 2 * self._near_capacity:
                look.keep_nearest(self._near_capacity)
            return
        self._look = None
        nearest = [(due_ms, queue_offset) for due_ms, queue_offset in look.keep_nearest(self._near_capacity).tolist()]
        if look.limit_ms is not None:
            self._horizon = (nearest[-1][0], nearest[-1][1] + 1)
        else:
            self._horizon = None
            self._far.clear()
        self._near += nearest
        heapify(self._near)

    def _look_through(self, look: _Scan, stretch: int) -> None:
        """Gather the far messages of one stretch, and note their due times."""
        far, horizon = self._far[stretch], self._horizon
        assert horizon is not None, "there are far messages without a horizon"
        if far.greatest_ms < horizon[0]:
            del self._far[stretch]
            return
        if look.limit_ms is not None and far.least_ms > look.limit_ms:
            return
        stretch_end = (stretch + 1) * self._segment_units
        begin = max(stretch * self._segment_units, self._rolled_offset, self._store.min_offset(*_QUEUE))
        end = min(stretch_end, look.end)
        units = self._store.unit_array(*_QUEUE, begin, end)
        keys = np.empty((len(units), 2), np.int64)
        keys[:, 0] = units["tags_code"]
        keys[:, 1] = np.arange(begin, begin + len(units))
        keys = keys[(keys[:, 0] > horizon[0]) | ((keys[:, 0] == horizon[0]) & (keys[:, 1] >= horizon[1]))]
        look.found.append(keys)
        look.count += len(keys)
        if end < stretch_end:
            return  # more may have arrived in it
        if len(keys):
            far.least_ms, far.greatest_ms = int(keys[:, 0].min()), int(keys[:, 0].max())
        else:
            del self._far[stretch]


def _progress(path: Path, document: object) -> TimerCheckpoint:
    try:
        names = ("deliveredMs", "queueOffset", "rolledOffset")
        return TimerCheckpoint(*[int(document[name]) for name in names])  # type: ignore[index]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, 0, f"no progress of timed delivery ({error!r})") from None
