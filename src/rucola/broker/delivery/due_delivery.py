"""Delivery of a due message: a put into its own queue (REAL_TOPIC, REAL_QID).

If the topic has lost that queue meanwhile, another one that consumers read gets the message.

A message may have been delivered before, since progress is written after deliveries and a crash may happen between the
two. When that is possible, the message is looked up in the index by its unique key, and skipped if its own queue
contains it. An older message with the same key differs in its position: the delivered record is behind the
waiting one in the log. This does not hold for rolled messages (see `broker.delivery.timer`), which are compared without
it.

Corresponds to `ScheduleMessageService.DeliverDelayedMessageTimerTask` of Apache RocketMQ 4.9.8. Deliberate difference:
maxMessageSize does not apply to admitted messages, where Apache blocks the level until the limit is raised again.
"""

from __future__ import annotations

import logging
from contextlib import suppress

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
"""Messages that are delivered in one loop iteration at most, so that requests are served in between."""

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
) -> bool:
    """Put a waiting message into its own queue; return False if the put failed.

    `kind` names the put in logs and metrics. A record that is damaged or names no queue is skipped with an error in the
    log. `check_duplicate` looks the message up in the index first.
    """
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
    return puts.put_again(kind, message, now_ms).status is PutMessageStatus.PUT_OK


def _own_queue(message: MessageExt) -> tuple[str, int]:
    """Return the topic and queue id in REAL_TOPIC and REAL_QID.

    Raises InvalidMessage if they name no queue.
    """
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


def _is_delivered(store: MessageStore, waiting: MessageExt, since: int) -> bool:
    """Return whether the message's own queue contains it, behind the physical offset `since`."""
    if waiting.unique_key is None:
        return False
    for record in store.query(waiting.topic, waiting.unique_key, DELIVERY_BATCH).records:
        with suppress(InvalidMessage):  # a damaged record of another message must not block this one
            found = decode(record, decompress=False, check_crc=False)
            if found.physical_offset > since and _identity(found) == _identity(waiting):
                return True
    return False


def _identity(message: MessageExt) -> tuple[object, ...]:
    """Return the fields that identify a message in its waiting and delivered records."""
    queue = (message.topic, message.queue_id, message.reconsume_times)
    return *queue, message.born_timestamp, message.body_crc, message.properties
