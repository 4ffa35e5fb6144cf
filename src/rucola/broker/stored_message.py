"""Stored messages, decoded to deliver, retry, commit or dead-letter them.

The new record has another topic, queue or other properties. Body (still compressed), flag, born time and host, and keys
stay as stored.
"""

from __future__ import annotations

from rucola.errors import InvalidMessage
from rucola.message import MessageExt, MessageInner, properties, sysflag
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.ids import is_id
from rucola.message.record import decode
from rucola.store.message_store import MessageStore


def stored_message(store: MessageStore, physical_offset: int) -> MessageExt:
    """Return the message at this physical offset, its body as stored. InvalidMessage if missing or damaged."""
    return decoded(store.record_at(physical_offset), physical_offset)


def decoded(record: bytes | None, physical_offset: int) -> MessageExt:
    """Return the message of the record at a physical offset, as `stored_message`."""
    if record is None:
        raise InvalidMessage(f"no record begins at physical offset {physical_offset}")
    try:
        return decode(record, decompress=False)
    except InvalidMessage as error:
        raise InvalidMessage(f"the record at physical offset {physical_offset} is damaged: {error}") from None


def is_another(message: MessageExt, msg_id: str | None) -> bool:
    """Return whether an id from a client is of another message. Clients that do not know it send any text, or none."""
    own = message.unique_key
    return own is not None and msg_id not in (None, own, message.offset_msg_id) and is_id(msg_id)


def renewed(message: MessageExt) -> MessageInner:
    """Return the message to put again, without transaction bits. InvalidMessage if its properties do not fit."""
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
