"""Messages as a consumer receives them, for unit tests of handlers, which need no broker."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rucola.client.values import codec_of
from rucola.errors import ConfigError
from rucola.message import Message, MessageInner, record
from rucola.message.host import encode_host
from rucola.message.ids import unique_id
from rucola.message.message import MessageExt, V
from rucola.message.properties import join
from rucola.message.topics import check_topic

HOST = encode_host("127.0.0.1:10911")


def message(
    topic: str,
    body: bytes | None = None,
    *,
    value: V | None = None,
    tags: str | None = None,
    keys: str | Iterable[str] | None = None,
    properties: dict[str, str] | None = None,
    queue_id: int = 0,
    queue_offset: int = 0,
    reconsume_times: int = 0,
    timestamp_ms: int | None = None,
) -> MessageExt[V]:
    """Return a message with a body, or with a value and its JSON, as a consumer receives it.

    `timestamp_ms` is when it was born and stored, by default now. InvalidMessage; ConfigError for both body and value.
    """
    if value is not None:
        if body is not None:
            raise ConfigError("a message has a body or a value, whose body is its JSON: pass one of them")
        body = codec_of(type(value)).encode(value)
    check_topic(topic)
    sent = Message(topic, body or b"", tags, keys, properties)
    sent.unique_key = sent.unique_key or unique_id()
    now_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    inner = MessageInner(
        topic, queue_id, sent.body, join(sent.properties), 0, 0, now_ms, HOST, reconsume_times=reconsume_times
    )
    received: MessageExt[V] = record.decode(record.encode(inner, queue_offset, 0, now_ms, HOST))
    if value is not None:
        received.value = value
    return received
