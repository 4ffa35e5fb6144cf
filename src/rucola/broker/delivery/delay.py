"""Delayed messages: where they wait, and their delivery when they are due.

A message with DELAY=n does not go to its queue but to SCHEDULE_TOPIC_XXXX, queue n-1; its own place stands in
REAL_TOPIC and REAL_QID. All messages of one such queue wait equally long, so the queue is ordered by due time, and one
queue offset a level says what was delivered:

    SCHEDULE_TOPIC_XXXX queue n-1    d d d d d w w w        d delivered, w waits; the unit's tagsCode is the due time
                                               ^ offset of level n, in config/delayOffset.json

A due message is put into its own queue as it was sent. DELAY, REAL_TOPIC and REAL_QID stay among its properties, as
Apache leaves them on disk.

Promise: no delayed message is lost, and each is delivered at least once. The offsets are written every 10 s and at the
stop, never before what they vouch for is on disk. After a crash, messages delivered since the offsets were last
written would come again; those with a unique key are found in the index by that key and passed over, so only messages
without one (or without an index) are repeated, at most those of the last 10 s before the crash.

A delivery whose put fails is retried with backoff, and its level does not move on (see `broker.internal_puts`); the
other levels do. Only damaged records are skipped, and logged.

`ScheduleMessageService` owns no clock: `deliver(now_ms)` delivers what is due and returns when something is due next.

Answers to `ScheduleMessageService` of Apache RocketMQ 4.9.8. Deliberate differences: it sleeps until the next message
is due instead of looking every 100 ms; a level that messageDelayLevel no longer has is still delivered; messages
above a maxMessageSize that was lowered meanwhile are delivered, where they stop the level in Apache's broker.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rucola.broker.delivery.due_delivery import DELIVERY_BATCH, deliver
from rucola.broker.delivery.internal_puts import FIRST_RETRY_MS, Backoff, InternalPuts
from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import properties
from rucola.message.topics import SCHEDULE_TOPIC
from rucola.store import config_files
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

PERSIST_INTERVAL_MS = 10_000


def delay_level(pairs: Mapping[str, str]) -> int:
    """Return the delay level that a message asks for, 0 or less for none. InvalidMessage if DELAY is no number."""
    text = pairs.get(properties.DELAY, "0")
    try:
        return int(text)
    except ValueError:
        raise InvalidMessage(f"its property {properties.DELAY} is {text!r}; it must be the number of a level") from None


def redirect_by_level(topic: str, queue_id: int, pairs: dict[str, str], level_count: int) -> tuple[str, int]:
    """Return where a message for this queue goes: there, or where it waits if its properties ask for a delay.

    In that case its own place is noted in `pairs`. A level above the highest means the highest. InvalidMessage if
    DELAY is no number.
    """
    level = min(delay_level(pairs), level_count)
    if level <= 0:
        return topic, queue_id
    pairs[properties.DELAY] = str(level)
    pairs[properties.REAL_TOPIC] = topic
    pairs[properties.REAL_QID] = str(queue_id)
    return SCHEDULE_TOPIC, level - 1


class ScheduleMessageService:
    """Delivers what is due."""

    def __init__(self, store: MessageStore, puts: InternalPuts, delays_ms: Sequence[int], path: Path) -> None:
        self._store = store
        self._puts = puts
        self._delays_ms = delays_ms
        self._path = path
        self._offsets: dict[int, int] = {}
        self._backoffs: defaultdict[int, Backoff] = defaultdict(Backoff)
        self._looked_up_until_ms = 0

    def load(self) -> None:
        """Read how far each level is delivered. StoreCorrupt where the file cannot be read.

        What was due when the store last took a message may have been delivered without a note, and is looked up.
        """
        document = config_files.read_config(self._path)
        noted = parse_delay_offsets(self._path, document) if document else {}
        waiting = {queue_id + 1 for topic, queue_id in self._store.queues() if topic == SCHEDULE_TOPIC}
        for level in sorted({*range(1, len(self._delays_ms) + 1), *waiting, *noted}):
            queue = (SCHEDULE_TOPIC, level - 1)
            begin, end = self._store.min_offset(*queue), self._store.max_offset(*queue)
            self._offsets[level] = max(begin, min(noted.get(level, 0), end))
        self._looked_up_until_ms = self._store.last_store_timestamp

    def offsets(self) -> Mapping[int, int]:
        """Up to where each level is delivered, a copy; levels that never delivered anything are left out."""
        return {level: queue_offset for level, queue_offset in self._offsets.items() if queue_offset}

    def persist(self, offsets: Mapping[int, int]) -> None:
        """Write offsets, once the messages that were delivered up to them are on disk. For any thread."""
        config_files.write_config(self._path, {"offsetTable": dict(offsets)})

    def deliver(self, now_ms: int) -> int | None:
        """Deliver what is due and return when to come back, milliseconds; None when nothing waits."""
        due = [self._deliver_level(level, now_ms) for level in self._offsets]
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def _deliver_level(self, level: int, now_ms: int) -> int | None:
        backoff = self._backoffs[level]
        if (retry_ms := backoff.next_ms(now_ms)) is not None:
            return retry_ms
        begin = self._begin(level)
        units = self._store.units(SCHEDULE_TOPIC, level - 1, begin, DELIVERY_BATCH)
        known = level <= len(self._delays_ms)
        latest_ms = now_ms + self._delays_ms[level - 1] if known else max((unit[2] for unit in units), default=0)
        kind = f"delay level {level}"
        for queue_offset, (physical_offset, _, due_ms) in enumerate(units, begin):
            if now_ms < due_ms <= latest_ms:
                return due_ms
            check_duplicate = due_ms <= self._looked_up_until_ms
            if not deliver(self._store, self._puts, kind, physical_offset, now_ms, check_duplicate=check_duplicate):
                return backoff.failed(now_ms)
            backoff.succeeded()
            self._offsets[level] = queue_offset + 1
        if self._offsets[level] >= self._store.max_offset(SCHEDULE_TOPIC, level - 1):
            return None
        return now_ms if units else now_ms + FIRST_RETRY_MS

    def _begin(self, level: int) -> int:
        """Return the first queue offset of a level that is not delivered and still in the log."""
        begin, kept = self._offsets[level], self._store.min_offset(SCHEDULE_TOPIC, level - 1)
        if begin < kept:
            logger.error(
                "delay level %d: %d messages left the log before they were due, and are lost; "
                "fileReservedTime must be longer than the longest delay, and the disk large enough",
                level,
                kept - begin,
            )
            begin = self._offsets[level] = kept
        return begin


def parse_delay_offsets(source: Path | str, document: object) -> dict[int, int]:
    """Up to where each level is delivered, as file or answer says it; StoreCorrupt names the source of any other."""
    try:
        return {int(level): int(offset) for level, offset in document["offsetTable"].items()}  # type: ignore[index]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(source, 0, f"no table of delay offsets ({error!r})") from None
