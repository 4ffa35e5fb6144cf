"""PopRequests: the requests of POP that a group sends to brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rucola.client.arguments import check_received
from rucola.client.clock import precise_monotonic_ms
from rucola.client.consumer.decoding import decoded
from rucola.client.instance import ClientInstance
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError, ConfigError, MQError
from rucola.message import MessageExt, properties
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
    first_handles,
    parse_extra_info,
)
from rucola.remoting.deadline import Deadline

REQUEST_TIMEOUT_MS: Final = 5000
MAX_ACKED: Final = 1024
"""Messages of one acknowledgement."""
_NOTHING: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
_MAX_SPAN: Final = 2048
"""Offsets of one receive and queue that are acknowledged together: a bit set of 256 bytes."""


class Held:
    """The messages of one queue that one receive delivered, as their holder names them."""

    __slots__ = ("handle", "queue_offsets", "topic", "until_ms")

    def __init__(self, topic: str, handle: ExtraInfo, until_ms: float = 0) -> None:
        self.topic = topic
        self.handle = handle
        """That of the first one."""
        self.until_ms = until_ms
        """When they are visible again, on the monotonic clock."""
        self.queue_offsets: list[int] = []
        """Of those that are to be acknowledged."""


class Received(NamedTuple):
    messages: list[MessageExt]
    held: list[Held]
    """Of each message, those that it was received with."""
    rest: int = 0
    """Messages that the group has not read yet, as the broker has counted them."""


class PopRequests:
    def __init__(self, group: str, instance: ClientInstance) -> None:
        self._group = group
        self._instance = instance

    async def pop(self, broker: str, headers: Sequence[PopMessageRequestHeader]) -> list[Received | MQError]:
        """Send receives of one topic together; return what each has received, nothing after `poll_time`, or its error.

        RemotingError if the broker does not answer them.
        """
        requests = [RemotingCommand.request(RequestCode.POP_MESSAGE, header) for header in headers]
        queue = MessageQueue(headers[0].topic, broker, 0)
        timeout_ms = REQUEST_TIMEOUT_MS + max(header.poll_time for header in headers)
        responses = await self._instance.invoke_master_all(queue, requests, timeout_ms)
        outcomes: list[Received | MQError] = []
        for header, response in zip(headers, responses, strict=True):
            try:
                outcomes.append(await self._received(broker, header, response))
            except MQError as error:
                outcomes.append(error)
        return outcomes

    async def _received(self, broker: str, header: PopMessageRequestHeader, response: RemotingCommand) -> Received:
        if response.code in _NOTHING:
            return Received([], [])
        _check(response, broker)
        source = f"a receive of {header.topic} from broker {broker}"
        messages, count = await decoded(response.body, source, Deadline(REQUEST_TIMEOUT_MS))
        until_ms = precise_monotonic_ms() + header.invisible_time
        held: list[Held] = []
        last: ExtraInfo | None = None
        popped = response.decode_header(PopMessageResponseHeader)
        for handle in first_handles(messages, popped, broker):
            if handle is not last:
                last, of_queue = handle, Held(header.topic, handle, until_ms)
            held.append(of_queue)
        for message, one in zip(messages[count:], held[count:], strict=True):
            await self.change_invisible(one, message.queue_offset, 0, suspend=True)
        return Received(messages[:count], held[:count], popped.rest_num)

    async def ack(self, broker: str, messages: Mapping[Held, Sequence[int]]) -> None:
        """Finish messages of one broker by their queue offsets, at most MAX_ACKED. BrokerError, RemotingError.

        The code NO_MESSAGE means that one is not held any more; the others are finished.
        """
        acks, single = _batches(self._group, messages)
        requests = [
            (held.topic, RemotingCommand.request(RequestCode.ACK_MESSAGE, self._ack_header(held, offset)))
            for held, offset in single
        ]
        if acks:
            body = encode_body(BatchAckMessageRequestBody(broker_name=broker, acks=acks))
            requests.append((acks[0].topic, RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, body=body)))
        errors = await asyncio.gather(
            *(self._invoke(topic, broker, request) for topic, request in requests), return_exceptions=True
        )
        for error in errors:
            if isinstance(error, BaseException):
                raise error

    async def change_invisible(
        self, held: Held, queue_offset: int, invisible_ms: int, *, suspend: bool = False
    ) -> ExtraInfo:
        """Hide a message from other receives for `invisible_ms` from now; return its new handle. Errors as `ack`.

        With `suspend`, its delivery does not count as an attempt.
        """
        topic, handle = held.topic, held.handle._replace(queue_offset=queue_offset)
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

    def _ack_header(self, held: Held, queue_offset: int) -> AckMessageRequestHeader:
        topic, handle = held.topic, held.handle._replace(queue_offset=queue_offset)
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


def held_by_broker(messages: Iterable[MessageExt]) -> dict[str, dict[Held, list[int]]]:
    """Return received messages as their holder names them. ConfigError if one was not received by POP."""
    found: dict[str, dict[Held, list[int]]] = {}
    known: dict[tuple[str, str], Held] = {}
    for message in messages:
        check_received(message)
        text = message.properties.get(properties.POP_CK)
        if text is None:
            raise ConfigError(f"message {message.msg_id} has no handle: it was not received by POP")
        begin, _, offset = text.rpartition(" ")
        if (held := known.get((message.topic, begin))) is None or not offset.isdecimal():
            handle = parse_extra_info(text)
            held = known[message.topic, begin] = Held(message.topic, handle._replace(queue_offset=handle.start_offset))
        found.setdefault(held.handle.broker_name, {}).setdefault(held, []).append(int(offset))
    return found


def _check(response: RemotingCommand, broker: str) -> RemotingCommand:
    if response.code != ResponseCode.SUCCESS:
        raise BrokerError(response.code, response.remark, broker)
    return response


def _batches(group: str, messages: Mapping[Held, Sequence[int]]) -> tuple[list[BatchAck], list[tuple[Held, int]]]:
    """Return one entry for each receive and queue; and messages that are alone or too far from the first of theirs."""
    if sum(map(len, messages.values())) == 1:
        return [], [(held, offset) for held, offsets in messages.items() for offset in offsets]
    acks, far, room = [], [], MAX_BITS
    for held, offsets in messages.items():
        handle, near, span = held.handle, 0, min(_MAX_SPAN, 8 * room - 1)
        for offset in offsets:
            if 0 <= (number := offset - handle.start_offset) < span:
                near |= 1 << number
            else:
                far.append((held, offset))
        if near:
            bits = near.to_bytes(near.bit_length() // 8 + 1, "little")
            room -= len(bits)
            acks.append(
                BatchAck(
                    consumer_group=group,
                    topic=held.topic,
                    retry=handle.retry,
                    start_offset=handle.start_offset,
                    queue_id=handle.queue_id,
                    revive_queue_id=handle.revive_qid,
                    pop_time=handle.pop_time,
                    invisible_time=handle.invisible_time,
                    bit_set=bits,
                )
            )
    return acks, far
