"""Fetcher: one task per assigned queue that fetches messages into the ready queue. PullFetcher: by pulls.

1. Wait while the consumer is suspended, and while the process queue has no capacity.
2. Pull from `next_offset`. The broker holds the request until a message arrives, at most `SUSPEND_MS`.
3. If the offset is outside the queue, reset the assigned queue to the nearest offset inside, or to the first incomplete
   message if that is still in the queue.
4. Add the messages to the process queue, and those that are new to the ready queue.
5. Pause if the broker neither held the pull nor moved its offset: it may be a slave that waits for its master.

Corresponds to `PullMessageService` and `DefaultMQPushConsumerImpl.pullMessage` of Apache RocketMQ 4.9.8. Deliberate
differences: an illegal offset is corrected immediately, not after 10 s, and incomplete messages that are still in the
queue are pulled again, where Apache skips them.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from rucola.client.clock import now_ms, precise_monotonic_ms
from rucola.client.consumer.assigned_queue import AssignedQueue
from rucola.client.consumer.context import ConsumerContext
from rucola.client.consumer.offset_store import OffsetStore
from rucola.client.consumer.pull_consumer import PullConsumer, PullResult, PullStatus
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.consumer.retry import restore_topic
from rucola.client.stats import ConsumeCounters
from rucola.domain.subscription import SubscriptionData
from rucola.errors import BrokerError, MQError
from rucola.message import MessageExt
from rucola.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

SUSPEND_MS = 15_000
PULL_ERROR_PAUSE_MS = 1000
CORRECTION_INTERVAL_MS = 10_000
"""A second correction of the offset within this time is followed by the pause of a failed pull."""
FLOW_CONTROL_PAUSE_MS = 20
"""The pause after a busy broker rejected a pull; doubles for pulls in sequence that change nothing."""
_NOT_HELD = (ResponseCode.SYSTEM_BUSY, ResponseCode.POLLING_FULL)
"""Codes of a broker that holds as many requests as it may."""


class Fetcher(ABC):
    """Fetches the messages of one consumer. Belongs to one event loop."""

    def __init__(self, context: ConsumerContext, ready_queue: ReadyQueue, counters: ConsumeCounters) -> None:
        self._context = context
        self._outages = context.instance.outages
        self._ready_queue = ready_queue
        self._counters = counters
        self._refused: set[AssignedQueue] = set()
        """Queues whose last pull the broker refused to hold, having too many: an outage of all of them together."""
        self._is_suspended = False
        self._running = asyncio.Event()
        """Cleared while the consumer is suspended, and when it closes."""

    def open(self) -> None:
        """Serve the running event loop; a suspension from before stays."""
        self._running = asyncio.Event()
        if not self._is_suspended:
            self._running.set()

    def suspend(self) -> None:
        """Add no further messages until `resume`; a pull in flight waits with its result."""
        self._is_suspended = True
        self._running.clear()

    def resume(self) -> None:
        self._is_suspended = False
        self._running.set()

    def close(self) -> None:
        """Send no further request."""
        self._running.clear()

    def start(self, assigned: AssignedQueue) -> None:
        assigned.fetch_task = self._context.background.start(
            self._fetch(assigned), f"pull of {assigned.queue} for {self._context.group}"
        )

    def stop(self, assigned: AssignedQueue) -> None:
        self._cancel(assigned)
        self._no_longer_refused(assigned)
        self.release(assigned)

    def _cancel(self, assigned: AssignedQueue) -> None:
        if assigned.fetch_task is not None:
            assigned.fetch_task.cancel()

    @abstractmethod
    def release(self, assigned: AssignedQueue) -> None:
        """Let other members have the messages that were not delivered."""

    def reset(self, assigned: AssignedQueue, queue_offset: int) -> None:
        """Continue at this offset. Earlier messages are not delivered; those in flight affect no offset."""
        self.stop(assigned)
        assigned.reset(queue_offset)
        self.start(assigned)

    @abstractmethod
    async def _fetch(self, assigned: AssignedQueue) -> None:
        """Fetch the messages of a queue while its topic is subscribed."""

    async def _wait_for_capacity(self, assigned: AssignedQueue) -> None:
        """Wait while the consumer is suspended, or the process queue is full."""
        await self._running.wait()
        while not assigned.process_queue.has_capacity:
            assigned.capacity.clear()
            if assigned.process_queue.is_total_full:
                assigned.process_queue.wake_below_total(assigned.capacity)
            await assigned.capacity.wait()
            await self._running.wait()

    async def _failed(self, assigned: AssignedQueue, error: MQError) -> None:
        """Report a failed request, and pause."""
        # A busy broker is expected and recovers soon: a short pause, and no line in the log for each pull.
        is_busy = isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL
        if isinstance(error, BrokerError) and error.code in _NOT_HELD:
            self._refused.add(assigned)
            self._outages.failed(assigned.queue.broker_name, self._refused_purpose(assigned), error)
        elif not is_busy:
            self._outages.failed(assigned.queue.broker_name, self._pull_purpose(assigned), error)
        await asyncio.sleep((FLOW_CONTROL_PAUSE_MS if is_busy else PULL_ERROR_PAUSE_MS) / 1000)

    def _succeeded(self, assigned: AssignedQueue, messages: Sequence[MessageExt], begin_ms: float) -> None:
        if self._outages.any_failing:
            self._outages.succeeded(assigned.queue.broker_name, self._pull_purpose(assigned))
            self._no_longer_refused(assigned)
        if messages:
            counters = self._counters.of(assigned.queue.topic)
            counters.add_pull(len(messages), precise_monotonic_ms() - begin_ms)

    def _pull_purpose(self, assigned: AssignedQueue) -> str:
        return f"group {self._context.group}: pull of {assigned.queue}"

    def _refused_purpose(self, assigned: AssignedQueue) -> str:
        return f"group {self._context.group}: hold of pulls at {assigned.queue.broker_name}"

    def _no_longer_refused(self, assigned: AssignedQueue) -> None:
        if assigned in self._refused:
            self._refused.discard(assigned)
            name = assigned.queue.broker_name
            if all(refused.queue.broker_name != name for refused in self._refused):
                self._outages.succeeded(name, self._refused_purpose(assigned))


class PullFetcher(Fetcher):
    """Pulls the assigned queues of one consumer."""

    def __init__(
        self,
        context: ConsumerContext,
        ready_queue: ReadyQueue,
        counters: ConsumeCounters,
        pull_consumer: PullConsumer,
        offset_store: OffsetStore,
    ) -> None:
        super().__init__(context, ready_queue, counters)
        self._retry_topic = context.retry_topic
        self._pull_consumer = pull_consumer
        self._offset_store = offset_store

    def release(self, assigned: AssignedQueue) -> None:
        pass  # they pull from the committed offset on

    async def _fetch(self, assigned: AssignedQueue) -> None:
        topic = assigned.queue.topic
        corrected_ms = -float("inf")
        least_ms = 0.0
        """The least time of a pull that changes nothing."""
        while True:
            await self._wait_for_capacity(assigned)
            if (subscription := self._context.subscriptions.get(topic)) is None:
                return
            begin_ms, offset = precise_monotonic_ms(), assigned.process_queue.next_offset
            result = await self._pull(assigned, subscription)
            if result is None:
                continue
            await self._running.wait()
            if result.status is PullStatus.OFFSET_ILLEGAL:
                await self._correct_offset(assigned, result)
                if begin_ms < corrected_ms + CORRECTION_INTERVAL_MS:  # the broker contradicts itself
                    await asyncio.sleep(PULL_ERROR_PAUSE_MS / 1000)
                corrected_ms = precise_monotonic_ms()
                continue
            # A reset replaces the process queue only after it has cancelled this task, so it is still the pulled one.
            messages = assigned.process_queue.put(result.messages, result.next_begin_offset)
            if topic == self._retry_topic:
                for message in messages:
                    restore_topic(message)
            self._ready_queue.put(assigned, messages)
            if assigned.process_queue.next_offset > offset:
                least_ms = 0.0
            else:
                await asyncio.sleep((begin_ms + least_ms - precise_monotonic_ms()) / 1000)
                least_ms = min(2 * least_ms or FLOW_CONTROL_PAUSE_MS, PULL_ERROR_PAUSE_MS)

    async def _pull(self, assigned: AssignedQueue, subscription: SubscriptionData) -> PullResult | None:
        """Pull once; return None after a failure and the pause that follows it."""
        process_queue = assigned.process_queue
        assigned.pulled_ms = now_ms()
        begin_ms = precise_monotonic_ms()
        try:
            result = await self._pull_consumer.pull(
                assigned.queue,
                process_queue.next_offset,
                self._context.options.pull_batch_size,
                subscription,
                suspend_ms=SUSPEND_MS,
                commit_offset=(process_queue.commit_offset or None) if self._offset_store.commits_with_pulls else None,
            )
        except MQError as error:
            await self._failed(assigned, error)
            return None
        self._succeeded(assigned, result.messages, begin_ms)
        return result

    async def _correct_offset(self, assigned: AssignedQueue, result: PullResult) -> None:
        """Reset the queue to an offset inside, but not beyond a message that is incomplete and still in the queue."""
        illegal, begin = assigned.process_queue.next_offset, result.next_begin_offset
        if illegal > result.max_offset:  # a crash took the end of the queue, and not all that was pulled
            begin = min(begin, max(assigned.process_queue.commit_offset, result.min_offset))
        logger.warning(
            "group %s: %s has offsets %d to %d, not %d; continuing at %d",
            self._context.group, assigned.queue, result.min_offset, result.max_offset, illegal, begin,
        )  # fmt: skip
        # Commit immediately, so that a restarted group does not find the illegal offset again.
        assigned.reset(begin)
        await self._offset_store.commit(assigned)
