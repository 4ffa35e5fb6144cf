"""ConsumerOperations: the operations on a push consumer that operators can request, see `operator_requests`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from rucola.client.callbacks import is_addressed_to
from rucola.client.clock import monotonic_ms
from rucola.client.consumer.assignment import Assignment
from rucola.client.consumer.context import ConsumerContext
from rucola.client.consumer.dispatcher import Dispatcher
from rucola.client.consumer.listener import ReconsumeLater, SuspendCurrentQueueAMoment
from rucola.client.consumer.queue_locks import QueueLocks
from rucola.client.consumer.retry import restore_topic
from rucola.client.stats import ConsumeCounters
from rucola.domain.client import ConsumerData
from rucola.domain.queue import MessageQueue
from rucola.domain.version import VERSION_TEXT
from rucola.errors import ConfigError
from rucola.message import MessageExt
from rucola.protocol.connections import (
    CR_LATER,
    CR_SUCCESS,
    CR_THROW_EXCEPTION,
    ConsumeMessageDirectlyResult,
    ConsumeStatus,
    ProcessQueueInfo,
)

logger = logging.getLogger(__name__)


class ConsumerOperations:
    """The operations on one push consumer. `locks` is for ordered clustering consumers."""

    def __init__(
        self,
        context: ConsumerContext,
        assignment: Assignment,
        locks: QueueLocks | None,
        dispatcher: Dispatcher,
        counters: ConsumeCounters,
        is_open: Callable[[], bool],
    ) -> None:
        self._context = context
        self._assignment = assignment
        self._locks = locks
        self._dispatcher = dispatcher
        self._counters = counters
        self._is_open = is_open

    def consumer_data(self) -> ConsumerData:
        options = self._context.options
        return ConsumerData(
            consume_from_where=options.consume_from.value,
            group_name=self._context.group,
            message_model=options.message_model.value,
            subscription_data_set=list(self._context.subscriptions.values()),
        )

    def settings(self) -> dict[str, str]:
        options, listener = self._context.options, self._dispatcher.listener
        limit = options.max_reconsume_times
        return {
            "PROP_CLIENT_VERSION": VERSION_TEXT,
            "PROP_CONSUMEORDERLY": str(options.orderly).lower(),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(self._context.instance.name_servers.addresses),
            "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
            "consumeFromWhere": options.consume_from.value,
            "consumeMessageBatchMaxSize": str(listener.max_count if listener else 1),
            "consumerGroup": self._context.group,
            "maxReconsumeTimes": "-1" if limit is None else str(limit),
            "messageModel": options.message_model.value,
            "pullBatchSize": str(options.pull_batch_size),
            "pullThresholdForQueue": str(options.limits.count),
        }

    def process_queues(self) -> dict[MessageQueue, ProcessQueueInfo]:
        age_ms = self._locks.age_ms if self._locks is not None else lambda queue: None
        return {queue: assigned.info(age_ms(queue)) for queue, assigned in sorted(self._assignment.queues.items())}

    def status(self) -> dict[str, ConsumeStatus]:
        """Return the consumption rates of each subscribed topic. Thread-safe."""
        return {topic: self._counters.status(topic) for topic in list(self._context.subscriptions)}

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in the queues assigned here, and commit them. Earlier messages affect no offset."""
        await self._assignment.reset_offsets(offsets)

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Call the listener with the message. ConfigError if there is none, or the consumer is closing."""
        group, listener = self._context.group, self._dispatcher.listener
        if not self._is_open():
            raise ConfigError(f"the consumer of group {group} is closing")
        if listener is None:
            raise ConfigError(f"the consumer of group {group} iterates over messages, it has no listener to call")
        if message.topic == self._context.retry_topic:
            restore_topic(message)
        begin_ms = monotonic_ms()
        result, remark = CR_SUCCESS, None
        try:
            await self._dispatcher.call(listener, [message])
        except (ReconsumeLater, SuspendCurrentQueueAMoment) as later:
            result, remark = CR_LATER, str(later)
        except BaseException as error:
            if is_addressed_to(asyncio.current_task(), error):
                raise
            logger.warning("group %s: the listener failed on message %s", group, message.msg_id, exc_info=error)
            result, remark = CR_THROW_EXCEPTION, f"{type(error).__name__}: {error}"
        return ConsumeMessageDirectlyResult(
            consume_result=result,
            order=self._context.options.orderly,
            remark=remark,
            spent_time_mills=monotonic_ms() - begin_ms,
        )
