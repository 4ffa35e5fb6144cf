"""Delivery of a task's messages to brokers: queue selection, cutting into requests, and retries.

A failed request is retried, with exponentially growing pauses, until `timeout_ms` have passed since its first failure.
A message may be stored twice then, with the same unique key. Errors that a retry cannot change, such as a message that
is too large, are raised at once. Requests for one queue are sent sequentially, so messages keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from rucola.client import Message, MessageQueue
from rucola.client.producer.send_request import COMPRESS_THRESHOLD
from rucola.client.producer.sender import RETRY_CODES
from rucola.errors import BrokerError, RemotingError, TopicNotFound
from rucola.message import properties
from rucola.message.topics import RETRY_PREFIX
from rucola.spark.source.options import DELIVERY_TIMEOUT_MS

T = TypeVar("T")

MESSAGES_PER_REQUEST: Final = 128

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5
_SYSTEM_BUSY: Final = 2
"""Flow control, which a producer does not retry itself."""
_NOT_IN_BATCHES: Final = frozenset(
    {properties.DELAY, properties.TIMER_DELIVER_MS, properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS}
)


async def with_retries(
    request: Callable[[], Awaitable[T]],
    timeout_ms: float = DELIVERY_TIMEOUT_MS,
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


def _may_succeed(error: RemotingError, *, is_known_topic: bool) -> bool:
    if isinstance(error, BrokerError):
        return error.code == _SYSTEM_BUSY or error.code in RETRY_CODES
    return is_known_topic or not isinstance(error, TopicNotFound)


def matching_queue(queues: Sequence[MessageQueue], queue_id: int, broker_name: str | None) -> MessageQueue:
    """Return the queue with this id, preferably of this broker, else the queue at the id modulo their number."""
    with_id = [queue for queue in queues if queue.queue_id == queue_id]
    on_broker = [queue for queue in with_id if queue.broker_name == broker_name]
    return (on_broker or with_id or [queues[queue_id % len(queues)]])[0]


def split_requests(messages: Sequence[Message], most: int = MESSAGES_PER_REQUEST) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of requests; large messages and those not accepted in a batch get their own."""
    begin = 0
    while begin < len(messages):
        end = begin
        # Extend the request up to the limit, or to a message that needs its own.
        while end < len(messages) and end - begin < most and _may_be_batched(messages[end]):
            end += 1
        yield begin, max(end, begin + 1)
        begin = max(end, begin + 1)


def _may_be_batched(message: Message) -> bool:
    if message.topic.startswith(RETRY_PREFIX) or not _NOT_IN_BATCHES.isdisjoint(message.properties):
        return False
    return len(message.body) < COMPRESS_THRESHOLD and not message.body_flags
