"""Delivery of a due message: a put into its target queue (REAL_TOPIC, REAL_QID).

If the topic has lost that queue, another readable queue gets the message. Progress is written after deliveries, so
after a crash a message is looked up in the index by its unique key, and skipped if its target queue contains it at a
later position than the waiting record. Rolled messages (see `broker.delivery.timer`) are compared without the position.

Corresponds to `ScheduleMessageService.DeliverDelayedMessageTimerTask` of Apache RocketMQ 4.9.8. Deliberate difference:
maxMessageSize does not apply to admitted messages, where Apache blocks the level until the limit is raised again.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.delivery.progress import Delivery
from rucola.broker.stored_message import stored_message
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import InvalidMessage
from rucola.message import MessageExt, properties
from rucola.message.record import decode
from rucola.message.topics import MAX_TOPIC_LENGTH, TRANS_HALF_TOPIC
from rucola.store.config import PutMessageStatus
from rucola.store.consume_queue import check_queue_name
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

P = TypeVar("P")

DELIVERY_BATCH = 256
"""Messages delivered in one loop iteration."""

_MAX_QUEUE_ID = (1 << 31) - 1


class DueDelivery(Delivery[P]):
    """A kind that waits in one topic, with the due time as tagsCode of its units."""

    topic: str

    def __init__(self, store: MessageStore, puts: InternalPuts, topics: TopicConfigTable) -> None:
        self._store = store
        self._puts = puts
        self._topics = topics
        self._check_duplicates_until_ms = 0
        """Messages due until then may have been delivered before a crash, and are looked up in the index."""
        self._check_duplicates_before = 0
        """So are messages before this physical offset."""

    def on_arrival(self, end: int, due_times_ms: Sequence[int]) -> None:
        """Note the newest messages of a queue, whose end offset is `end`."""

    @abstractmethod
    def deliver(self, now_ms: int) -> int | None:
        """Deliver a batch of due messages; return the time of the next call in ms, or None."""

    def _is_recalled(self, message: MessageExt, due_ms: int) -> bool:
        return False

    def _put_due(self, kind: str, physical_offset: int, due_ms: int, now_ms: int, *, is_roll: bool = False) -> bool:
        """Put a waiting message into its target queue; False if the put failed. Damaged ones are skipped and logged."""
        try:
            message = stored_message(self._store, physical_offset)
            if self._is_recalled(message, due_ms):
                return True
            topic, queue_id = _own_queue(message)
        except InvalidMessage as error:
            logger.error("%s: skipping a message that cannot be delivered: %s", kind, error)
            return True
        # A rolled message was copied to the end of the log, so its delivered record may precede the copy.
        was_rolled = message.properties.pop(properties.TIMER_ROLL_TIMES, None) is not None
        if was_rolled and message.properties.get(properties.DELAY, "").strip("0").isdecimal():  # from a delay level
            message.properties.pop(properties.TIMER_OUT_MS, None)
        message.topic, message.queue_id = topic, self._topics.readable_queue(topic, queue_id)
        may_be_delivered = due_ms <= self._check_duplicates_until_ms or physical_offset < self._check_duplicates_before
        if was_rolled or is_roll or may_be_delivered:
            candidates = indexed(self._store, topic, message.unique_key, 0 if was_rolled else physical_offset)
            if any(_identity(found) == _identity(message) for found in candidates):
                return True
        # A commit stored the offset of its half message; the record in the own queue has none, as with Apache.
        message.prepared_transaction_offset = 0
        return self._puts.put_again(kind, message, now_ms, is_roll=is_roll).status is PutMessageStatus.PUT_OK

    def _read_to_roll(self, kind: str, physical_offset: int) -> MessageExt | None:
        try:
            return stored_message(self._store, physical_offset)
        except InvalidMessage as error:
            logger.error("%s: skipping a message that cannot be read: %s", kind, error)
            return None


def _own_queue(message: MessageExt) -> tuple[str, int]:
    names = (properties.REAL_TOPIC, properties.REAL_QID)
    topic, queue = (message.properties.get(name, "") for name in names)
    description = f"message {message.msg_id} at physical offset {message.physical_offset}"
    if topic == TRANS_HALF_TOPIC:
        raise InvalidMessage(f"{description} is a half message")
    try:
        queue_id = int(queue)
        check_queue_name(topic, queue_id)
    except (InvalidMessage, ValueError):
        # One error message for all three cases: no number, out of range, or an illegal topic.
        queue_id = -1
    if not 0 <= queue_id <= _MAX_QUEUE_ID or len(topic.encode()) > MAX_TOPIC_LENGTH:
        raise InvalidMessage(
            f"the properties {' and '.join(names)} of {description} name no queue: {topic!r}, {queue!r}"
        )
    return topic, queue_id


def indexed(
    store: MessageStore, topic: str, unique_key: str | None, since: int, begin_ms: int = 0
) -> Iterator[MessageExt]:
    """Yield what the index has of a topic for a unique key after a physical offset, other keys of its hash included.

    Index files that end before `begin_ms` are not read.
    """
    if unique_key is None:
        return
    for record in store.query(topic, unique_key, DELIVERY_BATCH, begin_ms, after=since).records:
        try:
            found = decode(record, decompress=False, check_crc=False)
        except InvalidMessage:  # a damaged record of another message must not block this one
            continue
        if found.physical_offset > since:
            yield found


def _identity(message: MessageExt) -> tuple[object, ...]:
    queue = (message.topic, message.queue_id, message.reconsume_times)
    return *queue, message.born_timestamp, message.body_crc, message.properties
