"""OrderedSender: messages sent in order, in as few requests as possible, with retries at the same queue.

    pack     neighbours share a request of up to 128 messages and 1 MiB; a message that no batch may have is alone
    order    the requests of one call are sequential; the requests of several calls, for several queues, are concurrent
    retry    a request that fails is repeated, with growing pauses, until some time has passed since its first failure
    refuse   a request that is refused is repeated message by message, so that one message does not block the others

After a retry a message may be stored twice, with the same unique key.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

from rucola.client.producer.producer import IN_FLIGHT, Producer
from rucola.client.producer.send_request import MAX_COUNT, MAX_SIZE, SendResult, is_alone
from rucola.client.producer.sender import RETRY_CODES
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError, InvalidMessage, MQError, RemotingError, TopicNotFound
from rucola.message import Message
from rucola.protocol.codes import ResponseCode

T = TypeVar("T")

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5


class OrderedSender:
    """Sends messages of a producer, with at most `in_flight` requests at a time.

    Requests are repeated for `timeout_ms`, or never if it is None; `before_retry` gets topic and failure. A body of
    `alone_from` bytes or more gets a separate request, in which it may be compressed.
    """

    def __init__(
        self,
        producer: Producer,
        timeout_ms: float | None = None,
        *,
        in_flight: int = IN_FLIGHT,
        alone_from: int = MAX_SIZE,
        before_retry: Callable[[str, RemotingError], Awaitable[None]] | None = None,
    ) -> None:
        self._producer = producer
        self._timeout_ms = timeout_ms
        self._in_flight = asyncio.Semaphore(in_flight)
        self._alone_from = alone_from
        self._before_retry = before_retry

    async def send(
        self,
        items: Iterable[T],
        message_of: Callable[[T], Message],
        queue: MessageQueue | None,
        may_send: Callable[[T], bool] = lambda _: True,
    ) -> AsyncGenerator[tuple[Sequence[T], list[SendResult] | MQError], None]:
        """Send the messages of some items, all of one topic, to a queue, or each request to the next one.

        Yields the items of each request with their results or its error, before the next one is sent. A refusal
        (InvalidMessage, BrokerError) is about a single item, unless all retries of the request failed. Items that
        `may_send` rejects, when it is their turn, are left out.
        """
        pairs = [(item, message_of(item)) for item in items]
        if not pairs:
            return

        async def attempt(request: list[tuple[T, Message]]) -> list[SendResult]:
            request[:] = [pair for pair in request if may_send(pair[0])]
            messages = [message for _, message in request]
            if len(messages) == 1:
                return [await self._producer.send(messages[0], queue)]
            return await self._producer.send_batch(messages, queue)

        packed = pack(pairs, self._alone_from)
        async with aclosing(self.send_requests(packed, attempt, pairs[0][1].topic)) as requests:
            async for request, found in requests:
                if request:
                    yield [item for item, _ in request], found

    async def send_requests(
        self,
        requests: Iterable[Sequence[T]],
        attempt: Callable[[list[T]], Awaitable[list[SendResult]]],
        topic: str,
    ) -> AsyncGenerator[tuple[Sequence[T], list[SendResult] | MQError], None]:
        """Send requests of some items each, all of one topic, by `attempt`, which may remove items; see `send`."""

        async def limited(request: list[T]) -> list[SendResult]:
            async with self._in_flight:
                return await attempt(request)

        pending = deque(map(list, requests))
        while pending:
            request = pending.popleft()
            try:
                found: list[SendResult] | MQError = await self._repeat(partial(limited, request), topic)
            except MQError as error:
                found = error
                if len(request) > 1 and self._is_refusal(error):
                    pending.extendleft([item] for item in reversed(request))
                    continue
            yield request, found

    async def _repeat(self, attempt: Callable[[], Awaitable[list[SendResult]]], topic: str) -> list[SendResult]:
        if self._timeout_ms is None:
            return await attempt()
        before_retry = self._before_retry and partial(self._before_retry, topic)
        return await with_retries(attempt, self._timeout_ms, before_retry=before_retry)

    def _is_refusal(self, error: MQError) -> bool:
        if isinstance(error, BrokerError):
            return self._timeout_ms is None or not _may_succeed(error)
        return isinstance(error, InvalidMessage)


def pack(pairs: Iterable[tuple[T, Message]], alone_from: int = MAX_SIZE) -> Iterator[list[tuple[T, Message]]]:
    """Split messages of one topic, in order, into requests."""
    request: list[tuple[T, Message]] = []
    size = 0
    for pair in pairs:
        message = pair[1]
        must_be_alone = is_alone(message, alone_from)
        if request and (must_be_alone or len(request) == MAX_COUNT or size + len(message.body) > MAX_SIZE):
            yield request
            request, size = [], 0
        if must_be_alone:
            yield [pair]
        else:
            request.append(pair)
            size += len(message.body)
    if request:
        yield request


async def with_retries(
    request: Callable[[], Awaitable[T]],
    timeout_ms: float,
    *,
    is_known_topic: bool = True,
    before_retry: Callable[[RemotingError], Awaitable[None]] | None = None,
) -> T:
    """Make a request until it succeeds. Raises the last RemotingError after `timeout_ms` of failures.

    TopicNotFound is retried only with `is_known_topic`. `before_retry` is awaited before every pause.
    """
    loop = asyncio.get_running_loop()
    deadline, pause_s = None, _FIRST_PAUSE_S
    while True:
        try:
            return await request()
        except RemotingError as error:
            if not _may_succeed(error, is_known_topic=is_known_topic):
                raise
            # The timeout begins at the first failure, not at the first attempt.
            if deadline is None:
                deadline = loop.time() + timeout_ms / 1000
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise
            if before_retry is not None:
                await before_retry(error)
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _may_succeed(error: RemotingError, *, is_known_topic: bool = True) -> bool:
    if isinstance(error, BrokerError):
        return error.code == ResponseCode.SYSTEM_BUSY or error.code in RETRY_CODES
    return is_known_topic or not isinstance(error, TopicNotFound)
