"""SimpleConsumer: receives messages by POP, and acknowledges them one by one.

    receive            up to 32 messages that nobody else gets for the invisible time
    ack                finishes messages
    change_invisible   more time for a message; 0 lets others receive it at once

No queue belongs to a member, so a group may have more members than queues, and needs neither heartbeats nor a
rebalance. A message that is not acknowledged in time is delivered again, with `reconsume_times` one higher, and in the
end becomes a dead letter. Each message has its handle as property POP_CK.

With several brokers, a receive asks each of them, then waits at one after the other.

Corresponds to `SimpleConsumer` of the clients of RocketMQ 5, over remoting. Brokers of Apache 4.9 do not know POP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypedDict

from rucola.acl.credentials import Credentials
from rucola.client.clock import monotonic_ms, now_ms
from rucola.client.connection_options import ConnectionOptions
from rucola.client.group_client import GroupClient
from rucola.client.instance import ClientInstance
from rucola.domain.queue import MessageQueue
from rucola.domain.subscription import SUB_ALL
from rucola.errors import BrokerError, ConfigError
from rucola.message import MessageExt, properties
from rucola.message.record import decode_many
from rucola.message.topics import check_tags, check_topic
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.pop import (
    BEGIN_AT_END,
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
from rucola.remoting.tls import ClientTls

MAX_MESSAGES: Final = 32
REQUEST_TIMEOUT_MS: Final = 5000
TURN_MS: Final = 1000
"""How long a receive waits at one of several brokers."""
_NOTHING: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)


class ReceiveKeywords(TypedDict, total=False):
    """The keyword arguments of a receive."""

    invisible_ms: int
    wait_ms: int
    expression: str
    expression_type: str
    attempt_id: str | None


class SimpleConsumer(GroupClient):
    """Receives by POP for a group.

        async with SimpleConsumer("group", "host:9876") as consumer:
            for message in await consumer.receive("Orders", invisible_ms=60_000):
                ...
                await consumer.ack(message)

    With `orderly`, a message waits until the earlier ones with its sharding key are acknowledged. A group without
    committed offsets begins at the oldest messages, or with `begin_at_end` at new ones.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        *,
        orderly: bool = False,
        begin_at_end: bool = False,
        instance: ClientInstance | None = None,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(group, namesrv, instance, tls=tls, credentials=credentials)
        self._orderly = orderly
        self._begin_at_end = begin_at_end
        self._receives = 0

    async def receive(
        self,
        topic: str,
        max_messages: int = MAX_MESSAGES,
        *,
        invisible_ms: int = 60_000,
        wait_ms: int = 20_000,
        expression: str = SUB_ALL,
        expression_type: str = "TAG",
        attempt_id: str | None = None,
    ) -> list[MessageExt]:
        """Return messages, none after `wait_ms` without any. TopicNotFound, BrokerError, RemotingError.

        After an error, the same `attempt_id` gets the messages of a response that was lost.
        """
        self._check_open()
        check_topic(topic)
        if expression_type == "TAG":
            check_tags(expression)
        header = PopMessageRequestHeader(
            consumer_group=self.group,
            topic=topic,
            queue_id=-1,
            max_msg_nums=max_messages,
            invisible_time=invisible_ms,
            poll_time=0,
            born_time=now_ms(),
            init_mode=BEGIN_AT_END if self._begin_at_end else 0,
            exp_type=expression_type,
            exp=expression,
            order=self._orderly,
            attempt_id=attempt_id,
        )
        deadline_ms = monotonic_ms() + wait_ms
        brokers = await self._brokers(topic)
        is_waiting = len(brokers) == 1
        while True:
            for broker in brokers:
                left_ms = max(0, deadline_ms - monotonic_ms())
                turn_ms = left_ms if len(brokers) == 1 else min(left_ms, TURN_MS)
                header.poll_time = int(turn_ms) if is_waiting else 0
                if found := await self._pop(broker, header):
                    return found
            if monotonic_ms() >= deadline_ms:
                return []
            is_waiting = True

    async def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """Finish messages of one topic. BrokerError with code NO_MESSAGE if one is not held any more."""
        self._check_open()
        chosen = [messages] if isinstance(messages, MessageExt) else list(messages)
        by_broker: dict[str, list[tuple[MessageExt, ExtraInfo]]] = {}
        for message in chosen:
            handle = _handle(message)
            by_broker.setdefault(handle.broker_name, []).append((message, handle))
        for broker, held in by_broker.items():
            message, handle = held[0]
            if len(held) == 1:
                header = AckMessageRequestHeader(
                    consumer_group=self.group,
                    topic=handle.real_topic(message.topic, self.group),
                    queue_id=handle.queue_id,
                    extra_info=str(handle),
                    offset=handle.queue_offset,
                )
                await self._invoke(message.topic, broker, RemotingCommand.request(RequestCode.ACK_MESSAGE, header))
            else:
                body = encode_body(BatchAckMessageRequestBody(broker_name=broker, acks=_batches(self.group, held)))
                await self._invoke(
                    message.topic, broker, RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, body=body)
                )

    async def change_invisible(self, message: MessageExt, invisible_ms: int) -> None:
        """Let nobody else receive a message for `invisible_ms` from now; its handle changes. Errors as `ack`."""
        self._check_open()
        handle = _handle(message)
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self.group,
            topic=handle.real_topic(message.topic, self.group),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
        )
        request = RemotingCommand.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        response = await self._invoke(message.topic, handle.broker_name, request)
        changed = response.decode_header(ChangeInvisibleTimeResponseHeader)
        new = handle._replace(
            pop_time=changed.pop_time, invisible_time=changed.invisible_time, revive_qid=changed.revive_qid
        )
        message.properties[properties.POP_CK] = str(new)

    async def _brokers(self, topic: str) -> Sequence[str]:
        """Return the brokers to ask, beginning with another one each time."""
        queues = (await self.instance.routes.find(topic)).read_queues
        names = list(dict.fromkeys(queue.broker_name for queue in queues))
        self._receives += 1
        begin = self._receives % len(names) if names else 0
        return names[begin:] + names[:begin]

    async def _pop(self, broker: str, header: PopMessageRequestHeader) -> list[MessageExt]:
        request = RemotingCommand.request(RequestCode.POP_MESSAGE, header)
        queue = MessageQueue(header.topic, broker, 0)
        response = await self.instance.invoke_master(queue, request, REQUEST_TIMEOUT_MS + header.poll_time)
        if response.code in _NOTHING:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, broker)
        messages = decode_many(response.body)
        add_handles(messages, response.decode_header(PopMessageResponseHeader), broker)
        return messages

    async def _invoke(self, topic: str, broker: str, request: RemotingCommand) -> RemotingCommand:
        queue = MessageQueue(topic, broker, 0)
        response = await self.instance.invoke_master(queue, request, REQUEST_TIMEOUT_MS)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, broker)
        return response


def _handle(message: MessageExt) -> ExtraInfo:
    text = message.properties.get(properties.POP_CK)
    if text is None:
        raise ConfigError(f"message {message.msg_id} has no handle: it was not received by a SimpleConsumer")
    return parse_extra_info(text)


def _batches(group: str, held: Sequence[tuple[MessageExt, ExtraInfo]]) -> list[BatchAck]:
    """Return one entry for each receive and queue."""
    offsets: dict[tuple[str, ExtraInfo], list[int]] = {}
    for message, handle in held:
        offsets.setdefault((message.topic, handle._replace(queue_offset=0)), []).append(handle.queue_offset)
    return [
        BatchAck(
            consumer_group=group,
            topic=topic,
            retry=handle.retry,
            start_offset=handle.start_offset,
            queue_id=handle.queue_id,
            revive_queue_id=handle.revive_qid,
            pop_time=handle.pop_time,
            invisible_time=handle.invisible_time,
            bit_set=_bits(offset - handle.start_offset for offset in found),
        )
        for (topic, handle), found in offsets.items()
    ]


def _bits(numbers: Iterable[int]) -> bytes:
    bits = sum(1 << number for number in set(numbers))
    return bits.to_bytes(bits.bit_length() // 8 + 1, "little")
