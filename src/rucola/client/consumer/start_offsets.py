"""StartOffsets: the offset at which a group starts to consume a queue.

The committed offset, if there is one; else, by `ConsumeFromWhere`:

                                other topics              %RETRY%group
    CONSUME_FROM_LAST_OFFSET    the end                   0
    CONSUME_FROM_FIRST_OFFSET   0                         0
    CONSUME_FROM_TIMESTAMP      the offset at that time   the end

For a young queue, whose first message is still in memory, a broker reports 0 as the committed offset instead of none. A
new group then starts at 0, regardless of `ConsumeFromWhere`.

Corresponds to `RebalancePushImpl.computePullFromWhere` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from rucola.client.clock import now_ms
from rucola.client.consumer.context import ConsumerContext
from rucola.client.consumer.offset_store import OffsetStore
from rucola.client.consumer.options import ConsumeFromWhere
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.domain.queue import MessageQueue

HALF_AN_HOUR_MS = 30 * 60 * 1000
"""How far CONSUME_FROM_TIMESTAMP goes back if no time is configured."""


class StartOffsets:
    def __init__(self, context: ConsumerContext, pull_consumer: PullConsumer, offset_store: OffsetStore) -> None:
        self._options = context.options
        self._retry_topic = context.retry_topic
        self._pull_consumer = pull_consumer
        self._offset_store = offset_store

    async def find(self, queue: MessageQueue) -> int:
        """Return the queue offset of the first pull. RemotingError, ConfigError."""
        committed = await self._offset_store.read(queue)
        if committed is not None:
            return committed
        is_retry = queue.topic == self._retry_topic
        match self._options.consume_from:
            case ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
                return 0 if is_retry else await self._pull_consumer.max_offset(queue)
            case ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
                return 0
            case ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
                if is_retry:
                    return await self._pull_consumer.max_offset(queue)
                timestamp_ms = self._options.consume_timestamp_ms
                if timestamp_ms is None:
                    timestamp_ms = now_ms() - HALF_AN_HOUR_MS
                return await self._pull_consumer.search_offset(queue, timestamp_ms)
