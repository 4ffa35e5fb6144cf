"""Returns: what becomes of messages that the application was not done with.

    side by side     CONSUMER_SEND_MSG_BACK: the broker delivers them again later, through %RETRY%group, or, tried too
                     often, puts them into %DLQ%group; where no broker takes them, they are tried again here
    in order         they wait in front of their queue, which rests for a moment; tried `max_reconsume_times` they go
                     to %DLQ%group, but by default they are tried without end, since what follows may not overtake them
    broadcasting     logged and left: nobody else could consume them in this member's stead. In order, as above,
                     without a dead letter queue

Answers to `processConsumeResult` and `sendMessageBack` of `ConsumeMessageConcurrentlyService` and
`ConsumeMessageOrderlyService` of Apache RocketMQ 4.9.8. Deliberate difference: in order, what was tried too often goes
to the dead letter queue by CONSUMER_SEND_MSG_BACK with level -1, where Apache sends a new message to %RETRY%group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.consumer.assigned_queue import AssignedQueue, Delivery
from rucola.client.consumer.options import ConsumeOptions
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.instance import ClientInstance
from rucola.errors import BrokerError, MQError
from rucola.message import MessageExt
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.queue import MessageQueue
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader

logger = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_MS = 5000
MAX_RECONSUME_TIMES = 16
"""How often a message is tried again side by side, where nothing else is asked for."""
DEAD_LETTER = -1
"""The delay level that means the dead letter queue."""
EXPIRED_DELAY_LEVEL = 3
"""At which a message comes again that the application had for too long."""
SHORTEST_SUSPENSION_MS, LONGEST_SUSPENSION_MS = 10, 30_000


class RetryPolicy:
    """Takes back what was not done, for one consumer."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        line: ReadyQueue,
        background: BackgroundTasks,
        options: ConsumeOptions,
    ) -> None:
        self._group = group
        self._instance = instance
        self._line = line
        self._background = background
        self._options = options

    async def take_back(self, delivery: Delivery, delay_level: int = 0, suspend_ms: float | None = None) -> None:
        """The application has failed on a delivery, or had it for too long: what is not done of it comes again."""
        messages = delivery.not_done
        if self._options.orderly:
            await self._suspend(delivery, messages, suspend_ms)
        elif self._options.broadcasting:
            for message in messages:
                logger.warning(
                    "group %s: message %s of %s was not consumed and will not come again: this is broadcasting",
                    self._group, message.msg_id, delivery.own.queue,
                )  # fmt: skip
            delivery.done(messages)
        else:
            await asyncio.gather(*(self._send_back_or_retry(delivery, message, delay_level) for message in messages))

    async def _send_back(self, queue: MessageQueue, message: MessageExt, delay_level: int) -> bool:
        """Have the broker deliver a message of the queue again later; whether it will. Logged where not."""
        limit = self._options.max_reconsume_times
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=MAX_RECONSUME_TIMES if limit is None else limit,
        )
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        try:
            answer = await self._instance.invoke_master(queue, request, SEND_BACK_TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerError(answer.code, answer.remark, queue.broker_name)
        except MQError as error:
            logger.warning("group %s: message %s could not be sent back: %s", self._group, message.msg_id, error)
            return False
        return True

    async def _send_back_or_retry(self, delivery: Delivery, message: MessageExt, delay_level: int) -> None:
        if await self._send_back(delivery.own.queue, message, delay_level):
            delivery.done([message])
        else:
            message.reconsume_times += 1
            self._background.start(self._retry_here(delivery, message), f"local retry of {message.msg_id}")

    async def _retry_here(self, delivery: Delivery, message: MessageExt) -> None:
        await asyncio.sleep(self._options.local_retry_ms / 1000)
        if not delivery.progress.is_dropped:
            self._line.put(delivery.own, [message])

    async def _suspend(self, delivery: Delivery, messages: Sequence[MessageExt], suspend_ms: float | None) -> None:
        again = []
        for message in messages:
            if await self._is_dead(delivery.own.queue, message):
                delivery.done([message])
            else:
                message.reconsume_times += 1
                again.append(message)
        self._line.put_back(delivery, again)
        if again:
            pause_ms = self._options.suspend_current_queue_ms if suspend_ms is None else suspend_ms
            pause_ms = min(max(pause_ms, SHORTEST_SUSPENSION_MS), LONGEST_SUSPENSION_MS)
            self._background.start(self._resume(delivery.own, pause_ms), f"suspension of {delivery.own.queue}")
        else:
            self._line.come_back(delivery.own)

    async def _is_dead(self, queue: MessageQueue, message: MessageExt) -> bool:
        """Whether the message has been tried too often, and is in the dead letter queue now."""
        limit = self._options.max_reconsume_times
        if limit is None or message.reconsume_times < limit:
            return False
        return not self._options.broadcasting and await self._send_back(queue, message, DEAD_LETTER)

    async def _resume(self, own: AssignedQueue, pause_ms: float) -> None:
        await asyncio.sleep(pause_ms / 1000)
        self._line.come_back(own)
