"""Delivery of messages from a task to brokers: which queue, in which requests, and how often.

A request that fails is tried again, with growing pauses, until `timeout_ms` have passed since it first failed: brokers
are restarted, and masters replaced, within such times. A message may be stored twice then, under one unique key. An
error that a later try cannot change, such as a message that is too large, fails at once.

Messages for one queue are sent in requests one after the other, so that their order holds whatever fails.
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

MESSAGES_A_REQUEST: Final = 128

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5
_SYSTEM_BUSY: Final = 2
"""The response code by which brokers limit the flow; a producer leaves it to its caller."""
_ALONE: Final = frozenset(
    {properties.DELAY, properties.TIMER_DELIVER_MS, properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS}
)
"""Properties with which brokers take no message of a batch."""


async def persist(
    request: Callable[[], Awaitable[T]],
    timeout_ms: float = DELIVERY_TIMEOUT_MS,
    *,
    is_known_topic: bool = True,
    before_retry: Callable[[RemotingError], Awaitable[None]] | None = None,
) -> T:
    """Make a request until it succeeds. Raises the last RemotingError after `timeout_ms` of failures.

    A topic that is not found fails at once unless it was found before (`is_known_topic`).
    """
    loop = asyncio.get_running_loop()
    deadline, pause_s = None, _FIRST_PAUSE_S
    while True:
        try:
            return await request()
        except RemotingError as error:
            if not _may_pass(error, is_known_topic=is_known_topic):
                raise
            if deadline is None:
                deadline = loop.time() + timeout_ms / 1000
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise
            if before_retry is not None:
                await before_retry(error)
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _may_pass(error: RemotingError, *, is_known_topic: bool) -> bool:
    """Tell whether a later try may succeed."""
    if isinstance(error, BrokerError):
        return error.code == _SYSTEM_BUSY or error.code in RETRY_CODES
    return is_known_topic or not isinstance(error, TopicNotFound)


def queue_like(queues: Sequence[MessageQueue], queue_id: int, broker_name: str | None) -> MessageQueue:
    """Return the queue with this id, of this broker if there is such a queue, else the one to which the id leads.

    It is the same for the same `queues` each time, so messages of one queue stay in one queue, in their order.
    """
    of_id = [queue for queue in queues if queue.queue_id == queue_id]
    of_broker = [queue for queue in of_id if queue.broker_name == broker_name]
    return (of_broker or of_id or [queues[queue_id % len(queues)]])[0]


def requests(messages: Sequence[Message], most: int = MESSAGES_A_REQUEST) -> Iterator[tuple[int, int]]:
    """Cut messages of one topic into requests of at most `most`, each from begin to end.

    A message that is large, and so worth compressing, or that no batch may contain, goes alone.
    """
    begin = 0
    while begin < len(messages):
        end = begin
        while end < len(messages) and end - begin < most and _may_share(messages[end]):
            end += 1
        yield begin, max(end, begin + 1)
        begin = max(end, begin + 1)


def _may_share(message: Message) -> bool:
    if message.topic.startswith(RETRY_PREFIX) or not _ALONE.isdisjoint(message.properties):
        return False
    return len(message.body) < COMPRESS_THRESHOLD
