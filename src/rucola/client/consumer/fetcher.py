"""Fetcher: one task per assigned queue that pulls messages into the ready queue.

1. Wait while the consumer is suspended, and while the process queue has no capacity.
2. Pull from `next_offset`. The broker holds the request until a message arrives, at most `SUSPEND_MS`.
3. If the offset is outside the queue, reset the assigned queue to the nearest offset inside.
4. Add the messages to the process queue, and those that are new to the ready queue.
5. Pause if the broker neither held the pull nor moved its offset: it may be a slave that waits for its master.

Corresponds to `PullMessageService` and `DefaultMQPushConsumerImpl.pullMessage` of Apache RocketMQ 4.9.8. Deliberate
difference: an illegal offset is corrected immediately, not after 10 s.
"""

from __future__ import annotations

import asyncio
import logging

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
from rucola.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

SUSPEND_MS = 15_000
PULL_ERROR_PAUSE_MS = 1000
CORRECTION_INTERVAL_MS = 10_000
"""A second correction of the offset within this time is followed by the pause of a failed pull."""
FLOW_CONTROL_PAUSE_MS = 20
"""The pause after a busy broker rejected a pull; doubles for pulls in sequence that change nothing."""


class Fetcher:
    """Pulls the assigned queues of one consumer. Belongs to one event loop."""

    def __init__(
        self,
        context: ConsumerContext,
        pull_consumer: PullConsumer,
        ready_queue: ReadyQueue,
        offset_store: OffsetStore,
        counters: ConsumeCounters,
    ) -> None:
        self._context = context
        self._retry_topic = context.retry_topic
        self._pull_consumer = pull_consumer
        self._outages = context.instance.outages
        self._ready_queue = ready_queue
        self._offset_store = offset_store
        self._counters = counters
        self._refused: set[AssignedQueue] = set()
        """Queues whose last pull the broker refused to hold, having too many: an outage of all of them together."""
        self._running = asyncio.Event()
        """Cleared while the consumer is suspended."""
        self._running.set()

    def open(self) -> None:
        """Serve the running event loop; a suspension from before stays."""
        running = asyncio.Event()
        if self._running.is_set():
            running.set()
        self._running = running

    def suspend(self) -> None:
        """Add no further messages until `resume`; a pull in flight waits with its result."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def start(self, assigned: AssignedQueue) -> None:
        assigned.fetch_task = self._context.background.start(
            self._fetch(assigned), f"pull of {assigned.queue} for {self._context.group}"
        )

    def stop(self, assigned: AssignedQueue) -> None:
        if assigned.fetch_task is not None:
            assigned.fetch_task.cancel()
        self._no_longer_refused(assigned)

    def reset(self, assigned: AssignedQueue, queue_offset: int) -> None:
        """Continue at this offset. Earlier messages are not delivered; those in flight affect no offset."""
        self.stop(assigned)
        assigned.reset(queue_offset)
        self.start(assigned)

    async def _fetch(self, assigned: AssignedQueue) -> None:
        topic = assigned.queue.topic
        corrected_ms = -float("inf")
        least_ms = 0.0
        """The least time of a pull that changes nothing."""
        while (subscription := self._context.subscriptions.get(topic)) is not None:
            await self._running.wait()
            if not assigned.process_queue.has_capacity:
                assigned.capacity.clear()
                if assigned.process_queue.is_total_full:
                    assigned.process_queue.wake_below_total(assigned.capacity)
                await assigned.capacity.wait()
                continue
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
            # A busy broker is expected and recovers soon: a short pause, and no line in the log for each pull.
            is_busy = isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL
            if isinstance(error, BrokerError) and error.code == ResponseCode.SYSTEM_BUSY:
                self._refused.add(assigned)
                self._outages.failed(assigned.queue.broker_name, self._refused_purpose(assigned), error)
            elif not is_busy:
                self._outages.failed(assigned.queue.broker_name, self._pull_purpose(assigned), error)
            await asyncio.sleep((FLOW_CONTROL_PAUSE_MS if is_busy else PULL_ERROR_PAUSE_MS) / 1000)
            return None
        if self._outages.any_failing:
            self._outages.succeeded(assigned.queue.broker_name, self._pull_purpose(assigned))
            self._no_longer_refused(assigned)
        if result.status is PullStatus.FOUND:
            counters = self._counters.of(assigned.queue.topic)
            counters.add_pull(len(result.messages), precise_monotonic_ms() - begin_ms)
        return result

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

    async def _correct_offset(self, assigned: AssignedQueue, result: PullResult) -> None:
        """Reset the queue to an offset inside. Its incomplete messages are no longer in the queue."""
        illegal = assigned.process_queue.next_offset
        logger.warning(
            "group %s: %s has offsets %d to %d, not %d; continuing at %d",
            self._context.group, assigned.queue, result.min_offset, result.max_offset, illegal,
            result.next_begin_offset,
        )  # fmt: skip
        # Commit immediately, so that a restarted group does not find the illegal offset again.
        assigned.reset(result.next_begin_offset)
        await self._offset_store.commit(assigned)
