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

`DelayedDelivery` is wound from outside: `deliver(now_ms)` does what is due and says when something is due next.

Answers to `ScheduleMessageService` of Apache RocketMQ 4.9.8. Deliberate differences: it sleeps until the next message
is due instead of looking every 100 ms; a level that messageDelayLevel no longer has is still delivered; a message
that cannot be delivered at all (damaged, or no longer fit for a record) is logged and passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rucola.broker.stored import renewed, stored_message
from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import MessageExt, properties
from rucola.message.record import decode
from rucola.message.topics import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from rucola.store import config_files
from rucola.store.config import PutMessageStatus
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

PERSIST_INTERVAL_MS = 10_000
RETRY_AFTER_MS = 1000
"""How long a level rests when the store took no message."""
BATCH = 256
"""Most messages of one level in one turn, so that other work comes in between."""

_LATER = (PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.CREATE_MAPEDFILE_FAILED)


def postpone(topic: str, queue_id: int, pairs: dict[str, str], level_count: int) -> tuple[str, int]:
    """Where a message for this queue goes: there, or where it waits when its properties ask for a delay.

    Notes its own place in `pairs` then. A level above the highest means the highest. InvalidMessage where DELAY is
    no number.
    """
    text = pairs.get(properties.DELAY, "0")
    try:
        level = min(int(text), level_count)
    except ValueError:
        raise InvalidMessage(f"its property {properties.DELAY} is {text!r}; it must be the number of a level") from None
    if level <= 0:
        return topic, queue_id
    pairs[properties.DELAY] = str(level)
    pairs[properties.REAL_TOPIC] = topic
    pairs[properties.REAL_QID] = str(queue_id)
    return SCHEDULE_TOPIC, level - 1


class DelayedDelivery:
    """Delivers what is due. `on_put` is called after each turn that put something."""

    def __init__(self, store: MessageStore, delays_ms: Sequence[int], path: Path, on_put: Callable[[], None]) -> None:
        self._store = store
        self._delays_ms = delays_ms
        self._path = path
        self._on_put = on_put
        self._offsets: dict[int, int] = {}
        self._looked_up_until_ms = 0

    def load(self) -> None:
        """Read how far each level is delivered. StoreCorrupt where the file cannot be read.

        What was due when the store last took a message may have been delivered without a note, and is looked up.
        """
        document = config_files.read_config(self._path)
        noted = _offsets(self._path, document) if document else {}
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
        before = sum(self._offsets.values())
        due = [self._deliver_level(level, now_ms) for level in self._offsets]
        if sum(self._offsets.values()) != before:
            self._on_put()
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def _deliver_level(self, level: int, now_ms: int) -> int | None:
        begin = max(self._offsets[level], self._store.min_offset(SCHEDULE_TOPIC, level - 1))
        units = self._store.units(SCHEDULE_TOPIC, level - 1, begin, BATCH)
        known = level <= len(self._delays_ms)
        latest_ms = now_ms + self._delays_ms[level - 1] if known else max((unit[2] for unit in units), default=0)
        for queue_offset, (physical_offset, _, due_ms) in enumerate(units, begin):
            if now_ms < due_ms <= latest_ms:
                return due_ms
            if not self._deliver_one(physical_offset, due_ms, now_ms):
                return now_ms + RETRY_AFTER_MS
            self._offsets[level] = queue_offset + 1
        if self._offsets[level] >= self._store.max_offset(SCHEDULE_TOPIC, level - 1):
            return None
        return now_ms if units else now_ms + RETRY_AFTER_MS

    def _deliver_one(self, physical_offset: int, due_ms: int, now_ms: int) -> bool:
        """Put one message into its own queue; False where the store takes none now."""
        message = stored_message(self._store, physical_offset)
        if message is None:
            logger.error("no delayed message can be read at %d; it is passed over", physical_offset)
            return True
        pairs = message.properties
        try:
            message.topic, message.queue_id = pairs[properties.REAL_TOPIC], int(pairs[properties.REAL_QID])
            if message.topic == TRANS_HALF_TOPIC:
                raise InvalidMessage("it is half of a transaction")
            if due_ms <= self._looked_up_until_ms and self._was_delivered(message):
                return True
            message.prepared_transaction_offset = 0
            status = self._store.put(renewed(message), now_ms).status
        except (InvalidMessage, KeyError, ValueError) as error:
            logger.error("the delayed message %s cannot be delivered: %r", message.offset_msg_id, error)
            return True
        if status in _LATER:
            return False
        if status is not PutMessageStatus.PUT_OK:
            logger.error("the delayed message %s cannot be delivered: %s", message.offset_msg_id, status.name)
        return True

    def _was_delivered(self, waiting: MessageExt) -> bool:
        """Whether a record of this message, younger than the one that waited, is in its own queue."""
        if waiting.unique_key is None:
            return False
        for record in self._store.query(waiting.topic, waiting.unique_key, BATCH).records:
            found = decode(record, decompress=False, check_crc=False)
            if found.physical_offset > waiting.physical_offset and _identity(found) == _identity(waiting):
                return True
        return False


def _identity(message: MessageExt) -> tuple[object, ...]:
    """What a message that waited and the one that was delivered have in common, and no other two."""
    place = (message.topic, message.queue_id, message.reconsume_times)
    return *place, message.born_timestamp, message.body_crc, message.properties


def _offsets(path: Path, document: object) -> dict[int, int]:
    try:
        return {int(level): int(offset) for level, offset in document["offsetTable"].items()}  # type: ignore[index]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(path, 0, f"no table of delay offsets ({error!r})") from None
