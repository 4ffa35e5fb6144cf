"""SendPipeline: sends messages with many requests in flight, and returns their results in order.

`start` sends a request without waiting; `result` waits for the response. A failure of either that may be retried
continues with the `Sender`, as a further attempt.
"""

from __future__ import annotations

import msgspec

from rucola.client.clock import now_ms
from rucola.client.producer.in_flight_sends import InFlightRequest
from rucola.client.producer.send_request import SendRequest, SendResult
from rucola.client.producer.sender import Sender, may_retry
from rucola.client.stats import SendCounters
from rucola.domain.queue import MessageQueue
from rucola.errors import RemotingError
from rucola.remoting.deadline import Deadline


class PipelinedSend(msgspec.Struct, frozen=True):
    """A message between `start` and `result`. Either `in_flight` or `failure` is set."""

    request: SendRequest
    queue: MessageQueue
    deadline: Deadline
    begin_ms: int
    """When the request was sent, in milliseconds since 1970."""
    counters: SendCounters
    counted_ms: float
    """When the message was counted as in flight."""
    in_flight: InFlightRequest | None = None
    failure: RemotingError | None = None


class SendPipeline:
    """The two steps of `Producer.send_many`. Each message is counted as by `Sender.send`."""

    def __init__(self, group: str, sender: Sender, retry_times: int) -> None:
        self._group = group
        self._sender = sender
        self._retry_times = retry_times

    async def start(self, request: SendRequest, deadline: Deadline) -> PipelinedSend:
        """Send a request once without waiting for the response. TopicNotFound, InvalidMessage."""
        sender = self._sender
        counters = sender.counters_of(request.topic)
        counted_ms = counters.begin(1)
        in_flight, failure = None, None
        try:
            queue = await sender.next_queue(request.topic, deadline)
            begin_ms = now_ms()
            try:
                connection = await sender.connection(queue, deadline, self._retry_times)
                in_flight = sender.in_flight.post(connection, request.command(self._group, queue), deadline)
            except RemotingError as error:
                failure = error
        except BaseException:
            counters.failed(1, counted_ms)
            raise
        return PipelinedSend(request, queue, deadline, begin_ms, counters, counted_ms, in_flight, failure)

    async def result(self, send: PipelinedSend) -> SendResult:
        """Return the result of a message, after retries if necessary. The errors of `Sender.send`."""
        try:
            with self._sender.in_flight:
                result = await self._result(send)
        except BaseException:
            send.counters.failed(1, send.counted_ms)
            raise
        send.counters.stored(1, send.counted_ms, store_ok=result.is_ok)
        return result

    def abandon(self, send: PipelinedSend) -> None:
        """Stop waiting for a message, which counts as failed and may be stored nevertheless."""
        if send.in_flight is not None:
            self._sender.in_flight.forget(send.in_flight)
        send.counters.failed(1, send.counted_ms)

    async def _result(self, send: PipelinedSend) -> SendResult:
        sender, request, queue, failure = self._sender, send.request, send.queue, send.failure
        if send.in_flight is not None:
            try:
                response = await sender.in_flight.wait_for_response(send.in_flight)
                results = sender.complete(request, response, queue, send.in_flight.connection.peer, send.begin_ms)
            except RemotingError as error:
                failure = error
            else:
                if results[0].is_ok:
                    return results[0]
                return (await sender.ensure_store_ok(request, results, send.deadline, 0))[0]
        assert failure is not None, "a message without a request in flight has a failure"
        # Only failures are recorded: a response in a pipeline has waited for those before it, which is no latency.
        sender.record_failure(queue, failure)
        if not may_retry(failure):
            raise failure
        return (await sender.send_with_retries(request, None, send.deadline, [(queue, failure)]))[0]
