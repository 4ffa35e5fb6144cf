"""ConsumeRetry: retries the messages on which the application failed.

    concurrently    CONSUMER_SEND_MSG_BACK: the broker redelivers the message later through %RETRY%group or, after too
                    many retries, moves it to %DLQ%group. If no broker accepts it, it is retried locally.
    in order        requeued at the front of its queue, which is suspended for a moment, since the messages after it
                    must not overtake it. Retried without limit, or up to `max_reconsume_times` and then moved to
                    %DLQ%group.
    broadcasting    logged and completed. In order, as above, but without a dead letter queue.

The journey of a message on which a concurrent listener fails, one line per function:

    client    Dispatcher._deliver               calls the listener and catches its exception
              Dispatcher._retry                 reads the delay level from the exception
              ConsumeRetry.retry                chooses one of the rows above
              ConsumeRetry._retry_by_broker     completes the message here, once the broker has accepted it
              ConsumeRetry._send_back           sends CONSUMER_SEND_MSG_BACK
    broker    RetryAdapter.send_back            decodes it
              RetryService.retry                puts the message as a delayed one of %RETRY%group, or into %DLQ%group
              ScheduleMessageService.deliver    puts it into its queue of %RETRY%group when the delay has passed
              PullRequestHold.arrived           completes the held pull of that queue
    client    Fetcher._fetch                    pulls the message with others of %RETRY%group
              restore_topic                     sets its original topic
              ReadyQueue.put                    from here on it is delivered like any other message

Corresponds to `processConsumeResult` and `sendMessageBack` of `ConsumeMessageConcurrentlyService` and
`ConsumeMessageOrderlyService` of Apache RocketMQ 4.9.8. Deliberate difference: in order, a message with too many
retries is moved to the dead letter queue by CONSUMER_SEND_MSG_BACK with level -1; Apache sends a new message to
%RETRY%group.
"""

from __future__ import annotations

import asyncio
import logging

from rucola.client.consumer.assigned_queue import AssignedQueue, Delivery
from rucola.client.consumer.context import ConsumerContext
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.domain.queue import MessageQueue
from rucola.errors import BrokerError, MQError
from rucola.message import MessageExt, properties
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader

logger = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_MS = 5000
MAX_RECONSUME_TIMES = 16
DEAD_LETTER = -1
EXPIRED_DELAY_LEVEL = 3
"""The delay level of a message that timed out in the application."""
SHORTEST_SUSPENSION_MS, LONGEST_SUSPENSION_MS = 10, 30_000


class ConsumeRetry:
    """Retries failed deliveries of one consumer. Belongs to one event loop."""

    def __init__(self, context: ConsumerContext, ready_queue: ReadyQueue) -> None:
        self._context = context
        self._options = context.options
        self._ready_queue = ready_queue

    async def retry(self, delivery: Delivery, delay_level: int = 0, suspend_ms: float | None = None) -> None:
        """Retry the incomplete messages of a delivery that failed or timed out.

        `delay_level` is for concurrent consumers, `suspend_ms` for ordered ones; by default the broker and the options
        determine them.
        """
        if self._options.orderly:
            await self._requeue_in_order(delivery, suspend_ms)
        elif self._options.broadcasting:
            for message in delivery.incomplete:
                logger.warning(
                    "group %s: message %s of %s failed, and broadcasting consumers do not retry",
                    self._context.group, message.msg_id, delivery.assigned.queue,
                )  # fmt: skip
            delivery.complete()
        else:
            await asyncio.gather(
                *(self._retry_by_broker(delivery, message, delay_level) for message in delivery.incomplete)
            )

    # Concurrently.

    async def _retry_by_broker(self, delivery: Delivery, message: MessageExt, delay_level: int) -> None:
        """Have the broker redeliver a message; if it does not accept it, retry it locally."""
        if await self._send_back(delivery.assigned.queue, message, delay_level):
            delivery.complete([message])
        else:
            message.reconsume_times += 1
            self._context.background.start(self._retry_locally(delivery, message), f"local retry of {message.msg_id}")

    async def _send_back(self, queue: MessageQueue, message: MessageExt, delay_level: int) -> bool:
        """Send CONSUMER_SEND_MSG_BACK; return whether the broker accepted the message. Failures are logged."""
        limit = self._options.max_reconsume_times
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._context.group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=MAX_RECONSUME_TIMES if limit is None else limit,
        )
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        outages = self._context.instance.outages
        purpose = f"group {self._context.group}: sending messages of {queue} back for a retry"
        try:
            response = await self._context.instance.invoke_master(queue, request, SEND_BACK_TIMEOUT_MS)
            if response.code != ResponseCode.SUCCESS:
                raise BrokerError(response.code, response.remark, queue.broker_name)
        except MQError as error:
            outages.failed(queue.broker_name, purpose, error)
            return False
        outages.succeeded(queue.broker_name, purpose)
        return True

    async def _retry_locally(self, delivery: Delivery, message: MessageExt) -> None:
        await asyncio.sleep(self._options.local_retry_ms / 1000)
        if not delivery.process_queue.is_dropped:
            self._ready_queue.put(delivery.assigned, [message])

    # In order.

    async def _requeue_in_order(self, delivery: Delivery, suspend_ms: float | None) -> None:
        """Requeue a delivery and suspend its queue, except for messages with too many retries (dead letters)."""
        retried = []
        for message in delivery.incomplete:
            # `reconsume_times` counts in memory only: the broker stores a new count with its own retries alone.
            if await self._move_to_dead_letters(delivery.assigned.queue, message):
                delivery.complete([message])
            else:
                message.reconsume_times += 1
                retried.append(message)
        self._ready_queue.requeue_blocked(delivery, retried)
        if retried:
            self._context.background.start(
                self._resume(delivery.assigned, self._suspension_ms(suspend_ms)),
                f"suspension of {delivery.assigned.queue}",
            )
        else:
            self._ready_queue.unblock(delivery.assigned)

    def _suspension_ms(self, suspend_ms: float | None) -> float:
        pause_ms = self._options.suspend_current_queue_ms if suspend_ms is None else suspend_ms
        return min(max(pause_ms, SHORTEST_SUSPENSION_MS), LONGEST_SUSPENSION_MS)

    async def _move_to_dead_letters(self, queue: MessageQueue, message: MessageExt) -> bool:
        """Move a message with too many retries to the dead letter queue; return whether that was done."""
        limit = self._options.max_reconsume_times
        if limit is None or message.reconsume_times < limit:
            return False
        return not self._options.broadcasting and await self._send_back(queue, message, DEAD_LETTER)

    async def _resume(self, assigned: AssignedQueue, pause_ms: float) -> None:
        await asyncio.sleep(pause_ms / 1000)
        self._ready_queue.unblock(assigned)


def restore_topic(message: MessageExt) -> None:
    """Restore the original topic of a message from a retry topic."""
    message.topic = message.properties.get(properties.RETRY_TOPIC, message.topic)
