"""Fetcher: one task for each own queue asks its broker for more and puts what comes into the line.

The broker holds a pull until something comes. Fetcher a queue pauses while too much of it is held (see
`process_queue`), and while the consumer is suspended. An offset outside the queue is corrected to the nearest inside.

Answers to `PullMessageService` and `DefaultMQPushConsumerImpl.pullMessage` of Apache RocketMQ 4.9.8. Deliberate
difference: an illegal offset is corrected at once, not after 10 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.clock import now_ms, precise_monotonic_ms
from rucola.client.consumer.assigned_queue import AssignedQueue
from rucola.client.consumer.offset_store import OffsetStore
from rucola.client.consumer.pull_consumer import PullConsumer, PullResult, PullStatus
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.stats import ConsumeCounters
from rucola.errors import BrokerError, MQError
from rucola.message import MessageExt, properties
from rucola.message.topics import retry_topic
from rucola.protocol.codes import ResponseCode
from rucola.protocol.heartbeat import SubscriptionData

logger = logging.getLogger(__name__)

SUSPEND_MS = 15_000
"""How long a broker may hold a pull."""
PULL_ERROR_PAUSE_MS = 1000
FLOW_CONTROL_PAUSE_MS = 20


class Fetcher:
    """Pulls the own queues of one consumer."""

    def __init__(
        self,
        pulls: PullConsumer,
        subscriptions: Mapping[str, SubscriptionData],
        line: ReadyQueue,
        offsets: OffsetStore,
        background: BackgroundTasks,
        counts: ConsumeCounters,
        batch_size: int,
    ) -> None:
        self._pulls = pulls
        self._subscriptions = subscriptions
        self._retry_topic = retry_topic(pulls.group)
        self._line = line
        self._offsets = offsets
        self._background = background
        self._counts = counts
        self._batch_size = batch_size
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    def suspend(self) -> None:
        """Let nothing more in until `resume`."""
        self._goes_on.clear()

    def resume(self) -> None:
        """Go on."""
        self._goes_on.set()

    def start(self, own: AssignedQueue) -> None:
        """Pull the queue from where it stands."""
        own.pull = self._background.start(self._pull(own), f"pull of {own.queue} for {self._pulls.group}")

    def stop(self, own: AssignedQueue) -> None:
        """Pull the queue no more."""
        if own.pull is not None:
            own.pull.cancel()

    def begin_anew(self, own: AssignedQueue, queue_offset: int) -> None:
        """Go on at this offset. What was pulled before and is not done is not given out, or counts for nothing."""
        self.stop(own)
        own.begin_anew(queue_offset)
        self.start(own)

    def restore_topic(self, message: MessageExt) -> None:
        """Give a message that is tried again the topic that it was sent to."""
        if message.topic == self._retry_topic:
            message.topic = message.properties.get(properties.RETRY_TOPIC, message.topic)

    async def _pull(self, own: AssignedQueue) -> None:
        queue = own.queue
        while (wanted := self._subscriptions.get(queue.topic)) is not None:
            progress = own.progress
            await self._goes_on.wait()
            if not progress.has_room:
                own.room.clear()
                await own.room.wait()
                continue
            own.pulled_ms = now_ms()
            begin_ms = precise_monotonic_ms()
            try:
                result = await self._pulls.pull(
                    queue,
                    progress.next_offset,
                    self._batch_size,
                    wanted,
                    suspend_ms=SUSPEND_MS,
                    commit_offset=(progress.commit_offset or None) if self._offsets.goes_with_pulls else None,
                )
            except MQError as error:
                is_busy = isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL
                if not is_busy:
                    logger.warning("group %s: pull of %s failed: %s", self._pulls.group, queue, error)
                await asyncio.sleep((FLOW_CONTROL_PAUSE_MS if is_busy else PULL_ERROR_PAUSE_MS) / 1000)
                continue
            if result.status is PullStatus.FOUND:
                self._counts.of(queue.topic).brought(len(result.messages), precise_monotonic_ms() - begin_ms)
            await self._goes_on.wait()
            if result.status is PullStatus.OFFSET_ILLEGAL:
                await self._correct(own, result)
                continue
            messages = progress.put(result.messages, result.next_begin_offset)
            for message in messages:
                self.restore_topic(message)
            self._line.put(own, messages)

    async def _correct(self, own: AssignedQueue, result: PullResult) -> None:
        """Begin anew inside the queue. What is still held came from offsets that are gone, and commits nothing."""
        illegal = own.progress.next_offset
        logger.warning(
            "group %s: %s has %d to %d, not offset %d; going on at %d",
            self._pulls.group, own.queue, result.min_offset, result.max_offset, illegal, result.next_begin_offset,
        )  # fmt: skip
        own.begin_anew(result.next_begin_offset)
        await self._offsets.commit(own)
        if result.next_begin_offset == illegal:
            await asyncio.sleep(PULL_ERROR_PAUSE_MS / 1000)
