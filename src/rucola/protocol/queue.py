"""MessageQueue as the key of a map."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rucola.domain.queue import MessageQueue
from rucola.errors import RemoteProtocolError
from rucola.fastjson import ObjectKey

_encode: Final = msgspec.json.Encoder().encode


def to_key(queue: MessageQueue) -> ObjectKey:
    """Return the key of a map, as in `{{"brokerName":"a","queueId":0,"topic":"T"}:…}`."""
    return ObjectKey.of({"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic})


def to_key_json(queue: MessageQueue) -> bytes:
    return _encode({"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic})


def from_key(key: Any) -> MessageQueue:
    """Convert a decoded map's key. RemoteProtocolError if it is not a queue."""
    members = key.as_dict() if isinstance(key, ObjectKey) else None
    try:
        return msgspec.convert(members, MessageQueue, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"a message queue as a key: {error}") from None
