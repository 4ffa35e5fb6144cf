"""Sender: delivers one send request to a broker, with retries.

1. Take the chosen queue, or the next one in rotation whose broker did not just fail (`queue_rotation`).
2. Connect to the queue's master, within a share of the remaining time that leaves time for later attempts.
3. Send the request. A response with a status other than an error means that the messages are stored.
4. Retry on another broker, if the topic has one, after a failed connection, a timeout, or a response with one of
   `RETRY_CODES`. A second attempt at the same broker waits for a moment and a new route first. An attempt that a master
   refused while handing over to a slave does not count.
5. Stop when the deadline has passed or `retry_times` retries have failed: SendFailed lists all attempts.

A chosen queue gets one attempt only, whose error is raised. After a retry a message may be stored twice, with the same
unique key.

Corresponds to `DefaultMQProducerImpl.sendDefaultImpl` of Apache RocketMQ 4.9.8. Deliberate differences: a second
attempt at the same broker waits; an error that another broker would repeat is not a fault of the broker; with
`retry_another_broker_when_not_store_ok` each broker stores the message at most once, and a half message is not sent to
another broker, since every copy would be a separate transaction.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TypeAlias

import msgspec

from rucola.client.clock import monotonic_ms, now_ms
from rucola.client.instance import UNREACHABLE, ClientInstance
from rucola.client.producer.in_flight_sends import InFlightRequest, InFlightRequests
from rucola.client.producer.latency_faults import BrokerFaults
from rucola.client.producer.options import CompletedSend, ProducerOptions
from rucola.client.producer.queue_rotation import QueueRotation
from rucola.client.producer.send_request import SendRequest, SendResult
from rucola.client.stats import ProducerStats, SendCounters
from rucola.client.trace_hooks import call_hook
from rucola.domain.queue import MessageQueue
from rucola.domain.role import SWITCHOVER
from rucola.errors import (
    BrokerError,
    InvalidMessage,
    MQError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeout,
    SendFailed,
)
from rucola.message import properties
from rucola.message.topics import NOT_ALLOWED_SEND_TOPICS, check_topic
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline

logger = logging.getLogger(__name__)


RETRY_PAUSE_MS = 100
"""How long the second attempt at the same broker waits; the third waits twice as long."""

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
"""Responses after which another broker, or the same one later, may accept the message."""

MOVED_CODES = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE})
"""Responses of a broker that may no longer be the topic's master: the route is refreshed."""

MAX_SWITCHOVER_ATTEMPTS = 100
"""The most attempts that do not count, since their master was handing over."""

FailedAttempt: TypeAlias = tuple[MessageQueue, RemotingError]


class Attempt(msgspec.Struct, frozen=True):
    """One request to one queue. Either `in_flight` or `failure` is set."""

    queue: MessageQueue
    begin_ms: int
    """When it began, in milliseconds since 1970."""
    in_flight: InFlightRequest | None
    failure: RemotingError | None = None


class StartedSend(msgspec.Struct, frozen=True):
    """A request between `Sender.start` and `Sender.results`."""

    request: SendRequest
    chosen: MessageQueue | None
    deadline: Deadline
    counters: SendCounters
    begin_ms: float
    """When its messages were counted as in flight."""
    attempt: Attempt
    """The first one."""


class Sender:
    """Sends the requests of one producer. Belongs to one event loop."""

    def __init__(self, group: str, instance: ClientInstance, options: ProducerOptions) -> None:
        self.in_flight = InFlightRequests(f"the producer of group {group}")
        self._group = group
        self._instance = instance
        self._options = options
        self._rotation = QueueRotation(BrokerFaults() if options.latency_fault_tolerance else None)
        self._counters: dict[str, SendCounters] = {}

    def stats(self) -> dict[str, ProducerStats]:
        """Return the totals of each topic. Thread-safe."""
        return {topic: counters.snapshot() for topic, counters in list(self._counters.items())}

    def counters_of(self, topic: str) -> SendCounters:
        counters = self._counters.get(topic)
        if counters is None:
            counters = self._counters[topic] = SendCounters()
        return counters

    async def send(self, request: SendRequest, chosen: MessageQueue | None, deadline: Deadline) -> list[SendResult]:
        """Send a request with retries, or once to a chosen queue, and count it; return one result for each message.

        SendFailed, RemotingError, BrokerError, TopicNotFound, InvalidMessage.
        """
        return await self.results(await self.start(request, chosen, deadline))

    async def start(self, request: SendRequest, chosen: MessageQueue | None, deadline: Deadline) -> StartedSend:
        """Send a request without waiting for the response: pass the result to `results` or `abandon`."""
        counters, count = self.counters_of(request.topic), len(request.unique_keys)
        begin_ms = counters.begin(count)
        try:
            queue = chosen or await self.next_queue(request.topic, deadline)
            attempt = await self._start_attempt(request, queue, deadline, 0 if chosen else self._options.retry_times)
        except BaseException:
            counters.failed(count, begin_ms)
            raise
        return StartedSend(request, chosen, deadline, counters, begin_ms, attempt)

    async def results(self, send: StartedSend) -> list[SendResult]:
        """Return the results of a request, after retries if necessary, and count it. The errors of `send`."""
        count = len(send.request.unique_keys)
        try:
            results = await self._results(send)
        except BaseException:
            send.counters.failed(count, send.begin_ms)
            raise
        send.counters.stored(count, send.begin_ms, store_ok=results[0].is_ok)
        return results

    def abandon(self, send: StartedSend) -> None:
        """Stop waiting for a request, whose messages count as failed and may be stored nevertheless."""
        if send.attempt.in_flight is not None:
            self.in_flight.forget(send.attempt.in_flight)
        send.counters.failed(len(send.request.unique_keys), send.begin_ms)

    async def _results(self, send: StartedSend) -> list[SendResult]:
        request, chosen, deadline, attempt = send.request, send.chosen, send.deadline, send.attempt
        failed: list[FailedAttempt] = []
        while True:
            try:
                results = await self._finish_attempt(request, attempt)
            except RemotingError as error:
                if not is_switchover(error) and (chosen is not None or not may_retry(error)):
                    raise
                failed.append((attempt.queue, error))
            else:
                if results[0].is_ok or chosen is not None or request.is_half:
                    return results
                return await self._ensure_store_ok(request, results, deadline, len(failed))
            await self._before_retry(request.topic, failed, deadline)
            queue = chosen or await self.next_queue(request.topic, deadline, attempt.queue.broker_name)
            retries_left = 0 if chosen else self._options.retry_times - _counted(failed)
            attempt = await self._start_attempt(request, queue, deadline, retries_left)

    async def _ensure_store_ok(
        self, request: SendRequest, results: list[SendResult], deadline: Deadline, failed_attempts: int
    ) -> list[SendResult]:
        """Send to other brokers until one reports SEND_OK, if so configured; return the last results, log errors."""
        if not self._options.retry_another_broker_when_not_store_ok:
            return results
        tried: set[str] = set()
        for _ in range(failed_attempts, self._options.retry_times):
            if results[0].is_ok:
                break
            tried.add(results[0].queue.broker_name)
            route = self._instance.routes.known(request.topic)
            queues = [queue for queue in route.write_queues if queue.broker_name not in tried] if route else []
            if not queues:
                break
            queue = self._rotation.next(queues, monotonic_ms())
            tried.add(queue.broker_name)
            try:
                results = await self._finish_attempt(request, await self._start_attempt(request, queue, deadline))
            except RemotingError as error:
                logger.info(
                    "message %s of topic %s could not be stored on another broker: %s",
                    results[0].msg_id, request.topic, error,
                )  # fmt: skip
        return results

    async def next_queue(self, topic: str, deadline: Deadline, avoided_broker: str | None = None) -> MessageQueue:
        """Return the next write queue, if possible of another broker than `avoided_broker`."""
        # The topic is checked only while it has no route: a route exists for valid names only.
        route = self._instance.routes.known(topic)
        if route is None or not route.write_queues:
            check_topic(topic)
            if topic in NOT_ALLOWED_SEND_TOPICS:
                raise InvalidMessage(f"topic {topic} is reserved for the broker: clients cannot send to it")
            route = await self._instance.routes.find_for_sending(topic, deadline.left_ms)
        return self._rotation.next(route.write_queues, monotonic_ms(), avoided_broker)

    async def connection(self, queue: MessageQueue, deadline: Deadline, retries_left: int = 0) -> Connection:
        """Return the connection to the queue's master, opened if necessary within an equal share of the time left."""
        address = self._instance.routes.address(queue.broker_name)
        if address is None:
            address = await self._instance.master_address(queue, deadline.share(retries_left + 2).left_ms)
        connection = self._instance.remoting.open_connection(address)
        if connection is None:
            connection = await self._instance.remoting.connect(address, deadline.share(retries_left + 1).left_ms)
        return connection

    def complete(
        self, request: SendRequest, response: RemotingCommand, queue: MessageQueue, address: str, begin_ms: int
    ) -> list[SendResult]:
        """Return the results in a response, after passing them to the trace. BrokerError if it is an error."""
        results = request.results(response, queue, address)
        if self._options.trace is not None:
            completed = CompletedSend(
                group=self._group,
                code=request.code,
                topic=request.topic,
                body=request.body,
                properties=request.properties,
                results=results,
                address=address,
                region_id=response.ext_fields.get(properties.MSG_REGION, ""),
                trace_on=response.ext_fields.get(properties.TRACE_ON) != "false",
                begin_ms=begin_ms,
                cost_ms=now_ms() - begin_ms,
            )
            call_hook(self._options.trace.send_completed, completed)
        return results

    def record_failure(self, queue: MessageQueue, error: RemotingError) -> None:
        """Record a failed request; if leadership may have changed, refresh the route."""
        if may_retry(error):
            self._rotation.record_response(queue.broker_name, monotonic_ms(), monotonic_ms(), failed=True)
        if may_have_moved(error):
            self._instance.refresh_route_soon(queue.topic)

    async def _start_attempt(
        self, request: SendRequest, queue: MessageQueue, deadline: Deadline, retries_left: int = 0
    ) -> Attempt:
        begin_ms = now_ms()
        try:
            connection = await self.connection(queue, deadline, retries_left)
            in_flight = self.in_flight.post(connection, request.command(self._group, queue), deadline)
        except RemotingError as error:
            return Attempt(queue, begin_ms, None, error)
        return Attempt(queue, begin_ms, in_flight)

    async def _finish_attempt(self, request: SendRequest, attempt: Attempt) -> list[SendResult]:
        queue, in_flight = attempt.queue, attempt.in_flight
        try:
            if in_flight is None:
                assert attempt.failure is not None, "an attempt has sent its request or failed"
                raise attempt.failure
            # A response that has arrived before has waited for those before it in a stream, which is no latency.
            is_awaited = not in_flight.response.done()
            response = await self.in_flight.wait_for_response(in_flight)
            results = self.complete(request, response, queue, in_flight.connection.peer, attempt.begin_ms)
        except RemotingError as error:
            self.record_failure(queue, error)
            raise
        if is_awaited and self._options.latency_fault_tolerance:
            self._rotation.record_response(queue.broker_name, in_flight.posted_at * 1000, monotonic_ms())
        return results

    async def _before_retry(self, topic: str, failed: list[FailedAttempt], deadline: Deadline) -> None:
        """Raise SendFailed if no time or retry is left, else prepare the next attempt."""
        _, error = failed[-1]
        self.in_flight.check_open()
        count = _counted(failed)
        is_exhausted = count > self._options.retry_times or len(failed) - count > MAX_SWITCHOVER_ATTEMPTS
        if is_exhausted or not deadline.left_ms:
            raise SendFailed(topic, [(str(queue), failure) for queue, failure in failed]) from error
        # If a broker that has not failed has the topic, the next attempt follows immediately.
        if self._has_other_broker(topic, failed):
            return
        # The broker may have moved, or lost the topic. The lookup started with the failure, and is joined.
        if may_have_moved(error):
            with suppress(MQError):
                retries_left = self._options.retry_times - count + 1
                await self._instance.routes.refresh(topic, deadline.share(retries_left + 1).left_ms)
            if self._has_other_broker(topic, failed):
                return
        await asyncio.sleep(min(deadline.left_ms, RETRY_PAUSE_MS * max(1, count)) / 1000)

    def _has_other_broker(self, topic: str, failed: list[FailedAttempt]) -> bool:
        route = self._instance.routes.known(topic)
        names = {queue.broker_name for queue, _ in failed}
        return route is not None and any(queue.broker_name not in names for queue in route.write_queues)


def is_switchover(error: RemotingError) -> bool:
    """Return whether a master refused a message because it is handing over to a slave."""
    return (
        isinstance(error, BrokerError)
        and error.code == ResponseCode.SERVICE_NOT_AVAILABLE
        and (error.remark or "").startswith(SWITCHOVER)
    )


def may_have_moved(error: RemotingError) -> bool:
    """Return whether another broker may be the master after this error."""
    return isinstance(error, UNREACHABLE) or (isinstance(error, BrokerError) and error.code in MOVED_CODES)


def _counted(failed: list[FailedAttempt]) -> int:
    return sum([not is_switchover(error) for _, error in failed])


def may_retry(error: RemotingError) -> bool:
    """Return whether another attempt may succeed after this error."""
    if isinstance(error, BrokerError):
        return error.code in RETRY_CODES
    return isinstance(error, (RemotingConnectError, RemotingTimeout))
