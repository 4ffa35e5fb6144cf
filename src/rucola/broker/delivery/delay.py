"""Delay levels: redirection of delayed messages, and their delivery when they are due.

A message with DELAY=n is stored in SCHEDULE_TOPIC_XXXX, queue n-1; REAL_TOPIC and REAL_QID name its target queue. All
messages of one level have the same delay, so the queue is ordered by due time, and one queue offset per level is the
progress:

    SCHEDULE_TOPIC_XXXX queue n-1    d d d d d w w w        d delivered, w waiting; the unit's tagsCode is the due time
                                               ^ offset of level n, in config/delayOffset.json

A due message is put into its target queue. DELAY, REAL_TOPIC and REAL_QID stay among its properties, as in Apache.

Delivery is at least once. The offsets are written every 10 s and at the stop, after a flush of the messages that they
cover. After a start, messages that were stored before it are looked up in the index by their unique key, and skipped if
they were delivered since then; only those without a unique key or index are delivered twice.

Before a log file is deleted, its waiting messages are moved to the topic of timer messages (see
`broker.delivery.rolling`), so a delay may exceed the retention. A failed put is retried with backoff while the offset
of its level stays; other levels continue. Only damaged records are skipped, with an error in the log.

Corresponds to `ScheduleMessageService` of Apache RocketMQ 4.9.8. Deliberate differences: the service sleeps until the
next due time, where Apache polls every 100 ms; a level that messageDelayLevel no longer contains is still delivered;
messages above a maxMessageSize that was lowered later are delivered, where they block the level in Apache's broker;
messages that wait longer than the log is retained are delivered, where Apache loses them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rucola.broker.delivery.due_delivery import DELIVERY_BATCH, DueDelivery
from rucola.broker.delivery.internal_puts import FIRST_RETRY_MS, Backoff, InternalPuts
from rucola.broker.delivery.progress import ProgressFile
from rucola.broker.tables.topics import TopicConfigTable
from rucola.domain.pending import DueCounts
from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import properties
from rucola.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rucola.store.config import PutMessageStatus
from rucola.store.dispatch_request import MAX_TAGS_CODE
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

DELAY_OFFSET_FILE = "delayOffset.json"


def delay_level(pairs: Mapping[str, str]) -> int:
    """Return the delay level, 0 or less for no delay. Raises InvalidMessage if it is not a number."""
    text = pairs.get(properties.DELAY, "0")
    try:
        return int(text)
    except ValueError:
        raise InvalidMessage(
            f"its property {properties.DELAY} is {text!r}; it must be the number of a delay level",
            subject=properties.DELAY,
        ) from None


def redirect_by_level(topic: str, queue_id: int, pairs: dict[str, str], level_count: int) -> tuple[str, int]:
    """Return the topic and queue id to store in; a delayed message's target queue is added to `pairs`.

    Levels above the highest count as the highest. Raises InvalidMessage if DELAY is not a number.
    """
    level = min(delay_level(pairs), level_count)
    if level <= 0:
        return topic, queue_id
    pairs[properties.DELAY] = str(level)
    pairs[properties.REAL_TOPIC] = topic
    pairs[properties.REAL_QID] = str(queue_id)
    return SCHEDULE_TOPIC, level - 1


class ScheduleMessageService(DueDelivery[Mapping[int, int]]):
    """Delivers due messages of all levels."""

    name = "delay levels"
    topic = SCHEDULE_TOPIC
    copied_with = "GET_ALL_DELAY_OFFSET"

    def __init__(
        self,
        store: MessageStore,
        puts: InternalPuts,
        topics: TopicConfigTable,
        delays_ms: Sequence[int],
        config_directory: Path,
    ) -> None:
        super().__init__(store, puts, topics)
        self._delays_ms = delays_ms
        self.file: ProgressFile[Mapping[int, int]] = delay_offset_file(config_directory)
        self._offsets: dict[int, int] = {}
        """By level, the queue offset of the first undelivered message."""
        self._backoffs: defaultdict[int, Backoff] = defaultdict(Backoff)

    @property
    def level_count(self) -> int:
        return len(self._delays_ms)

    def load(self) -> None:
        def exceeds_queue(offsets: Mapping[int, int]) -> bool:
            return any(end > self._store.max_offset(SCHEDULE_TOPIC, level - 1) for level, end in offsets.items())

        def is_early(offsets: Mapping[int, int]) -> bool:
            """Whether messages count as delivered that were not due yet when the last record of the log was put."""
            last = [self._store.units(SCHEDULE_TOPIC, level - 1, end - 1, 1) for level, end in offsets.items()]
            return any(due_ms > self._store.last_store_timestamp for units in last for _, _, due_ms in units)

        stored = self.file.load(self._store.max_physical_offset, exceeds_queue, is_early)
        waiting = {queue_id + 1 for topic, queue_id in self._store.queues() if topic == SCHEDULE_TOPIC}
        for level in sorted({*range(1, self.level_count + 1), *waiting, *stored}):
            queue = (SCHEDULE_TOPIC, level - 1)
            begin, end = self._store.min_offset(*queue), self._store.max_offset(*queue)
            self._offsets[level] = max(begin, min(stored.get(level, 0), end))  # retention may have deleted the begin
        # Whenever they are due: a crash may have left copies as timer messages, which may be delivered first.
        self._check_duplicates_before = self._store.max_physical_offset

    def progress(self) -> Mapping[int, int]:
        """Return the queue offset of each level of which messages were delivered."""
        return {level: queue_offset for level, queue_offset in self._offsets.items() if queue_offset}

    def due_steps(self, now_ms: int) -> Generator[None, None, DueCounts]:
        """Count the messages that wait, by due time, in small steps."""
        due = DueCounts()
        for level in list(self._offsets):
            queue_id = level - 1
            begin = max(self._offsets[level], self._store.min_offset(SCHEDULE_TOPIC, queue_id))
            due.add_ordered(
                begin, self._store.max_offset(SCHEDULE_TOPIC, queue_id), partial(self._due_ms, queue_id), now_ms
            )
            yield
        return due

    def _due_ms(self, queue_id: int, queue_offset: int) -> int:
        units = self._store.units(SCHEDULE_TOPIC, queue_id, queue_offset, 1)
        return units[0][2] if units else 0

    def deliver(self, now_ms: int) -> int | None:
        # At most DELIVERY_BATCH messages per level.
        due = [self._deliver_level(level, now_ms) for level in self._offsets]
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def _deliver_level(self, level: int, now_ms: int) -> int | None:
        backoff = self._backoffs[level]
        if (retry_ms := backoff.next_ms(now_ms)) is not None:
            return retry_ms
        # 1. Read a batch of units from the first that is not delivered.
        begin = self._begin(level)
        units = self._store.units(SCHEDULE_TOPIC, level - 1, begin, DELIVERY_BATCH)
        # 2. Find the latest due time that a unit of this level can have. A later one is damaged, or was stored under a
        #    longer delay, and is delivered now, as Apache does.
        #    For example, at 12:00:00 on a level of 10 s a unit due at 12:00:10 waits, one of 12:00:30 is delivered.
        latest_ms = self._latest_ms(level, now_ms)
        # 3. Deliver until a message that is not due yet. A failed put stops this level; its offset stays.
        kind = f"delay level {level}"
        for queue_offset, (physical_offset, _, due_ms) in enumerate(units, begin):
            if now_ms < due_ms <= latest_ms:
                return due_ms
            if not self._put_due(kind, physical_offset, due_ms, now_ms):
                return backoff.failed(now_ms)
            backoff.succeeded()
            self._offsets[level] = queue_offset + 1
        # 4. More units than one batch: call again at once. Units that cannot be read yet: call again later.
        if self._offsets[level] >= self._store.max_offset(SCHEDULE_TOPIC, level - 1):
            return None
        return now_ms if units else now_ms + FIRST_RETRY_MS

    def _latest_ms(self, level: int, now_ms: int) -> int:
        """Latest possible due time of a level; one that is no longer configured has no limit."""
        return now_ms + self._delays_ms[level - 1] if level <= self.level_count else MAX_TAGS_CODE

    def roll_some(self, file_end: int, now_ms: int) -> bool | None:
        # Into the timer topic, which keeps their due times.
        has_more = False
        for level in self._offsets:
            begin = self._begin(level)
            units = self._store.units(SCHEDULE_TOPIC, level - 1, begin, DELIVERY_BATCH)
            for queue_offset, (physical_offset, _, due_ms) in enumerate(units, begin):
                if physical_offset >= file_end:
                    break
                if not self._roll_one(level, physical_offset, due_ms, now_ms):
                    return False
                self._offsets[level] = queue_offset + 1
            else:
                has_more |= bool(units)
        return None if has_more else True

    def _roll_one(self, level: int, physical_offset: int, due_ms: int, now_ms: int) -> bool:
        kind = "delay roll"
        if (message := self._read_to_roll(kind, physical_offset)) is None:
            return True
        if due_ms <= self._latest_ms(level, now_ms):
            message.properties[properties.TIMER_OUT_MS] = str(due_ms)
            message.properties[properties.TIMER_ROLL_TIMES] = "1"
            self._topics.ensure_timer_topic(now_ms)
            message.topic, message.queue_id = TIMER_TOPIC, 0
            put = self._puts.put_again(kind, message, now_ms, is_roll=True)
            if put.status is not PutMessageStatus.PROPERTIES_SIZE_EXCEEDED:
                return put.status is PutMessageStatus.PUT_OK
        # It would be delivered now anyway, or has no room for its due time: too early is better than never.
        return self._put_due(kind, physical_offset, due_ms, now_ms, is_roll=True)

    def _begin(self, level: int) -> int:
        begin, kept = self._offsets[level], self._store.min_offset(SCHEDULE_TOPIC, level - 1)
        if begin < kept:
            logger.error(
                "delay level %d: retention deleted %d messages before they were due; "
                "the broker was a slave then, or another broker wrote this store",
                level,
                kept - begin,
            )
            begin = self._offsets[level] = kept
        return begin


def delay_offset_file(config_directory: Path) -> ProgressFile[Mapping[int, int]]:
    """Return the file of the offsets by level."""
    return ProgressFile(
        config_directory / DELAY_OFFSET_FILE, {}, lambda offsets: {"offsetTable": dict(offsets)}, _parse_offsets
    )


def _parse_offsets(source: Path | str, document: Any) -> dict[int, int]:
    try:
        return {int(level): int(offset) for level, offset in document["offsetTable"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(source, 0, f"not a table of delay offsets ({error!r})") from None
