"""Producer: sends messages to the queues of topics.

    build      check body and size before anything is sent; add a unique key unless the message has one; compress a
               body of 4 KiB or more for the wire if it shrinks (the message keeps its own), see `send_request`
    choose     the topic's next write queue, or the caller's choice, see `queue_rotation` and `queue_selectors`
    send       SEND_MESSAGE_V2 to the queue's master, or SEND_BATCH_MESSAGE for a batch; retries, see `sender`

Corresponds to `DefaultMQProducer` of Apache RocketMQ 4.9.8. Deliberate differences: see `sender`; a batch above the
limits of size and number is split into several requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Generic, Unpack

from rucola.acl.credentials import Credentials
from rucola.client.arguments import check_number, options_of
from rucola.client.connection_options import ConnectionOptions
from rucola.client.group_client import GroupClient, GroupClientKeywords
from rucola.client.instance import ClientInstance
from rucola.client.producer.accumulator import Accumulator
from rucola.client.producer.in_flight_sends import InFlightRequests, retrieve_error
from rucola.client.producer.options import ProducerKeywords, ProducerOptions
from rucola.client.producer.queue_selectors import QueueChoice
from rucola.client.producer.send_request import (
    SendRequest,
    SendResult,
    build_batch_requests,
    build_request,
    compressed_body,
)
from rucola.client.producer.sender import Sender, StartedSend
from rucola.client.request_reply import reply_message, request_message
from rucola.client.results import Results
from rucola.client.stats import ProducerStats
from rucola.client.values import Values
from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError, InvalidMessage, RemotingTimeout
from rucola.message import Message, MessageExt
from rucola.message.message import V
from rucola.message.topics import check_topic
from rucola.protocol.command import FLAG_ONEWAY
from rucola.remoting.deadline import Deadline
from rucola.remoting.tls import ClientTls

SEND_TIMEOUT_MS = 3000
IN_FLIGHT = 64
CLOSE_GRACE_MS = 3000
LARGE_BODY = 256 * 1024
"""Bytes from which on a body is compressed in a thread; this size takes 2 to 8 ms."""


def check_message(message: Message) -> None:
    """Raise InvalidMessage for anything else, such as a topic and a body."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"write a Message, as in send(Message('Orders', b'...')), not {message!r:.50}")


class ProducerArguments(GroupClientKeywords, ProducerKeywords[V], total=False):
    """Keyword arguments of a Producer, its subclass and its blocking counterpart."""


class Producer(GroupClient, Generic[V]):
    """Sends messages. `async with Producer("group", "host:9876") as producer: await producer.send(message)`.

    With `value=Order` it is a `Producer[Order]`, whose `message` takes values of this type.

    `namesrv`, `tls` and `credentials` are documented in ConnectionOptions, `options` in ProducerOptions.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None = None,
        *,
        instance: ClientInstance | None = None,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
        **options: Unpack[ProducerKeywords[V]],
    ) -> None:
        super().__init__(group, namesrv, instance, tls=tls, credentials=credentials)
        self.options = options_of(ProducerOptions, options, type(self).__name__)
        self._values = Values(self.options.value)
        self._sender = Sender(group, self.instance, self.options)
        self._accumulator = Accumulator(self._sender, self.options, self._build)
        self._topics_of_requests: set[str] = set()
        """Topics whose brokers have this client's heartbeat, so that they can push replies."""
        if (instrument := getattr(self.options.trace, "instrument", None)) is not None:
            instrument(self)

    async def _join(self) -> None:
        self._sender.in_flight.open()
        self.instance.add_producer(self.group, self)

    async def _leave(self) -> None:
        self._accumulator.flush()
        try:
            await self._sender.in_flight.close(CLOSE_GRACE_MS)
        finally:
            await self.instance.remove_producer(self.group, self)

    async def queues(self, topic: str, timeout_ms: float = SEND_TIMEOUT_MS) -> Sequence[MessageQueue]:
        """Return the topic's write queues, ordered by broker name and queue id. TopicNotFound."""
        self._check_open()
        return await self._write_queues(topic, Deadline(timeout_ms))

    def stats(self) -> dict[str, ProducerStats]:
        """Return the totals since the producer was made, by topic, see `rucola.client.stats`."""
        return self._sender.stats()

    def message(
        self,
        topic: str,
        value: V,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: dict[str, str] | None = None,
    ) -> Message:
        """Return a message whose body is an encoded value. ConfigError without the option `value`; InvalidMessage."""
        return Message(topic, self._values.encode(topic, value), tags, keys, properties)

    async def send(
        self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> SendResult:
        """Send a message and wait until it is stored.

        `timeout_ms` covers the route and all attempts. `queue` is the destination, or a selector of it (see
        `queue_selectors`). Sets the message's `unique_key` unless it has one.

        InvalidMessage before anything is sent; TopicNotFound; BrokerError if the broker rejects the message;
        SendFailed, with all attempts, after all retries; with `queue`, the error of the only attempt.
        """
        check_message(message)
        with self._call():
            deadline = Deadline(timeout_ms)
            chosen = None if queue is None else await self._choose(message.topic, queue, deadline)
            started = await self._start_send(message, chosen, deadline)
        return await self._result_of(started)

    async def send_oneway(
        self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> None:
        """Send a message without a response, so that its outcome is unknown; `timeout_ms` is for connecting."""
        check_message(message)
        with self._call():
            deadline = Deadline(timeout_ms)
            chosen = await self._choose(message.topic, queue, deadline)
            request = await self._request(message, chosen, deadline)
            queue = chosen or await self._sender.next_queue(request.topic, deadline)
            command = request.command(self.group, queue)
            command.flag |= FLAG_ONEWAY
            connection = await self._sender.connection(queue, deadline)
            self._sender.in_flight.check_open()
            connection.send(command)
            self._sender.counters_of(request.topic).oneway()

    async def send_batch(
        self, messages: Iterable[Message], queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        """Send messages of one topic together, each request to one queue; return one result per message, in order.

        A batch above the size limit, or of more than 4,096 messages, needs several requests. Each is stored completely
        or not at all; after an error it is unknown which. `timeout_ms` covers all. InvalidMessage as for `send`, and
        for messages that cannot share a request (several topics, a delay, the retry topic).
        """
        with self._call():
            deadline = Deadline(timeout_ms)
            batch = list(messages)
            for message in batch:
                check_message(message)
            chosen = await self._choose(batch[0].topic, queue, deadline) if batch else None
            results: list[SendResult] = []
            for request in build_batch_requests(batch, chosen, max_message_size=self.options.max_message_size):
                results += await self._sender.send(request, chosen, deadline)
            return results

    async def send_encoded(
        self, request: SendRequest, queue: MessageQueue, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        """Send a batch that is encoded already, see `send_request.build_encoded_request`; otherwise as `send_batch`."""
        with self._call():
            return await self._sender.send(request, queue, Deadline(timeout_ms))

    def send_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        in_flight: int = IN_FLIGHT,
        timeout_ms: float = SEND_TIMEOUT_MS,
    ) -> Results[SendResult]:
        """Send a stream of messages, up to `in_flight` at a time; await or iterate over the results, in order.

        Each message is checked, retried and fails as with `send`, with its own timeout. An error ends the stream; the
        messages after it may be stored. `messages` is consumed only as responses arrive and results are read.
        ConfigError.
        """
        check_number("in_flight", in_flight, least=1)
        return Results("Producer.send_many", self._send_many(messages, in_flight, timeout_ms))

    async def _send_many(
        self, messages: Iterable[Message] | AsyncIterable[Message], in_flight: int, timeout_ms: float
    ) -> AsyncGenerator[SendResult, None]:
        window: deque[asyncio.Future[SendResult] | StartedSend] = deque()
        try:
            async for message in iterate(messages):
                if len(window) >= in_flight:
                    yield await self._result_of(window.popleft())
                check_message(message)
                with self._call():
                    window.append(await self._start_send(message, None, Deadline(timeout_ms)))
            while window:
                yield await self._result_of(window.popleft())
        finally:
            for started in window:
                if isinstance(started, asyncio.Future):
                    started.cancel()
                    retrieve_error(started)
                else:
                    self._sender.abandon(started)

    async def request(
        self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> MessageExt:
        """Send a message and wait for its reply within `timeout_ms`; RemotingTimeout if it was stored but got none."""
        check_message(message)
        with self._call():
            deadline = Deadline(timeout_ms)
            await self._announce_for_replies(message.topic, deadline)
            with self.instance.replies.expect() as (correlation_id, reply):
                request = request_message(message, correlation_id, self.instance.client_id, timeout_ms)
                result = await self._send(request, queue, deadline)
                message.unique_key = request.unique_key
                try:
                    received: MessageExt = await self._sender.in_flight.wait_for(reply, deadline)
                except TimeoutError:
                    raise RemotingTimeout(
                        f"request {result.msg_id} is stored in {result.queue}, "
                        f"but no reply came within {timeout_ms:g} ms"
                    ) from None
                return received

    async def reply(self, request: MessageExt, body: bytes, timeout_ms: float = SEND_TIMEOUT_MS) -> SendResult:
        """Reply to a request; InvalidMessage if it is none. BrokerError or SendFailed for an unreachable requester."""
        message = reply_message(request, body)
        with self._call():
            deadline = Deadline(timeout_ms)
            queues = await self._write_queues(message.topic, deadline)
            of_broker = [q for q in queues if self.instance.routes.address(q.broker_name) == request.store_host]
            return await self._send(message, of_broker[0] if of_broker else None, deadline)

    async def _send(self, message: Message, queue: QueueChoice, deadline: Deadline) -> SendResult:
        """Send a message in a separate request."""
        chosen = await self._choose(message.topic, queue, deadline)
        return (await self._sender.send(await self._request(message, chosen, deadline), chosen, deadline))[0]

    async def _start_send(
        self, message: Message, chosen: MessageQueue | None, deadline: Deadline
    ) -> asyncio.Future[SendResult] | StartedSend:
        """Send a message, or add it to a batch, without waiting for the response."""
        if self.options.linger_ms is not None:
            future = self._accumulator.add(message, chosen, deadline)
            if future is not None:
                return future
            await asyncio.sleep(0)  # the batch before it is sent first
        return await self._sender.start(await self._request(message, chosen, deadline), chosen, deadline)

    async def _result_of(self, started: asyncio.Future[SendResult] | StartedSend) -> SendResult:
        with self._sender.in_flight:
            return await started if isinstance(started, asyncio.Future) else (await self._sender.results(started))[0]

    async def _choose(self, topic: str, choice: QueueChoice, deadline: Deadline) -> MessageQueue | None:
        """Return the queue that the caller chose; None if the rotation is to choose."""
        if choice is None:
            return None
        chosen = choice(await self._write_queues(topic, deadline)) if callable(choice) else choice
        if not isinstance(chosen, MessageQueue):
            raise ConfigError(f"a message for topic {topic} cannot go to {chosen!r}, which is no MessageQueue")
        return chosen

    async def _write_queues(self, topic: str, deadline: Deadline) -> Sequence[MessageQueue]:
        check_topic(topic)
        return (await self.instance.routes.find_for_sending(topic, deadline.left_ms)).write_queues

    async def _announce_for_replies(self, topic: str, deadline: Deadline) -> None:
        """Send a heartbeat before the first request to a topic: brokers push replies only to registered clients."""
        if topic not in self._topics_of_requests:
            await self._write_queues(topic, deadline)
            # A third of the time, so that a hanging broker does not use up all of it.
            await self.instance.send_heartbeats(deadline.share(3).left_ms)
            self._topics_of_requests.add(topic)

    def _call(self) -> InFlightRequests:
        """Return the context that counts a call. RemotingError if the producer is not open."""
        self._check_open()
        return self._sender.in_flight

    async def _request(self, message: Message, chosen: MessageQueue | None, deadline: Deadline) -> SendRequest:
        """Build a request, compressing a large body in a thread: that would hold the event loop for milliseconds."""
        options, body, compressed = self.options, message.body, None
        is_plain = isinstance(body, (bytes, bytearray, memoryview)) and not message.body_flags
        if is_plain and max(LARGE_BODY, options.compress_threshold) <= len(body) <= options.max_message_size:
            try:
                async with deadline.scope():
                    compressed = await asyncio.to_thread(compressed_body, body)
            except RuntimeError:  # the main thread has ended, and Python's thread pools accept nothing more
                pass
            except TimeoutError:
                raise RemotingTimeout(
                    f"the timeout of {deadline.timeout_ms:g} ms ended while a message for topic {message.topic} waited "
                    "for its compression: it was not sent; the threads of the event loop's executor are busy"
                ) from None
        return self._build(message, chosen, compressed)

    def _build(self, message: Message, chosen: MessageQueue | None, compressed: bytes | None = None) -> SendRequest:
        options = self.options
        return build_request(
            message,
            chosen,
            compress_threshold=options.compress_threshold,
            max_message_size=options.max_message_size,
            max_delay_level=options.max_delay_level,
            compressed=compressed,
        )


async def iterate(messages: Iterable[Message] | AsyncIterable[Message]) -> AsyncIterator[Message]:
    """Yield the messages of either kind of stream."""
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message
