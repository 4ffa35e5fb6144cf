"""Delivery of a due message: a put into its target queue (REAL_TOPIC, REAL_QID).

If the topic has lost that queue, another readable queue gets the message. Progress is written after deliveries, so
after a crash a message is looked up in the index by its unique key, and skipped if its target queue contains it at a
later position than the waiting record. Rolled messages (see `broker.delivery.timer`) are compared without the position.

Corresponds to `ScheduleMessageService.DeliverDelayedMessageTimerTask` of Apache RocketMQ 4.9.8. Deliberate difference:
maxMessageSize does not apply to admitted messages, where Apache blocks the level until the limit is raised again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rucola.broker.delivery.internal_puts import InternalPuts
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

DELIVERY_BATCH = 256
"""Messages delivered in one loop iteration."""

_MAX_QUEUE_ID = (1 << 31) - 1


def deliver(
    store: MessageStore,
    puts: InternalPuts,
    topics: TopicConfigTable,
    kind: str,
    physical_offset: int,
    now_ms: int,
    *,
    check_duplicate: bool,
    is_roll: bool = False,
) -> bool:
    """Put a waiting message into its target queue; False if the put failed. Damaged records are skipped and logged."""
    try:
        message = stored_message(store, physical_offset)
        topic, queue_id = _own_queue(message)
    except InvalidMessage as error:
        logger.error("%s: skipping a message that cannot be delivered: %s", kind, error)
        return True
    # A rolled message was copied to the end of the log, so its delivered record may precede the copy.
    was_rolled = message.properties.pop(properties.TIMER_ROLL_TIMES, None) is not None
    if was_rolled and message.properties.get(properties.DELAY, "").strip("0").isdecimal():  # rolled from a delay level
        message.properties.pop(properties.TIMER_OUT_MS, None)
    message.topic, message.queue_id = topic, topics.readable_queue(topic, queue_id)
    if (check_duplicate or was_rolled) and _is_delivered(store, message, 0 if was_rolled else physical_offset):
        return True
    # A commit stored the offset of its half message; the record in the own queue has none, as with Apache.
    message.prepared_transaction_offset = 0
    return puts.put_again(kind, message, now_ms, is_roll=is_roll).status is PutMessageStatus.PUT_OK


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


def indexed(store: MessageStore, topic: str, unique_key: str | None, since: int) -> Iterator[MessageExt]:
    """Yield what the index has of a topic for a unique key after a physical offset, other keys of its hash included."""
    if unique_key is None:
        return
    for record in store.query(topic, unique_key, DELIVERY_BATCH).records:
        try:
            found = decode(record, decompress=False, check_crc=False)
        except InvalidMessage:  # a damaged record of another message must not block this one
            continue
        if found.physical_offset > since:
            yield found


def _is_delivered(store: MessageStore, waiting: MessageExt, since: int) -> bool:
    candidates = indexed(store, waiting.topic, waiting.unique_key, since)
    return any(_identity(found) == _identity(waiting) for found in candidates)


def _identity(message: MessageExt) -> tuple[object, ...]:
    queue = (message.topic, message.queue_id, message.reconsume_times)
    return *queue, message.born_timestamp, message.body_crc, message.properties
