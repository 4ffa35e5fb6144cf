"""Producer: from a message to its place in a queue.

    pack         check body and size before anything is sent; a unique key, unless the message has one; a body of
                 4 KiB or more is compressed by zlib, and only for the wire: the message keeps its own, see `parcel`
    choose       the next write queue of the topic's route, in turn
    send         SEND_MESSAGE_V2 to the queue's master, or SEND_BATCH_MESSAGE for several at once
    try again    on another broker where there is one, when the first could not take it

Tried again are failed connections and timeouts, while time is left, and those answers that another broker or a later
moment may change (`RETRY_CODES`); any other answer is a BrokerError at once. A message that is tried again may be
stored twice, with one unique key. Sending to a chosen queue tries that queue only, once. A message that was stored, but
for which its broker does not vouch (`SendStatus`), is stored on another broker as well where that is asked for.

Three ways, by what they cost on the client's side: `send` one by one, `send_many` with many requests under way in
one connection, `send_batch` with many messages in one request.

Answers to `DefaultMQProducer` and `DefaultMQProducerImpl` of Apache RocketMQ 4.9.8. Deliberate differences: a second
try on the same broker waits a moment instead of following at once; a batch above the size limit is split; a refusal
that another broker would repeat does not count against the broker, and of `send_many` only failures count; what is
stored without a broker's word goes to each other broker at most once, and never again to one that has it; half of a
transaction does not, since each copy would be a transaction of its own: it is rolled back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec

from rucola.client.clock import monotonic_ms, now_ms
from rucola.client.instance import ClientInstance, GroupClient
from rucola.client.producer.in_flight_requests import InFlightRequest, InFlightRequests
from rucola.client.producer.latency_faults import BrokerFaults, QueueRotation
from rucola.client.producer.queue_selectors import MessageQueueSelector
from rucola.client.producer.send_request import (
    COMPRESS_THRESHOLD,
    MAX_MESSAGE_SIZE,
    SendRequest,
    SendResult,
    encoded_batch,
    pack,
    pack_batch,
)
from rucola.client.request_reply import reply_message, request_message
from rucola.client.stats import ProducerStats, SendCounters
from rucola.client.trace_hooks import call_hook
from rucola.errors import (
    BrokerError,
    ConfigError,
    InvalidMessage,
    MQError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeout,
    SendFailed,
)
from rucola.message import Message, MessageExt, properties
from rucola.message.topics import NOT_ALLOWED_SEND_TOPICS, check_topic
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import FLAG_ONEWAY, RemotingCommand
from rucola.protocol.queue import MessageQueue
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline

logger = logging.getLogger(__name__)

SEND_TIMEOUT_MS = 3000
RETRY_TIMES = 2
RETRY_PAUSE_MS = 100
"""How long the second try on the same broker waits; the third waits twice as long."""
IN_FLIGHT = 64
CLOSE_GRACE_MS = 3000
"""How long `close` waits for calls that have begun."""

QueueChoice: TypeAlias = MessageQueue | MessageQueueSelector | None
"""Where a message shall go: to a queue, to one that a selector chooses, or to whichever is next."""

RETRY_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
"""Answers after which another broker may still take the message."""


class CompletedSend(msgspec.Struct, frozen=True):
    """A request that was answered: what it carried, and what came of it. `properties` and `body` are as on the wire.

    `region_id` and `trace_on` are the broker's; `begin_ms` is milliseconds since 1970.
    """

    group: str
    code: RequestCode
    topic: str
    body: bytes
    properties: str
    results: list[SendResult]
    address: str
    region_id: str
    trace_on: bool
    begin_ms: int
    cost_ms: int


class SendTrace(Protocol):
    """What a producer tells of what it sent, see `trace`."""

    def sent(self, sent: CompletedSend) -> None:
        """A request was answered."""

    def ended(self, group: str, message: Message | MessageExt, address: str, state: str, *, from_check: bool) -> None:
        """A transaction was ended, at this broker and as its state says."""


class _PipelinedSend(msgspec.Struct, frozen=True):
    """A message of a stream on its way to `queue`; without `posted` it could not be sent, and `failure` says why."""

    parcel: SendRequest
    queue: MessageQueue
    deadline: Deadline
    begin_ms: int
    counts: SendCounters
    counted_ms: float
    posted: InFlightRequest | None = None
    failure: RemotingError | None = None


class Producer(GroupClient):
    """Sends messages. `async with Producer("group", "host:9876") as producer: await producer.send(message)`.

    `retry_times` counts the tries after the first; `compress_threshold` and `max_message_size` are bytes of body;
    with `retry_another_broker_when_not_store_ok` a message goes to another broker as well where the first stored it,
    but does not vouch for it; with `latency_fault_tolerance` brokers that are slow or fail are passed over for a while,
    see `faults`; `trace` is told of what was stored.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        instance: ClientInstance | None = None,
        retry_times: int = RETRY_TIMES,
        compress_threshold: int = COMPRESS_THRESHOLD,
        max_message_size: int = MAX_MESSAGE_SIZE,
        retry_another_broker_when_not_store_ok: bool = False,
        latency_fault_tolerance: bool = False,
        trace: SendTrace | None = None,
    ) -> None:
        super().__init__(group, namesrv, instance)
        self.retry_times = retry_times
        self.compress_threshold = compress_threshold
        self.max_message_size = max_message_size
        self.retry_another_broker_when_not_store_ok = retry_another_broker_when_not_store_ok
        self.trace = trace
        self._topics_of_requests: set[str] = set()
        self._counts: dict[str, SendCounters] = {}
        self._turns = QueueRotation(BrokerFaults() if latency_fault_tolerance else None)
        self._in_flight = InFlightRequests(f"the producer of group {group}")

    async def _join(self) -> None:
        self._in_flight.open()
        self.instance.add_producer(self.group, self)

    async def _leave(self) -> None:
        try:
            await self._in_flight.close(CLOSE_GRACE_MS)
        finally:
            await self.instance.remove_producer(self.group, self)

    async def queues(self, topic: str, timeout_ms: float = SEND_TIMEOUT_MS) -> Sequence[MessageQueue]:
        """Return the queues that `send` chooses from, ordered by broker name and queue id. TopicNotFound."""
        self._must_be_open()
        return await self._queues(topic, Deadline(timeout_ms))

    def stats(self) -> dict[str, ProducerStats]:
        """What was counted since the producer was made, by topic, see `rucola.client.stats`."""
        return {topic: counts.view() for topic, counts in list(self._counts.items())}

    async def send(
        self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> SendResult:
        """Send one message and wait until it is stored. `timeout_ms` is for the route and all tries together.

        `queue` is one that was chosen, or a selector to choose it (see `selectors`). The message gets its `unique_key`
        unless it has one. InvalidMessage before anything is sent; TopicNotFound; BrokerError for a refusal; SendFailed
        when every try failed, which says all that was tried; with a chosen queue, the error of the only try.
        """
        with self._call():
            return await self._send_one(message, queue, Deadline(timeout_ms))

    async def send_oneway(
        self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> None:
        """Send one message without an answer: whether it is stored stays unknown. `timeout_ms` is for connecting."""
        with self._call():
            deadline = Deadline(timeout_ms)
            chosen = await self._chosen(message.topic, queue, deadline)
            parcel = self._pack(message, chosen)
            queue = chosen or await self._next_queue(parcel.topic, None, deadline)
            command = parcel.command(self.group, queue)
            command.flag |= FLAG_ONEWAY
            connection = await self._connection(queue, deadline)
            self._in_flight.must_be_open()
            connection.send(command)
            self._counts_of(parcel.topic).oneway()

    async def send_batch(
        self, messages: Iterable[Message], queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        """Send messages of one topic together, to one queue a request; one result a message, in order.

        A batch above the size limit goes in several requests, each for itself stored whole or not at all; an error
        then leaves open which of them were stored. `timeout_ms` is for all of them. InvalidMessage as for `send`, and
        for messages that cannot share a request (several topics, a delay, the retry topic).
        """
        with self._call():
            deadline = Deadline(timeout_ms)
            batch = list(messages)
            chosen = await self._chosen(batch[0].topic, queue, deadline) if batch else None
            results: list[SendResult] = []
            for parcel in pack_batch(batch, chosen, max_message_size=self.max_message_size):
                results += await self._deliver(parcel, chosen, deadline)
            return results

    async def send_encoded(
        self, body: bytes, unique_keys: Sequence[str], queue: MessageQueue, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        """Send a batch that the caller has encoded, see `rucola.message.batch`; one result a message, in order.

        Its messages, which have these unique keys, go to the queue's topic in one request. They are not checked
        here. The errors are those of `send` with a chosen queue.
        """
        with self._call():
            return await self._deliver(encoded_batch(queue.topic, body, unique_keys), queue, Deadline(timeout_ms))

    async def send_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        in_flight: int = IN_FLIGHT,
        timeout_ms: float = SEND_TIMEOUT_MS,
    ) -> AsyncGenerator[SendResult, None]:
        """Send a stream of messages, `in_flight` of them at a time; return their results in the same order.

        Each message is checked, tried again and fails as by `send`, with a timeout of its own; an error ends the
        stream, and leaves open whether the messages after it were stored. `messages` is read only as fast as answers
        come.
        """
        if in_flight < 1:
            raise ConfigError(f"in_flight is {in_flight}: it must be 1 or more")
        window: deque[_PipelinedSend] = deque()
        try:
            async for message in _each(messages):
                if len(window) >= in_flight:
                    yield await self._settle(window.popleft())
                window.append(await self._begin(message, Deadline(timeout_ms)))
            while window:
                yield await self._settle(window.popleft())
        finally:
            for pending in window:
                if pending.posted is not None:
                    self._in_flight.forget(pending.posted)
                pending.counts.failed(1, pending.counted_ms)

    async def request(
        self, message: Message, queue: QueueChoice = None, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> MessageExt:
        """Send a message and wait for the reply of its consumer; `timeout_ms` is for both.

        The errors are those of `send`, and RemotingTimeout if the message was stored but no reply came.
        """
        with self._call():
            deadline = Deadline(timeout_ms)
            if message.topic not in self._topics_of_requests:
                await self._queues(message.topic, deadline)
                # A broker pushes replies to clients that it knows. A broker that hangs must not use up the time.
                await self.instance.beat(deadline.share(3).left_ms)
                self._topics_of_requests.add(message.topic)
            with self.instance.replies.expected() as (correlation_id, reply):
                request = request_message(message, correlation_id, self.instance.client_id, timeout_ms)
                sent = await self._send_one(request, queue, deadline)
                message.unique_key = request.unique_key
                try:
                    answer: MessageExt = await self._in_flight.wait(reply, deadline)
                except TimeoutError:
                    raise RemotingTimeout(
                        f"request {sent.msg_id} is stored in {sent.queue}, but no reply came within {timeout_ms:g} ms"
                    ) from None
                return answer

    async def reply(self, request: MessageExt, body: bytes, timeout_ms: float = SEND_TIMEOUT_MS) -> SendResult:
        """Answer a request that was consumed. It is pushed to the requester by the broker that had the request.

        InvalidMessage if the message is no request. BrokerError or SendFailed if the requester is gone.
        """
        message = reply_message(request, body)
        with self._call():
            deadline = Deadline(timeout_ms)
            queues = await self._queues(message.topic, deadline)
            of_broker = [q for q in queues if self.instance.routes.address(q.broker_name) == request.store_host]
            return await self._send_one(message, of_broker[0] if of_broker else None, deadline)

    async def _send_one(self, message: Message, queue: QueueChoice, deadline: Deadline) -> SendResult:
        chosen = None if queue is None else await self._chosen(message.topic, queue, deadline)
        return (await self._deliver(self._pack(message, chosen), chosen, deadline))[0]

    async def _chosen(self, topic: str, choice: QueueChoice, deadline: Deadline) -> MessageQueue | None:
        if choice is None:
            return None
        chosen = choice(await self._queues(topic, deadline)) if callable(choice) else choice
        if not isinstance(chosen, MessageQueue):
            raise ConfigError(f"a message for topic {topic} cannot go to {chosen!r}, which is no MessageQueue")
        return chosen

    async def _queues(self, topic: str, deadline: Deadline) -> Sequence[MessageQueue]:
        check_topic(topic)
        return (await self.instance.routes.find_for_sending(topic, deadline.left_ms)).write_queues

    def _call(self) -> InFlightRequests:
        """Return the context of a new call. RemotingError if the producer is not open."""
        self._must_be_open()
        return self._in_flight

    def _pack(self, message: Message, chosen: MessageQueue | None = None) -> SendRequest:
        return pack(message, chosen, compress_threshold=self.compress_threshold, max_message_size=self.max_message_size)

    # From parcels to results.

    async def _deliver(self, parcel: SendRequest, chosen: MessageQueue | None, deadline: Deadline) -> list[SendResult]:
        """Send, and count the outcome."""
        counts, count = self._counts_of(parcel.topic), len(parcel.unique_keys)
        begin_ms = counts.begin(count)
        try:
            results = await self._send(parcel, chosen, deadline, [])
        except BaseException:
            counts.failed(count, begin_ms)
            raise
        counts.stored(count, begin_ms, store_ok=results[0].is_ok)
        return results

    def _counts_of(self, topic: str) -> SendCounters:
        counts = self._counts.get(topic)
        if counts is None:
            counts = self._counts[topic] = SendCounters()
        return counts

    async def _send(
        self,
        parcel: SendRequest,
        chosen: MessageQueue | None,
        deadline: Deadline,
        attempts: list[tuple[MessageQueue, RemotingError]],
    ) -> list[SendResult]:
        """Send until a broker has stored it, time or tries run out; `attempts` are tries made before."""
        while True:
            if attempts:
                await self._before_retry(parcel.topic, attempts, deadline)
            last = attempts[-1][0].broker_name if attempts else None
            queue = chosen or await self._next_queue(parcel.topic, last, deadline)
            tries_left = 0 if chosen else self.retry_times - len(attempts)
            try:
                results = await self._try(parcel, queue, deadline, tries_left)
            except RemotingError as error:
                if chosen is not None or not _may_retry(error):
                    raise
                attempts.append((queue, error))
            else:
                if chosen is None and not parcel.is_half and self.retry_another_broker_when_not_store_ok:
                    return await self._vouched_for(parcel, results, deadline, len(attempts))
                return results

    async def _try(
        self, parcel: SendRequest, queue: MessageQueue, deadline: Deadline, tries_left: int = 0
    ) -> list[SendResult]:
        """Send once. Tries that are left are left time to connect elsewhere."""
        tried_ms = monotonic_ms()
        try:
            connection = await self._connection(queue, deadline, tries_left)
            begin_ms = now_ms()
            posted = self._in_flight.post(connection, parcel.command(self.group, queue), deadline)
            answer = await self._in_flight.answer(posted)
            results = self._results(parcel, answer, queue, connection.peer, begin_ms)
        except RemotingError as error:
            if _may_retry(error):
                self._turns.answered(queue.broker_name, tried_ms, monotonic_ms(), failed=True)
            raise
        self._turns.answered(queue.broker_name, tried_ms, monotonic_ms())
        return results

    async def _vouched_for(
        self, parcel: SendRequest, results: list[SendResult], deadline: Deadline, failed_tries: int
    ) -> list[SendResult]:
        """The results where their broker vouches for them; else those of one that does.

        It is stored by then, so what goes wrong with other brokers is no error; the last results are the answer.
        """
        tried: set[str] = set()
        for _ in range(failed_tries, self.retry_times):
            if results[0].is_ok:
                break
            tried.add(results[0].queue.broker_name)
            route = self.instance.routes.known(parcel.topic)
            queues = [queue for queue in route.write_queues if queue.broker_name not in tried] if route else []
            if not queues:
                break
            queue = self._turns.next(queues, monotonic_ms())
            tried.add(queue.broker_name)
            try:
                results = await self._try(parcel, queue, deadline)
            except RemotingError as error:
                logger.info("%s of %s is not stored on another broker: %s", results[0].msg_id, parcel.topic, error)
        return results

    def _results(
        self, parcel: SendRequest, answer: RemotingCommand, queue: MessageQueue, address: str, begin_ms: int
    ) -> list[SendResult]:
        """What the answer says of the parcel's messages, told to the trace as well."""
        results = parcel.results(answer, queue, address)
        if self.trace is not None:
            call_hook(
                self.trace.sent,
                CompletedSend(
                    group=self.group,
                    code=parcel.code,
                    topic=parcel.topic,
                    body=parcel.body,
                    properties=parcel.properties,
                    results=results,
                    address=address,
                    region_id=answer.ext_fields.get(properties.MSG_REGION, ""),
                    trace_on=answer.ext_fields.get(properties.TRACE_ON) != "false",
                    begin_ms=begin_ms,
                    cost_ms=now_ms() - begin_ms,
                ),
            )
        return results

    async def _before_retry(
        self, topic: str, attempts: list[tuple[MessageQueue, RemotingError]], deadline: Deadline
    ) -> None:
        """Give up, or prepare another try.

        If another broker has the topic, the next try follows at once and a new route is looked up in the background.
        Else the new route is awaited, for a part of the time that is left, since the broker may have moved; then a
        moment passes.
        """
        failed_queue, error = attempts[-1]
        self._in_flight.must_be_open()
        if len(attempts) > self.retry_times or not deadline.left_ms:
            raise SendFailed(topic, [(str(queue), failure) for queue, failure in attempts]) from error
        may_have_moved = (
            isinstance(error, RemotingConnectError) or getattr(error, "code", None) == ResponseCode.TOPIC_NOT_EXIST
        )
        if self._is_elsewhere(topic, failed_queue.broker_name):
            if may_have_moved:
                self.instance.renew_route(topic)
            return
        if may_have_moved:
            with suppress(MQError):
                tries_left = self.retry_times - len(attempts) + 1
                await self.instance.routes.refresh(topic, deadline.share(tries_left + 1).left_ms)
            if self._is_elsewhere(topic, failed_queue.broker_name):
                return
        await asyncio.sleep(min(deadline.left_ms, RETRY_PAUSE_MS * len(attempts)) / 1000)

    def _is_elsewhere(self, topic: str, broker_name: str) -> bool:
        """Return whether another broker has the topic, too."""
        route = self.instance.routes.known(topic)
        return route is not None and any(queue.broker_name != broker_name for queue in route.write_queues)

    async def _next_queue(self, topic: str, avoided_broker: str | None, deadline: Deadline) -> MessageQueue:
        """Return the write queue whose turn it is, of another broker than `avoided_broker` if there is one."""
        route = self.instance.routes.known(topic)
        if route is None or not route.write_queues:
            check_topic(topic)
            if topic in NOT_ALLOWED_SEND_TOPICS:
                raise InvalidMessage(f"topic {topic} is reserved for the broker: clients cannot send to it")
            route = await self.instance.routes.find_for_sending(topic, deadline.left_ms)
        return self._turns.next(route.write_queues, monotonic_ms(), avoided_broker)

    async def _connection(self, queue: MessageQueue, deadline: Deadline, tries_left: int = 0) -> Connection:
        """Return a connection to the queue's master, made if need be in an equal share of what later tries need."""
        address = self.instance.routes.address(queue.broker_name)
        if address is None:
            address = await self.instance.master_address(queue, deadline.share(tries_left + 2).left_ms)
        connection = self.instance.remoting.open_connection(address)
        if connection is None:
            connection = await self.instance.remoting.connect(address, deadline.share(tries_left + 1).left_ms)
        return connection

    # Streams.

    async def _begin(self, message: Message, deadline: Deadline) -> _PipelinedSend:
        """Send a message once, without waiting for the answer."""
        with self._call():
            parcel = self._pack(message)
            counts = self._counts_of(parcel.topic)
            counted_ms = counts.begin(1)
            posted, failure = None, None
            try:
                queue = await self._next_queue(parcel.topic, None, deadline)
                begin_ms = now_ms()
                try:
                    connection = await self._connection(queue, deadline, self.retry_times)
                    posted = self._in_flight.post(connection, parcel.command(self.group, queue), deadline)
                except RemotingError as error:
                    failure = error
            except BaseException:
                counts.failed(1, counted_ms)
                raise
            return _PipelinedSend(parcel, queue, deadline, begin_ms, counts, counted_ms, posted, failure)

    async def _settle(self, pending: _PipelinedSend) -> SendResult:
        """Return the result of a pending message, after more tries if the first failed. Counted."""
        try:
            with self._in_flight:
                result = await self._result_of(pending)
        except BaseException:
            pending.counts.failed(1, pending.counted_ms)
            raise
        pending.counts.stored(1, pending.counted_ms, store_ok=result.is_ok)
        return result

    async def _result_of(self, pending: _PipelinedSend) -> SendResult:
        parcel, queue, failure = pending.parcel, pending.queue, pending.failure
        if pending.posted is not None:
            try:
                answer = await self._in_flight.answer(pending.posted)
                results = self._results(parcel, answer, queue, pending.posted.connection.peer, pending.begin_ms)
            except RemotingError as error:
                failure = error
            else:
                if self.retry_another_broker_when_not_store_ok:
                    results = await self._vouched_for(parcel, results, pending.deadline, 0)
                return results[0]
        assert failure is not None, "a message that was not posted has failed"
        if not _may_retry(failure):
            raise failure
        self._turns.answered(queue.broker_name, monotonic_ms(), monotonic_ms(), failed=True)
        return (await self._send(parcel, None, pending.deadline, [(queue, failure)]))[0]


async def _each(messages: Iterable[Message] | AsyncIterable[Message]) -> AsyncIterator[Message]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message


def _may_retry(error: RemotingError) -> bool:
    if isinstance(error, BrokerError):
        return error.code in RETRY_CODES
    return isinstance(error, (RemotingConnectError, RemotingTimeout))
