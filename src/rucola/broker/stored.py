"""Stored messages, taken up again: to deliver them when due, to try them once more, to end their transaction.

What is put a second time is the stored message with another place or other properties. Its body stays as it was
stored, compressed or not, and its birth stays what the producer said.
"""

from __future__ import annotations

from rucola.errors import InvalidMessage
from rucola.message import MessageExt, MessageInner, properties
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.record import decode
from rucola.store.message_store import MessageStore


def stored_message(store: MessageStore, physical_offset: int) -> MessageExt | None:
    """The message whose record begins there, its body as stored; None where no sound record does."""
    record = store.record_at(physical_offset)
    if record is None:
        return None
    try:
        return decode(record, decompress=False)
    except InvalidMessage:
        return None


def renewed(message: MessageExt) -> MessageInner:
    """The message as it is put again. Topic, queue, properties and the rest may have been changed before.

    InvalidMessage where the properties no longer fit a record.
    """
    pairs = message.properties
    return MessageInner(
        topic=message.topic,
        queue_id=message.queue_id,
        body=message.body,
        properties=properties.join(pairs),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=encode_host(message.born_host),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        tags_code=tags_code(pairs.get(properties.TAGS)),
        unique_key=pairs.get(properties.UNIQ_KEY),
        keys=pairs.get(properties.KEYS),
    )
