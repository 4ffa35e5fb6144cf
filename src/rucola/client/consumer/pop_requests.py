"""PopRequests: the requests of POP that a group sends to brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rucola.client.instance import ClientInstance
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError, ConfigError
from rucola.message import MessageExt, properties
from rucola.message.record import decode_many
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.pop import (
    MAX_BITS,
    AckMessageRequestHeader,
    BatchAck,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    ExtraInfo,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    add_handles,
    parse_extra_info,
)

REQUEST_TIMEOUT_MS: Final = 5000
MAX_ACKED: Final = 256
"""Messages of one acknowledgement."""
_NOTHING: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
_MAX_BITS: Final = 8 * (MAX_BITS // MAX_ACKED - 1)
"""Messages in the bit set of one receive, so that those of a whole request are below MAX_BITS bytes."""


class Held(NamedTuple):
    """A message as its holder names it."""

    topic: str
    handle: ExtraInfo


class PopRequests:
    def __init__(self, group: str, instance: ClientInstance) -> None:
        self._group = group
        self._instance = instance

    async def pop(self, broker: str, header: PopMessageRequestHeader) -> list[MessageExt]:
        """Return messages with their handles; none after `poll_time`. BrokerError, RemotingError."""
        request = RemotingCommand.request(RequestCode.POP_MESSAGE, header)
        queue = MessageQueue(header.topic, broker, 0)
        response = await self._instance.invoke_master(queue, request, REQUEST_TIMEOUT_MS + header.poll_time)
        if response.code in _NOTHING:
            return []
        _check(response, broker)
        messages = decode_many(response.body)
        add_handles(messages, response.decode_header(PopMessageResponseHeader), broker)
        return messages

    async def ack(self, broker: str, messages: Sequence[Held]) -> None:
        """Finish messages of one broker, at most MAX_ACKED. BrokerError, RemotingError.

        The code NO_MESSAGE means that one is not held any more; the others are finished.
        """
        acks, single = _batches(self._group, messages) if len(messages) > 1 else ([], messages)
        requests = [(held, RemotingCommand.request(RequestCode.ACK_MESSAGE, self._ack_header(held))) for held in single]
        if acks:
            body = encode_body(BatchAckMessageRequestBody(broker_name=broker, acks=acks))
            requests.append((messages[0], RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, body=body)))
        errors = await asyncio.gather(
            *(self._invoke(held.topic, broker, request) for held, request in requests), return_exceptions=True
        )
        for error in errors:
            if isinstance(error, BaseException):
                raise error

    async def change_invisible(self, held: Held, invisible_ms: int, *, suspend: bool = False) -> ExtraInfo:
        """Let nobody else receive a message for `invisible_ms` from now; return its new handle. Errors as `ack`.

        With `suspend`, its delivery does not count as an attempt.
        """
        topic, handle = held
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self._group,
            topic=handle.real_topic(topic, self._group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
            suspend=suspend,
        )
        request = RemotingCommand.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        response = await self._invoke(topic, handle.broker_name, request)
        changed = response.decode_header(ChangeInvisibleTimeResponseHeader)
        return handle._replace(
            pop_time=changed.pop_time, invisible_time=changed.invisible_time, revive_qid=changed.revive_qid
        )

    def _ack_header(self, held: Held) -> AckMessageRequestHeader:
        topic, handle = held
        return AckMessageRequestHeader(
            consumer_group=self._group,
            topic=handle.real_topic(topic, self._group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.queue_offset,
        )

    async def _invoke(self, topic: str, broker: str, request: RemotingCommand) -> RemotingCommand:
        response = await self._instance.invoke_master(MessageQueue(topic, broker, 0), request, REQUEST_TIMEOUT_MS)
        return _check(response, broker)


def held(message: MessageExt) -> Held:
    """Return a received message as its holder names it. ConfigError if it was not received by POP."""
    text = message.properties.get(properties.POP_CK)
    if text is None:
        raise ConfigError(f"message {message.msg_id} has no handle: it was not received by POP")
    return Held(message.topic, parse_extra_info(text))


def _check(response: RemotingCommand, broker: str) -> RemotingCommand:
    if response.code != ResponseCode.SUCCESS:
        raise BrokerError(response.code, response.remark, broker)
    return response


def _batches(group: str, messages: Iterable[Held]) -> tuple[list[BatchAck], list[Held]]:
    """Return one entry for each receive and queue; and messages that are too far from the first of their receive."""
    numbers: dict[tuple[str, ExtraInfo], list[int]] = {}
    far = []
    for one in messages:
        number = one.handle.queue_offset - one.handle.start_offset
        if number < _MAX_BITS:
            numbers.setdefault((one.topic, one.handle._replace(queue_offset=0)), []).append(number)
        else:
            far.append(one)
    acks = [
        BatchAck(
            consumer_group=group,
            topic=topic,
            retry=handle.retry,
            start_offset=handle.start_offset,
            queue_id=handle.queue_id,
            revive_queue_id=handle.revive_qid,
            pop_time=handle.pop_time,
            invisible_time=handle.invisible_time,
            bit_set=_bits(found),
        )
        for (topic, handle), found in numbers.items()
    ]
    return acks, far


def _bits(numbers: Iterable[int]) -> bytes:
    bits = sum(1 << number for number in set(numbers))
    return bits.to_bytes(bits.bit_length() // 8 + 1, "little")
