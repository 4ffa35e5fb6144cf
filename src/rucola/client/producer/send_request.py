"""SendRequest: what one request of a producer carries, a message or a batch, and what its answer says of each message.

    pack          one message: body and size checked, a unique key unless it has one, a large body compressed
    pack_batch    messages of one topic, in as few requests as the size limit allows, all checked before one is sent

A parcel belongs to no queue; the same one is sent to another broker when the first could not take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from rucola.client.clock import now_ms
from rucola.client.route import DEFAULT_TOPIC_QUEUE_NUMS
from rucola.errors import BrokerError, InvalidMessage, RemoteProtocolError
from rucola.message import Message, properties
from rucola.message.batch import encode_batch
from rucola.message.compression import CompressionType, compress
from rucola.message.ids import unique_id
from rucola.message.topics import AUTO_CREATE_TOPIC, RETRY_PREFIX
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.queue import MessageQueue
from rucola.protocol.reply import REPLY_MESSAGE_FLAG
from rucola.protocol.send import SendMessageRequestHeaderV2, SendMessageResponseHeader

COMPRESS_THRESHOLD = 4096
MAX_MESSAGE_SIZE = 4 * 1024 * 1024


class SendStatus(Enum):
    """What the broker vouches for. In every case the message is stored; the last three say what it still lacks."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)


_STATUS_OF_CODE = {status.value: status for status in SendStatus}


class SendResult(msgspec.Struct, frozen=True):
    """Where a message came to lie. `msg_id` is its unique key, `offset_msg_id` its address in the broker's log."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int

    @property
    def is_ok(self) -> bool:
        """Whether the broker vouches for it without reservation."""
        return self.status is SendStatus.SEND_OK


class SendRequest(msgspec.Struct, frozen=True):
    """What one request carries, for whatever queue: a message, or a batch with the unique keys of its messages.

    `is_half` says that it is half of a transaction.
    """

    code: RequestCode
    topic: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    unique_keys: tuple[str, ...]
    is_half: bool = False

    def command(self, group: str, queue: MessageQueue) -> RemotingCommand:
        header = SendMessageRequestHeaderV2(
            producer_group=group,
            topic=self.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=DEFAULT_TOPIC_QUEUE_NUMS,
            queue_id=queue.queue_id,
            sys_flag=self.sys_flag,
            born_timestamp=now_ms(),
            flag=self.flag,
            properties=self.properties,
            batch="true" if self.code is RequestCode.SEND_BATCH_MESSAGE else "false",
        )
        return RemotingCommand.request(self.code, header, self.body)

    def results(self, answer: RemotingCommand, queue: MessageQueue, address: str) -> list[SendResult]:
        """One result a message. BrokerError for an answer that says it was not stored."""
        status = _STATUS_OF_CODE.get(answer.code)
        if status is None:
            raise BrokerError(answer.code, answer.remark, address)
        header = answer.decode_header(SendMessageResponseHeader)
        if header.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
        if len(self.unique_keys) == 1:
            return [SendResult(status, self.unique_keys[0], header.msg_id, queue, header.queue_offset)]
        offset_msg_ids = header.msg_id.split(",")
        if len(offset_msg_ids) != len(self.unique_keys):
            raise RemoteProtocolError(
                f"{address} answered {len(offset_msg_ids)} message ids to a batch of {len(self.unique_keys)}"
            )
        return [
            SendResult(status, unique_key, offset_msg_id, queue, header.queue_offset + index)
            for index, (unique_key, offset_msg_id) in enumerate(zip(self.unique_keys, offset_msg_ids, strict=True))
        ]


def pack(
    message: Message, chosen: MessageQueue | None, *, compress_threshold: int, max_message_size: int
) -> SendRequest:
    """The request for one message, which gets its unique key. InvalidMessage."""
    unique_key = _prepare(message, chosen, max_message_size)
    body, sys_flag = message.body, 0
    if len(body) >= compress_threshold:
        body, sys_flag = compress(body, CompressionType.ZLIB), CompressionType.ZLIB.sys_flag
    joined = properties.join(message.properties).decode()
    is_reply = message.properties.get(properties.MSG_TYPE) == REPLY_MESSAGE_FLAG
    code = RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else RequestCode.SEND_MESSAGE_V2
    is_half = properties.TRAN_MSG in message.properties
    return SendRequest(code, message.topic, body, sys_flag, message.flag, joined, (unique_key,), is_half)


def pack_batch(messages: list[Message], chosen: MessageQueue | None, *, max_message_size: int) -> list[SendRequest]:
    """The requests for a batch, all checked and encoded before the first is sent. InvalidMessage."""
    if not messages:
        return []
    first = messages[0]
    wait = first.properties.get(properties.WAIT)
    parcels: list[SendRequest] = []
    bodies: list[bytes] = []
    keys: list[str] = []
    size = 0

    def close_parcel() -> None:
        joined = properties.join({properties.WAIT: wait} if wait else {}).decode()
        parcels.append(encoded_batch(first.topic, b"".join(bodies), keys, joined))

    for message in messages:
        _check_batched(message, first, wait)
        unique_key = _prepare(message, chosen, max_message_size)
        encoded = encode_batch((message,))
        if len(encoded) > max_message_size:
            raise InvalidMessage(
                f"a message for topic {message.topic} takes {len(encoded)} bytes in a batch; "
                f"{max_message_size} are allowed"
            )
        if size + len(encoded) > max_message_size:
            close_parcel()
            bodies, keys, size = [], [], 0
        bodies.append(encoded)
        keys.append(unique_key)
        size += len(encoded)
    close_parcel()
    return parcels


def encoded_batch(topic: str, body: bytes, unique_keys: Sequence[str], joined: str = "") -> SendRequest:
    """The request for messages that are encoded already; `joined` are the properties of the batch itself."""
    return SendRequest(RequestCode.SEND_BATCH_MESSAGE, topic, body, 0, 0, joined, tuple(unique_keys))


def _prepare(message: Message, chosen: MessageQueue | None, max_message_size: int) -> str:
    """Check what can be checked here, and return the unique key, made where there is none."""
    body = message.body
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
    if chosen is not None and chosen.topic != message.topic:
        raise InvalidMessage(f"a message for topic {message.topic} cannot go to {chosen}, a queue of another topic")
    unique_key = message.properties.get(properties.UNIQ_KEY)
    if unique_key is None:
        unique_key = message.properties[properties.UNIQ_KEY] = unique_id()
    return unique_key


def _check_batched(message: Message, first: Message, wait: str | None) -> None:
    if message.topic != first.topic:
        raise InvalidMessage(f"a batch has one topic: found {first.topic} and {message.topic}")
    if message.properties.get(properties.WAIT) != wait:
        raise InvalidMessage(f"the messages of a batch for {first.topic} differ in their property {properties.WAIT}")
    if message.delay_level > 0:
        raise InvalidMessage(f"a message for {message.topic} with a delay level cannot go in a batch: send it alone")
    if message.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(f"messages for {message.topic} cannot go in a batch: send them one by one")
