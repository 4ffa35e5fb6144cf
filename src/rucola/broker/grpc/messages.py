"""Messages from senders to the store."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from rucola.broker.delivery.timer import MAX_DELAY_MS
from rucola.broker.grpc.codes import IllegalCall
from rucola.broker.grpc.encoding import OWN, TRACE_CONTEXT, valid_ms
from rucola.broker.grpc.methods import checked, name_of
from rucola.broker.services.requests import PublishRequest
from rucola.domain.subscription import TAG
from rucola.errors import InvalidMessage
from rucola.message import properties, sysflag
from rucola.message.topics import check_topic
from rucola.protocol.grpc.definition_pb2 import (
    Code,
    DigestType,
    Encoding,
    FilterExpression,
    FilterType,
    Message,
    MessageType,
    SystemProperties,
)

SQL92: Final = "SQL92"
MAX_USER_PROPERTIES: Final = 128
MAX_USER_PROPERTIES_SIZE: Final = 16 * 1024
MAX_MESSAGE_GROUP_SIZE: Final = 64

_ENCODINGS: Final = (Encoding.ENCODING_UNSPECIFIED, Encoding.IDENTITY, Encoding.GZIP)
_DIGESTS: Final[dict[DigestType, Callable[[bytes], str]]] = {
    DigestType.CRC32: lambda body: f"{zlib.crc32(body):08X}",
    DigestType.MD5: lambda body: hashlib.md5(body, usedforsecurity=False).hexdigest().upper(),
    DigestType.SHA1: lambda body: hashlib.sha1(body, usedforsecurity=False).hexdigest().upper(),
}
"""Of the body as it is sent."""
_has_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").search


def expression_type(expression: FilterExpression) -> str:
    """Return the type of a filter, as 4.x clients name it. Raises IllegalCall."""
    if expression.type == FilterType.SQL:
        return SQL92
    if expression.type not in (FilterType.TAG, FilterType.FILTER_TYPE_UNSPECIFIED):
        raise IllegalCall(Code.ILLEGAL_FILTER_EXPRESSION, f"the filter has type {expression.type}, not tag or SQL")
    return TAG


def milliseconds(value: Timestamp | Duration) -> int:
    """Return a time of any size; `ToMilliseconds` fails for one that is out of range."""
    return value.seconds * 1000 + value.nanos // 1_000_000


def publish_request(message: Message, max_body_size: int, max_keys: int, now_ms: int) -> PublishRequest:
    """Return what to publish. Raises IllegalCall with the code of what is wrong."""
    system = message.system_properties
    topic = checked(check_topic, name_of(message.topic), Code.ILLEGAL_TOPIC)
    if not system.message_id.strip() or _has_control(system.message_id):
        raise IllegalCall(Code.ILLEGAL_MESSAGE_ID, "the message has no id")
    pairs = _user_properties(message)
    pairs[properties.UNIQ_KEY] = system.message_id
    if system.HasField("tag"):
        if not system.tag.strip() or "|" in system.tag or _has_control(system.tag):
            raise IllegalCall(Code.ILLEGAL_MESSAGE_TAG, f"the tag is {system.tag!r}: it is blank, or has | or controls")
        pairs[properties.TAGS] = system.tag
    if system.keys:
        if len(system.keys) > max_keys:
            text = f"{len(system.keys)} keys; {max_keys} are allowed (maxKeysPerMessage)"
            raise IllegalCall(Code.ILLEGAL_MESSAGE_KEY, text)
        if any(not key.strip() or _has_control(key) for key in system.keys):
            raise IllegalCall(Code.ILLEGAL_MESSAGE_KEY, "a key is blank, or has control characters")
        pairs[properties.KEYS] = properties.KEY_SEPARATOR.join(system.keys)
    if system.trace_context:
        if _has_control(system.trace_context):
            raise IllegalCall(Code.BAD_REQUEST, "the trace context has control characters")
        pairs[TRACE_CONTEXT] = system.trace_context
    _add_type(system, pairs, topic, now_ms)
    try:
        encoded = properties.join(pairs)
    except InvalidMessage as error:
        raise IllegalCall(Code.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from None
    return PublishRequest(
        topic,
        -1,
        _body(message, max_body_size),
        encoded,
        0,
        sysflag.TRANSACTION_PREPARED if properties.TRAN_MSG in pairs else 0,
        _born_ms(system, now_ms),
        producer_group=topic,
    )


def _user_properties(message: Message) -> dict[str, str]:
    if (count := len(message.user_properties)) > MAX_USER_PROPERTIES:
        text = f"{count} user properties; {MAX_USER_PROPERTIES} are allowed"
        raise IllegalCall(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    pairs, size = dict(message.user_properties), 0
    for name, value in pairs.items():
        size += len(name.encode()) + len(value.encode())
        if not name or not value or name in OWN or _has_control(name) or _has_control(value):
            text = f"the property {name[:64]!r} is reserved, is empty, or has control characters"
            raise IllegalCall(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
    if size > MAX_USER_PROPERTIES_SIZE:
        text = f"the user properties have {size} bytes; {MAX_USER_PROPERTIES_SIZE} are allowed"
        raise IllegalCall(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    return pairs


def _add_type(system: SystemProperties, pairs: dict[str, str], topic: str, now_ms: int) -> None:
    kind = system.message_type
    if kind in (MessageType.LITE, MessageType.PRIORITY) or system.HasField("lite_topic") or system.HasField("priority"):
        raise IllegalCall(Code.NOT_IMPLEMENTED, "this server has no lite topics and no priorities")
    has_group, has_time = system.HasField("message_group"), system.HasField("delivery_timestamp")
    is_half = kind == MessageType.TRANSACTION
    found = [MessageType.FIFO] * has_group + [MessageType.DELAY] * has_time + [MessageType.TRANSACTION] * is_half
    if found not in ([kind], [] if kind in (MessageType.NORMAL, MessageType.MESSAGE_TYPE_UNSPECIFIED) else None):
        text = f"a message of type {kind} with a message group: {has_group}, with a delivery time: {has_time}"
        raise IllegalCall(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
    if has_group:
        group = system.message_group
        if not group.strip() or len(group) > MAX_MESSAGE_GROUP_SIZE or _has_control(group):
            text = f"the message group is blank, longer than {MAX_MESSAGE_GROUP_SIZE}, or has control characters"
            raise IllegalCall(Code.ILLEGAL_MESSAGE_GROUP, text)
        pairs[properties.SHARDING_KEY] = group
    if has_time:
        due_ms = milliseconds(system.delivery_timestamp)
        if due_ms - now_ms > MAX_DELAY_MS:
            text = f"the delivery time {due_ms} is more than a hundred years ahead; is it in another unit?"
            raise IllegalCall(Code.ILLEGAL_DELIVERY_TIME, text)
        pairs[properties.TIMER_DELIVER_MS] = str(due_ms)
    if is_half:
        pairs[properties.TRAN_MSG] = "true"
        pairs[properties.PGROUP] = topic
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            pairs[properties.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(max(seconds, 0))


def _born_ms(system: SystemProperties, now_ms: int) -> int:
    born_ms = milliseconds(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    if born_ms != valid_ms(born_ms):
        raise IllegalCall(Code.BAD_REQUEST, f"the born timestamp {born_ms} is not within the years 1 to 9999")
    return born_ms


def _body(message: Message, max_size: int) -> bytes:
    body, system = message.body, message.system_properties
    if not body:
        raise IllegalCall(Code.MESSAGE_BODY_EMPTY, "the message has no body")
    if system.HasField("body_digest") and (system.body_digest.type or system.body_digest.checksum):
        digest = _DIGESTS.get(system.body_digest.type)
        if digest is None:
            raise IllegalCall(Code.BAD_REQUEST, f"the body has a digest of type {system.body_digest.type}, not known")
        if (found := digest(body)) != system.body_digest.checksum.upper():
            text = f"the digest of the body is {found}, and not {system.body_digest.checksum[:64]!r}"
            raise IllegalCall(Code.MESSAGE_CORRUPTED, text)
    if system.body_encoding not in _ENCODINGS:
        raise IllegalCall(Code.BAD_REQUEST, f"the body has the encoding {system.body_encoding}, not identity or gzip")
    if system.body_encoding == Encoding.GZIP:
        body = _inflated(body, max_size)  # 4.x consumers know no gzip
    if len(body) > max_size:
        text = f"the body has {len(body)} bytes; {max_size} are allowed (maxMessageSize)"
        raise IllegalCall(Code.MESSAGE_BODY_TOO_LARGE, text)
    return body


def _inflated(body: bytes, max_size: int) -> bytes:
    """Inflate gzip, or zlib, as some clients call it, up to one byte more than `max_size`."""
    inflater = zlib.decompressobj(32 + zlib.MAX_WBITS)
    try:
        inflated = inflater.decompress(body, max_size + 1)
    except zlib.error as error:
        raise IllegalCall(Code.MESSAGE_CORRUPTED, f"the body is not compressed with gzip: {error}") from None
    if not inflater.eof and len(inflated) <= max_size:
        raise IllegalCall(Code.MESSAGE_CORRUPTED, "the compressed body is cut off")
    return inflated
