"""A message that has waited, delivered: put into its own queue, which its properties REAL_TOPIC and REAL_QID name.

What waits may have been delivered before: noting that comes after the delivery, and a crash may come between. Where
that can be, a message with a unique key is looked for in the index, and is passed over when it is there already. It is
told from an older message with the same key by being younger than what waited; only for what was rolled (see
`broker.timer`) that says nothing.

Answers to `ScheduleMessageService.DeliverDelayedMessageTimerTask` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import logging

from rucola.broker.stored import renewed, stored_message
from rucola.errors import InvalidMessage
from rucola.message import MessageExt, properties
from rucola.message.record import decode
from rucola.message.topics import TRANS_HALF_TOPIC
from rucola.store.config import PutMessageStatus
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

BATCH = 256
"""Most messages that are delivered in one turn, so that other work comes in between."""
RETRY_AFTER_MS = 1000
"""How long deliveries rest when the store took no message."""

LATER = (PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.CREATE_MAPEDFILE_FAILED)
"""What a store says that takes no message now."""


def deliver(store: MessageStore, physical_offset: int, now_ms: int, *, may_be_there: bool) -> bool:
    """Put the message that waits there into its own queue; False where the store takes none now.

    One that cannot be delivered at all (damaged, or no longer fit for a record) is logged and passed over.
    """
    message = stored_message(store, physical_offset)
    if message is None:
        logger.error("no message that waits can be read at %d; it is passed over", physical_offset)
        return True
    pairs = message.properties
    was_rolled = pairs.pop(properties.TIMER_ROLL_TIMES, None) is not None
    try:
        message.topic, message.queue_id = pairs[properties.REAL_TOPIC], int(pairs[properties.REAL_QID])
        if message.topic == TRANS_HALF_TOPIC:
            raise InvalidMessage("it is half of a transaction")
        if (may_be_there or was_rolled) and _is_there(store, message, 0 if was_rolled else physical_offset):
            return True
        message.prepared_transaction_offset = 0
        status = store.put(renewed(message), now_ms).status
    except (InvalidMessage, KeyError, ValueError) as error:
        logger.error("the message %s waited, but cannot be delivered: %r", message.offset_msg_id, error)
        return True
    if status in LATER:
        return False
    if status is not PutMessageStatus.PUT_OK:
        logger.error("the message %s waited, but cannot be delivered: %s", message.offset_msg_id, status.name)
    return True


def _is_there(store: MessageStore, waiting: MessageExt, since: int) -> bool:
    """Whether its own queue has a record of this message behind the physical offset `since`."""
    if waiting.unique_key is None:
        return False
    for record in store.query(waiting.topic, waiting.unique_key, BATCH).records:
        found = decode(record, decompress=False, check_crc=False)
        if found.physical_offset > since and _identity(found) == _identity(waiting):
            return True
    return False


def _identity(message: MessageExt) -> tuple[object, ...]:
    """What a message that waited and the one that was delivered have in common, and no other two."""
    place = (message.topic, message.queue_id, message.reconsume_times)
    return *place, message.born_timestamp, message.body_crc, message.properties
