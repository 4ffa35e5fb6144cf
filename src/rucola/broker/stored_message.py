"""Stored messages, decoded to put them again: to deliver, retry, commit or dead-letter them.

The new record has another topic, queue or other properties. Body, flag, born time and host, and keys stay as stored; a
compressed body is neither decompressed nor compressed again.
"""

from __future__ import annotations

from rucola.errors import InvalidMessage
from rucola.message import MessageExt, MessageInner, properties, sysflag
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.record import decode
from rucola.store.message_store import MessageStore


def stored_message(store: MessageStore, physical_offset: int) -> MessageExt:
    """Return the message whose record begins at this physical offset, its body as stored.

    Raises InvalidMessage if no record begins there or the record is damaged.
    """
    record = store.record_at(physical_offset)
    if record is None:
        raise InvalidMessage(f"no record begins at physical offset {physical_offset}")
    try:
        return decode(record, decompress=False)
    except InvalidMessage as error:
        raise InvalidMessage(f"the record at physical offset {physical_offset} is damaged: {error}") from None


def renewed(message: MessageExt) -> MessageInner:
    """Return the message to put again; its topic, queue or properties may have changed.

    The transaction bits that keep a record out of every queue are cleared: they concern the record that was read.
    Raises InvalidMessage if the properties no longer fit a record.
    """
    pairs = message.properties
    sys_flag = message.sys_flag
    if not sysflag.is_dispatched(sys_flag):
        sys_flag = sysflag.with_transaction_state(sys_flag, sysflag.TRANSACTION_NOT)
    return MessageInner(
        topic=message.topic,
        queue_id=message.queue_id,
        body=message.body,
        properties=properties.join(pairs),
        flag=message.flag,
        sys_flag=sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=encode_host(message.born_host),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        tags_code=tags_code(pairs.get(properties.TAGS)),
        unique_key=pairs.get(properties.UNIQ_KEY),
        keys=pairs.get(properties.KEYS),
    )
