"""Reading queues for people: what a queue held when it was asked, from one time to another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from rucola.client.consumer.pull_consumer import PULL_BATCH_SIZE, PullConsumer, PullStatus
from rucola.message import MessageExt
from rucola.protocol.heartbeat import SUB_ALL
from rucola.protocol.queue import MessageQueue

TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group in whose name tools pull; brokers have it from the start."""


async def read_queue(
    consumer: PullConsumer,
    queue: MessageQueue,
    expression: str = SUB_ALL,
    begin_ms: int | None = None,
    end_ms: int | None = None,
) -> AsyncGenerator[MessageExt, None]:
    """The messages of a queue that were there at the beginning, stored within the times, both included."""
    at = await consumer.min_offset(queue)
    end = await consumer.max_offset(queue)
    if begin_ms is not None:
        # A search meets any message of the very millisecond, so it is asked for the one before.
        at = max(at, await consumer.search_offset(queue, begin_ms - 1))
    while at < end:
        result = await consumer.pull(queue, at, PULL_BATCH_SIZE, expression)
        if result.status is PullStatus.FOUND:
            for message in result.messages:
                if message.queue_offset >= end or (end_ms is not None and message.store_timestamp > end_ms):
                    return
                if begin_ms is None or message.store_timestamp >= begin_ms:
                    yield message
        if result.next_begin_offset <= at:
            return
        at = result.next_begin_offset


async def chunks(messages: AsyncIterator[MessageExt], count: int) -> AsyncGenerator[list[MessageExt], None]:
    """The messages, `count` at a time."""
    chunk: list[MessageExt] = []
    async for message in messages:
        chunk.append(message)
        if len(chunk) == count:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
