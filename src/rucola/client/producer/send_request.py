"""SendRequest: content of a send request (a message or a batch) for any queue, and its messages' results."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from rucola.client.clock import now_ms
from rucola.client.route import DEFAULT_TOPIC_QUEUE_NUMS
from rucola.domain.queue import MessageQueue
from rucola.domain.version import VERSION
from rucola.errors import BrokerError, InvalidMessage, RemoteProtocolError
from rucola.message import Message, properties
from rucola.message.batch import encode_batch
from rucola.message.compression import CompressionType, compress
from rucola.message.delay import MAX_DELAY_LEVEL
from rucola.message.ids import unique_id
from rucola.message.topics import AUTO_CREATE_TOPIC, RETRY_PREFIX
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import LANGUAGE, RemotingCommand, next_opaque, to_ext_fields
from rucola.protocol.reply import REPLY_MESSAGE_FLAG
from rucola.protocol.send import SendMessageRequestHeaderV2, SendMessageResponseHeader

COMPRESS_THRESHOLD = 4096
MAX_MESSAGE_SIZE = 4 * 1024 * 1024
"""The largest body by default, in bytes. Brokers have a separate limit."""
_SAMPLE = 4096
MAX_COUNT: Final = 128
"""The most messages, and bytes, of a request into which several sends are packed."""
MAX_SIZE: Final = 1 << 20
MAX_BATCH_COUNT = 4096
"""The most messages of one request: its response has 33 bytes for each. Brokers have a separate limit."""


class SendStatus(Enum):
    """Status of a stored message. The last three mean: not yet flushed or replicated as configured."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)


_TIMERS = frozenset({properties.TIMER_DELIVER_MS, properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS})
_DELAYS = _TIMERS | {properties.DELAY}
ALONE: Final = _DELAYS | {
    properties.WAIT, properties.TRAN_MSG, properties.MSG_TYPE, properties.INNER_MULTI_DISPATCH,
}  # fmt: skip
"""Properties with which a message needs a separate request."""
_STATUS_OF_CODE = {status.value: status for status in SendStatus}


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Position of a stored message. `msg_id` is its unique key, `offset_msg_id` encodes its physical offset."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int

    @property
    def is_ok(self) -> bool:
        """Whether the message is flushed and replicated as the broker is configured to."""
        return self.status is SendStatus.SEND_OK


@lru_cache(maxsize=256)
def _common_fields(code: RequestCode, group: str, topic: str, sys_flag: int, flag: int) -> dict[str, str]:
    """Return the ext fields of sends that differ only in queue (e), born time (g) and properties (i)."""
    header = SendMessageRequestHeaderV2(
        producer_group=group,
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=DEFAULT_TOPIC_QUEUE_NUMS,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=0,
        flag=flag,
        batch="true" if code is RequestCode.SEND_BATCH_MESSAGE else "false",
    )
    return to_ext_fields(header)


class SendRequest(msgspec.Struct, frozen=True):
    code: RequestCode
    topic: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    """The encoded properties; a batch has them in its body."""
    unique_keys: tuple[str, ...]
    is_half: bool = False
    """Whether this is the half message of a transaction."""

    def command(self, group: str, queue: MessageQueue) -> RemotingCommand:
        """Encode the request for a queue, with the current time as born time."""
        ext = dict(_common_fields(self.code, group, self.topic, self.sys_flag, self.flag))
        ext["e"], ext["g"], ext["i"] = str(queue.queue_id), str(now_ms()), self.properties
        return RemotingCommand(self.code, ext, self.body, opaque=next_opaque(), language=LANGUAGE, version=VERSION)

    def results(self, response: RemotingCommand, queue: MessageQueue, address: str) -> list[SendResult]:
        """Return one result for each message. BrokerError if the response is an error."""
        status = _STATUS_OF_CODE.get(response.code)
        if status is None:
            raise BrokerError(response.code, response.remark, address)
        # The response's queue is nearly always the requested one: share that object.
        header = response.decode_header(SendMessageResponseHeader)
        if header.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
        if len(self.unique_keys) == 1:
            return [SendResult(status, self.unique_keys[0], header.msg_id, queue, header.queue_offset)]
        # A batch has consecutive queue offsets, and its message ids in one string.
        offset_msg_ids = header.msg_id.split(",")
        if len(offset_msg_ids) != len(self.unique_keys):
            raise RemoteProtocolError(
                f"{address} returned {len(offset_msg_ids)} message ids for a batch of {len(self.unique_keys)}"
            )
        return [
            SendResult(status, unique_key, offset_msg_id, queue, header.queue_offset + index)
            for index, (unique_key, offset_msg_id) in enumerate(zip(self.unique_keys, offset_msg_ids, strict=True))
        ]


def build_request(
    message: Message,
    queue: MessageQueue | None,
    *,
    compress_threshold: int,
    max_message_size: int,
    max_delay_level: int = MAX_DELAY_LEVEL,
    compressed: bytes | None = None,
) -> SendRequest:
    """Build the request of one message, whose unique key is set unless it has one. InvalidMessage.

    The message keeps its uncompressed body; `compressed` is the result of `compressed_body`, if that was called before.
    `queue` is the chosen queue, if there is one, and only checked.
    """
    unique_key = _check_message(message, queue, max_message_size)
    check_labels(message, max_delay_level)
    body, sys_flag = message.body, message.body_flags
    if len(body) >= compress_threshold and not sys_flag:
        if compressed is None:
            compressed = compressed_body(body)
        if compressed:
            body, sys_flag = compressed, CompressionType.ZLIB.sys_flag
    joined = properties.join(message.properties).decode()
    is_reply = message.properties.get(properties.MSG_TYPE) == REPLY_MESSAGE_FLAG
    code = RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else RequestCode.SEND_MESSAGE_V2
    is_half = properties.TRAN_MSG in message.properties
    return SendRequest(code, message.topic, body, sys_flag, message.flag, joined, (unique_key,), is_half)


def compressed_body(body: bytes) -> bytes:
    """Compress a body; empty if its beginning, middle and end shrink by less than a twentieth."""
    starts = (0, (len(body) - _SAMPLE) // 2, len(body) - _SAMPLE)
    sample = body if len(body) <= 4 * _SAMPLE else b"".join(bytes(body[start : start + _SAMPLE]) for start in starts)
    if len(compress(sample, CompressionType.ZLIB, level=1)) > len(sample) * 19 // 20:
        return b""
    return compress(body, CompressionType.ZLIB)


def build_batch_requests(
    messages: list[Message], queue: MessageQueue | None, *, max_message_size: int
) -> list[SendRequest]:
    """Build the requests of a batch, after checking all messages. InvalidMessage."""
    if not messages:
        return []
    first = messages[0]
    wait = first.properties.get(properties.WAIT)
    requests: list[SendRequest] = []
    bodies: list[bytes] = []
    keys: list[str] = []
    size = 0

    def end_request() -> None:
        joined = properties.join({properties.WAIT: wait} if wait else {}).decode()
        requests.append(build_encoded_request(first.topic, b"".join(bodies), keys, joined))

    for message in messages:
        _check_batchable(message, first, wait)
        unique_key, encoded = encode_part(message, queue, max_message_size)
        if len(encoded) > max_message_size:
            raise InvalidMessage(
                f"a message for topic {message.topic} takes {len(encoded)} bytes in a batch; "
                f"{max_message_size} are allowed"
            )
        if size + len(encoded) > max_message_size or len(bodies) == MAX_BATCH_COUNT:
            end_request()
            bodies, keys, size = [], [], 0
        bodies.append(encoded)
        keys.append(unique_key)
        size += len(encoded)
    end_request()
    return requests


def encode_part(message: Message, queue: MessageQueue | None, max_message_size: int) -> tuple[str, bytes]:
    """Return a message's unique key and its part of a batch, after checking it. InvalidMessage."""
    unique_key = _check_message(message, queue, max_message_size)
    check_labels(message, MAX_DELAY_LEVEL)
    return unique_key, encode_batch((message,))


def build_encoded_request(topic: str, body: bytes, unique_keys: Sequence[str], joined: str = "") -> SendRequest:
    """Build the request of an encoded batch; `joined` are the encoded properties of the batch itself."""
    return SendRequest(RequestCode.SEND_BATCH_MESSAGE, topic, body, 0, 0, joined, tuple(unique_keys))


def _check_message(message: Message, queue: MessageQueue | None, max_message_size: int) -> str:
    """Check a message's body, size and queue; return its unique key, set if missing. InvalidMessage."""
    body = message.body
    if not isinstance(message.topic, str):
        raise InvalidMessage(f"the topic of a message is {message.topic!r:.50}: it must be a str")
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidMessage(
            f"the body of a message for topic {message.topic} is {type(body).__name__}; it must be bytes"
        )
    size = len(body)
    if not size:
        raise InvalidMessage(f"a message for topic {message.topic} has an empty body; no broker takes one")
    if size > max_message_size:
        raise InvalidMessage(
            f"a message for topic {message.topic} has a body of {size} bytes; {max_message_size} are allowed"
        )
    if queue is not None and queue.topic != message.topic:
        raise InvalidMessage(f"a message for topic {message.topic} cannot go to {queue}, a queue of another topic")
    unique_key = message.properties.get(properties.UNIQ_KEY)
    if unique_key is None:
        unique_key = message.properties[properties.UNIQ_KEY] = unique_id()
    return unique_key


def check_labels(message: Message, max_delay_level: int = MAX_DELAY_LEVEL) -> None:
    """Check tags and delay level. InvalidMessage for those that a broker would accept and treat in another way."""
    tags = message.properties.get(properties.TAGS)
    if tags is not None and "||" in tags:
        raise InvalidMessage(f"a message for topic {message.topic} has tags {tags!r}: a message has one tag")
    if properties.DELAY in message.properties and message.delay_level > max_delay_level:
        raise InvalidMessage(
            f"a message for topic {message.topic} has delay level {message.delay_level}: brokers have the levels 1 to "
            f"{max_delay_level}, unless messageDelayLevel says otherwise (see max_delay_level of the producer)"
        )


def _check_batchable(message: Message, first: Message, wait: str | None) -> None:
    """Raise InvalidMessage unless a message can share a request with the first one."""
    if message.topic != first.topic:
        raise InvalidMessage(f"a batch has one topic: found {first.topic} and {message.topic}")
    if message.properties.get(properties.WAIT) != wait:
        raise InvalidMessage(f"the messages of a batch for {first.topic} differ in their property {properties.WAIT}")
    if not is_batchable(message):
        raise InvalidMessage(
            f"a message for {message.topic} cannot go in a batch: send it alone, as every message that is for a retry "
            f"topic, delayed (a delay level or time of delivery) or compressed already (body_flags)"
        )


def is_batchable(message: Message) -> bool:
    """Return whether a message may share a request. A broker would not delay it, or lose its flags."""
    found = message.properties
    is_delayed = not _DELAYS.isdisjoint(found) and (message.delay_level > 0 or not _TIMERS.isdisjoint(found))
    return not (is_delayed or message.body_flags or message.topic.startswith(RETRY_PREFIX))


def is_alone(message: Message, alone_from: int) -> bool:
    """Return whether a message needs a separate request, as one with a body of `alone_from` bytes or more."""
    return (
        not isinstance(message.body, bytes)
        or len(message.body) >= alone_from
        or bool(message.body_flags)
        or message.topic.startswith("%")
        or not ALONE.isdisjoint(message.properties)
    )
