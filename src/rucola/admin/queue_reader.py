"""Bounded reading of one queue, for tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from rucola.client.consumer.pull_consumer import PULL_BATCH_SIZE, PullConsumer, PullStatus
from rucola.domain.queue import MessageQueue
from rucola.domain.subscription import SUB_ALL
from rucola.errors import RemotingError
from rucola.message import MessageExt

TOOLS_GROUP = "TOOLS_CONSUMER"
"""The consumer group of tools, which every broker has."""


async def read_queue(
    consumer: PullConsumer,
    queue: MessageQueue,
    expression: str = SUB_ALL,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    *,
    begin_offset: int = 0,
) -> AsyncGenerator[MessageExt, None]:
    """Yield messages stored from `begin_ms` to `end_ms`, inclusive, up to the end offset at the first request.

    Those before `begin_offset` are left out. RemotingError if a broker, such as a slave that lags, has not all of them.
    """
    offset = max(begin_offset, await consumer.min_offset(queue))
    end = await consumer.max_offset(queue)
    if begin_ms is not None:
        # For a time that several messages share, an Apache broker returns any of them: search for the previous time.
        offset = max(offset, await consumer.search_offset(queue, begin_ms - 1))
    while offset < end:
        result = await consumer.pull(queue, offset, PULL_BATCH_SIZE, expression)
        if result.status is PullStatus.FOUND:
            for message in result.messages:
                if message.queue_offset >= end or (end_ms is not None and message.store_timestamp > end_ms):
                    return
                if begin_ms is None or message.store_timestamp >= begin_ms:
                    yield message
        if result.next_begin_offset <= offset:
            raise RemotingError(f"{queue} cannot be read at offset {offset} now, and has messages up to {end - 1}")
        offset = result.next_begin_offset


async def batches(messages: AsyncIterator[MessageExt], count: int, size: int) -> AsyncGenerator[list[MessageExt], None]:
    """Yield messages in lists of at most `count`, each with bodies of `size` bytes or one more message."""
    batch: list[MessageExt] = []
    filled = 0
    async for message in messages:
        batch.append(message)
        filled += len(message.body)
        if len(batch) == count or filled >= size:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch
