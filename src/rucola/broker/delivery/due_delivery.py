"""Delivery of a message that has waited: it is put into its own queue, which REAL_TOPIC and REAL_QID name.

A message may have been delivered before: progress is noted after deliveries, and a crash may come in between. If that
is possible, a message with a unique key is looked up in the index, and skipped if it was delivered. The record in its
own queue is told from an older message with the same key by being younger than the one that waited; only for rolled
messages (see `broker.timer`) that says nothing.

Answers to `ScheduleMessageService.DeliverDelayedMessageTimerTask` of Apache RocketMQ 4.9.8. Deliberate difference:
maxMessageSize does not apply to a message that was admitted, where Apache stops the level until it is raised again.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from rucola.broker.delivery.internal_puts import InternalPuts
from rucola.broker.stored_message import stored_message
from rucola.errors import InvalidMessage
from rucola.message import MessageExt, properties
from rucola.message.record import decode
from rucola.message.topics import MAX_TOPIC_LENGTH, TRANS_HALF_TOPIC
from rucola.store.config import PutMessageStatus
from rucola.store.dispatch import check_queue_name
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

DELIVERY_BATCH = 256
"""Most messages that are delivered in one turn, so that other work comes in between."""

_MAX_QUEUE_ID = (1 << 31) - 1


def deliver(
    store: MessageStore, puts: InternalPuts, kind: str, physical_offset: int, now_ms: int, *, check_duplicate: bool
) -> bool:
    """Put the message that waits at a physical offset into its own queue; False if the put failed.

    A damaged record, and one that names no queue, is skipped and logged.
    """
    try:
        message = stored_message(store, physical_offset)
        own_place = _own_place(message)
    except InvalidMessage as error:
        logger.error("%s: a message cannot be delivered and is skipped: %s", kind, error)
        return True
    was_rolled = message.properties.pop(properties.TIMER_ROLL_TIMES, None) is not None
    message.topic, message.queue_id = own_place
    if (check_duplicate or was_rolled) and _is_there(store, message, 0 if was_rolled else physical_offset):
        return True
    message.prepared_transaction_offset = 0
    return puts.put_again(kind, message, now_ms).status is PutMessageStatus.PUT_OK


def _own_place(message: MessageExt) -> tuple[str, int]:
    """Return topic and queue id of a message that waits. Raises InvalidMessage if its properties name no queue."""
    names = (properties.REAL_TOPIC, properties.REAL_QID)
    topic, queue = (message.properties.get(name, "") for name in names)
    whose = f"message {message.msg_id} at physical offset {message.physical_offset}"
    if topic == TRANS_HALF_TOPIC:
        raise InvalidMessage(f"{whose} is half of a transaction")
    try:
        queue_id = int(queue)
        check_queue_name(topic, queue_id)
    except (InvalidMessage, ValueError):
        queue_id = -1
    if not 0 <= queue_id <= _MAX_QUEUE_ID or len(topic.encode()) > MAX_TOPIC_LENGTH:
        raise InvalidMessage(f"the properties {' and '.join(names)} of {whose} name no queue: {topic!r}, {queue!r}")
    return topic, queue_id


def _is_there(store: MessageStore, waiting: MessageExt, since: int) -> bool:
    """Tell whether its own queue has a record of this message behind the physical offset `since`."""
    if waiting.unique_key is None:
        return False
    for record in store.query(waiting.topic, waiting.unique_key, DELIVERY_BATCH).records:
        with suppress(InvalidMessage):  # a damaged record of another message must not keep this one back
            found = decode(record, decompress=False, check_crc=False)
            if found.physical_offset > since and _identity(found) == _identity(waiting):
                return True
    return False


def _identity(message: MessageExt) -> tuple[object, ...]:
    """Return what the waiting and the delivered record of a message have in common, and no two messages."""
    place = (message.topic, message.queue_id, message.reconsume_times)
    return *place, message.born_timestamp, message.body_crc, message.properties
