"""SimpleConsumer: receives messages by POP, and acknowledges them one by one.

    receive            up to 32 messages, which no other receive returns for the invisible time
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
from numbers import Real
from typing import Final, TypedDict

from rucola.acl.credentials import Credentials
from rucola.client.arguments import check_number
from rucola.client.clock import monotonic_ms, now_ms
from rucola.client.connection_options import ConnectionOptions
from rucola.client.consumer.pop_requests import MAX_ACKED, PopRequests, held_by_broker
from rucola.client.group_client import GroupClient
from rucola.client.instance import ClientInstance
from rucola.domain.subscription import SUB_ALL
from rucola.errors import MQError
from rucola.message import MessageExt, properties
from rucola.message.topics import check_tags, check_topic
from rucola.protocol.pop import BEGIN_AT_END, PopMessageRequestHeader, add_handle
from rucola.remoting.tls import ClientTls

MAX_MESSAGES: Final = 32
TURN_MS: Final = 1000
"""How long a receive waits at one of several brokers."""


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
        self._requests = PopRequests(group, self.instance)

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
        check_number("wait_ms", wait_ms, Real)
        check_number("invisible_ms", invisible_ms)
        check_number("max_messages", max_messages, least=1)
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
                (received,) = await self._requests.pop(broker, [header])
                if isinstance(received, MQError):
                    raise received
                for message, held in zip(received.messages, received.held, strict=True):
                    add_handle(message, held.handle)
                if received.messages:
                    return received.messages
            if monotonic_ms() >= deadline_ms:
                return []
            is_waiting = True

    async def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """Finish messages. BrokerError with code NO_MESSAGE if one is not held any more."""
        self._check_open()
        chosen = list(messages) if isinstance(messages, Iterable) else [messages]
        for first in range(0, len(chosen), MAX_ACKED):
            for broker, of_broker in held_by_broker(chosen[first : first + MAX_ACKED]).items():
                await self._requests.ack(broker, of_broker)

    async def change_invisible(self, message: MessageExt, invisible_ms: int) -> None:
        """Hide a message from other receives for `invisible_ms` from now; its handle changes. Errors as `ack`."""
        self._check_open()
        ((held, offsets),) = held_by_broker([message]).popitem()[1].items()
        handle = await self._requests.change_invisible(held, offsets[0], invisible_ms)
        message.properties[properties.POP_CK] = str(handle)

    async def _brokers(self, topic: str) -> Sequence[str]:
        """Return the brokers to ask, beginning with another broker each time."""
        queues = (await self.instance.routes.find(topic)).read_queues
        names = list(dict.fromkeys(queue.broker_name for queue in queues))
        self._receives += 1
        begin = self._receives % len(names) if names else 0
        return names[begin:] + names[:begin]
