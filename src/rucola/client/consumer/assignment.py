"""Assignment: the queues that this member consumes now, and their rebalance.

    clustering      the allocation strategy divides the topic's queues among the members of the group, see `allocation`
    broadcasting    every read queue
    POP             all queues of a broker, as one with the id ALL_QUEUES

A rebalance computes the assignment again: every `REBALANCE_INTERVAL_MS`, and when members or routes change. Each queue
passes these states; steps marked (*) apply to ordered consumers only, of which no two ever have messages of one queue
in flight:

    unassigned ── _assign ──> assigning ──> assigned ── _revoke ──> revoking ── _release ──> unassigned

1. assigning     its lock is acquired (*) and its start offset is found; then it is assigned, and the fetcher starts.
                 If another member may have the lock, or the broker does not respond, a later rebalance tries again.
2. assigned      its messages are pulled and delivered. If its lock is lost (*), deliveries pause until it is locked.
3. revoking      pulling and deliveries have stopped; after deliveries in flight have ended (*) its offset is committed,
                 and its lock is released (*).

Brokers are handled concurrently. A rebalance waits at most `BROKER_WAIT_MS` for them; then requests continue in the
background.

Corresponds to `RebalanceImpl` and `RebalancePushImpl` of Apache RocketMQ 4.9.8. Deliberate difference: a member that
the broker does not list (because the broker was restarted) keeps its queues while it sends a heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Iterable, Mapping

from rucola.client.callbacks import is_addressed_to
from rucola.client.consumer.assigned_queue import AssignedQueue
from rucola.client.consumer.context import ConsumerContext
from rucola.client.consumer.fetcher import Fetcher
from rucola.client.consumer.group_members import GroupMembers, broker_addresses
from rucola.client.consumer.missing_topics import MissingTopics
from rucola.client.consumer.offset_store import OffsetStore
from rucola.client.consumer.process_queue import PullLimits, ReadAhead
from rucola.client.consumer.queue_locks import QueueLocks, by_broker
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.consumer.start_offsets import StartOffsets
from rucola.client.consumer.subscription_consistency import SubscriptionCheck
from rucola.client.route import TopicRoute
from rucola.domain.queue import MessageQueue
from rucola.errors import MQError, TopicNotFound, is_unreachable

logger = logging.getLogger(__name__)

REBALANCE_INTERVAL_MS = 20_000
UNBALANCED_PAUSE_MS = 500
"""The pause after an incomplete rebalance; it doubles with each further one, up to the interval."""
REQUEST_PAUSE_MS = 100
RELOCK_PAUSE_MS = 1000
BROKER_WAIT_MS = 2000
"""How long a rebalance waits for brokers to store and return offsets."""
CONCURRENT_LOOKUPS = 64
ALL_QUEUES = -1
"""The queue id of all queues of a broker."""


class Assignment:
    """The assigned queues of one consumer. Belongs to one event loop. `locks` is for ordered clustering consumers."""

    def __init__(
        self,
        context: ConsumerContext,
        start_offsets: StartOffsets,
        offset_store: OffsetStore,
        fetcher: Fetcher,
        ready_queue: ReadyQueue,
        locks: QueueLocks | None,
    ) -> None:
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self._context = context
        self._missing_topics = MissingTopics(context.group, context.instance.name_servers)
        self._group = context.group
        self._start_offsets = start_offsets
        self._offset_store = offset_store
        self._fetcher = fetcher
        self._ready_queue = ready_queue
        self._locks = locks
        self._read_ahead = ReadAhead()
        self._members = GroupMembers(context)
        self._subscription_check = SubscriptionCheck(context.group, context.instance, context.subscriptions)
        self._assigning: set[MessageQueue] = set()
        self._revoking: dict[MessageQueue, AssignedQueue] = {}
        self._running_check: asyncio.Task[None] | None = None
        """The latest subscription check; at most one runs."""
        self._requested = asyncio.Event()
        self._rebalanced = asyncio.Event()
        """Set when the current rebalance ends, and then replaced by a new event."""

    # Called by the consumer.

    async def open(self) -> None:
        """Run the first rebalance, and repeat it in the background."""
        is_complete = await self._rebalance()
        self._context.background.start(self._rebalance_loop(is_complete), f"rebalance of {self._group}")

    async def close(self) -> None:
        """Commit all offsets, and release all queues for other members."""
        queues = self.queues | self._revoking
        await asyncio.gather(*(self._abandon([queues[queue] for queue in group]) for group in by_broker(queues)))
        self.queues.clear()
        self._revoking.clear()
        if self._locks is not None:
            await self._locks.unlock_all()
        self._rebalanced.set()
        self._requested, self._rebalanced = asyncio.Event(), asyncio.Event()

    async def commit(self) -> None:
        await self._commit(self.queues.values())

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in the queues assigned here, and commit them; ignore other queues."""
        resets = [assigned for queue, assigned in self.queues.items() if queue in offsets]
        for assigned in resets:
            self._fetcher.reset(assigned, offsets[assigned.queue])
        await self._commit(resets)

    def rebalance_soon(self) -> None:
        self._requested.set()

    async def rebalanced(self) -> None:
        """Wait until the next rebalance ends, or the consumer is closed."""
        await self._rebalanced.wait()

    def held_by_topic(self) -> dict[str, tuple[int, int]]:
        """Return the number and bytes of incomplete messages of each topic. Thread-safe."""
        held: dict[str, tuple[int, int]] = {}
        for assigned in list(self.queues.values()):
            count, size = held.get(assigned.queue.topic, (0, 0))
            process_queue = assigned.process_queue
            held[assigned.queue.topic] = count + len(process_queue), size + process_queue.size
        return held

    def can_deliver(self, assigned: AssignedQueue) -> bool:
        """Return whether messages of the queue may be delivered. If not, it is unblocked when it is locked again."""
        if self._locks is None or self._locks.holds(assigned.queue):
            return True
        self._context.background.start(self._relock(assigned, self._locks), f"lock of {assigned.queue}")
        return False

    # Rebalance.

    async def _rebalance_loop(self, is_complete: bool) -> None:
        pause_ms = UNBALANCED_PAUSE_MS
        while True:
            try:
                wait_ms = REBALANCE_INTERVAL_MS if is_complete else min(pause_ms, self._locks_free_in_ms())
                async with asyncio.timeout(wait_ms / 1000):
                    await self._requested.wait()
                pause_ms = UNBALANCED_PAUSE_MS
            except TimeoutError:
                pause_ms = min(2 * pause_ms, REBALANCE_INTERVAL_MS)
            self._requested.clear()
            is_complete = await self._rebalance()
            await asyncio.sleep(REQUEST_PAUSE_MS / 1000)

    def _locks_free_in_ms(self) -> float:
        return math.inf if self._locks is None else self._locks.free_in_ms()

    async def _rebalance(self) -> bool:
        """Rebalance all topics; return whether this was complete, so that the next one may wait for the interval."""
        is_complete = all(await asyncio.gather(*map(self._try_to_rebalance, list(self._context.subscriptions))))
        unsubscribed = [a for a in self.queues.values() if a.queue.topic not in self._context.subscriptions]
        await _wait_for_brokers(list(map(self._revoke, unsubscribed)))
        self._start_subscription_check()
        rebalanced, self._rebalanced = self._rebalanced, asyncio.Event()
        rebalanced.set()
        return is_complete

    async def _try_to_rebalance(self, topic: str) -> bool:
        outages, purpose = self._context.instance.outages, f"group {self._group}: rebalance"
        try:
            is_complete = await self._rebalance_topic(topic)
        except TopicNotFound:
            await self._missing_topics.missing(topic)
            return False
        except MQError as error:
            outages.failed_anywhere(purpose, error)
            return False
        outages.succeeded_anywhere(purpose)
        self._missing_topics.found(topic)
        return is_complete

    async def _rebalance_topic(self, topic: str) -> bool:
        """Assign and revoke queues of a topic; return whether all allocated queues are assigned. MQError."""
        route = await self._context.instance.routes.find(topic)
        if self._locks is not None:
            self._locks.observe_masters(route.brokers)
        allocated = await self._allocate(route)
        if allocated is None:
            return False
        # In order, revoking waits for the application; the rebalance does not wait for it.
        revoked = [a for a in self.queues.values() if a.queue.topic == topic and a.queue not in allocated]
        tasks = list(map(self._revoke, revoked))
        if self._locks is not None:
            tasks.clear()
        self._assigning -= {queue for queue in self._assigning if queue.topic == topic and queue not in allocated}
        options = self._context.options
        limits = options.limits.shared_by(max(1, len(allocated)), in_order=options.orderly)
        for assigned in self.queues.values():
            if assigned.queue.topic == topic:
                assigned.set_limits(limits)
        # One task for each broker.
        known = self.queues.keys() | self._revoking.keys() | self._assigning
        new = [queue for queue in allocated if queue not in known]
        self._assigning.update(new)
        if new or revoked:
            logger.info(
                "group %s: topic %s: %d queues for this member, %d new, %d revoked",
                self._group, topic, len(allocated), len(new), len(revoked),
            )  # fmt: skip
        for group in by_broker(new):
            name = f"new queues of {self._group} at {group[0].broker_name}"
            tasks.append(self._context.background.start(self._assign(group, limits), name))
        await _wait_for_brokers(tasks)
        return all(queue in self.queues for queue in allocated)

    async def _allocate(self, route: TopicRoute) -> list[MessageQueue] | None:
        """Return this member's queues of the topic; None if they cannot be determined now. MQError."""
        queues = sorted(route.read_queues)
        options, instance = self._context.options, self._context.instance
        if options.broadcasting:
            return queues
        if options.pop:
            # One whose broker is unreachable stays as long as its messages are consumed.
            held = [a.queue for a in self.queues.values() if a.queue.topic == route.topic and len(a.process_queue)]
            every = (MessageQueue(route.topic, queue.broker_name, ALL_QUEUES) for queue in queues)
            return sorted({*every, *held})
        client_ids = await self._members.client_ids(route)
        if instance.client_id not in client_ids:
            await instance.send_heartbeats(BROKER_WAIT_MS)
            return None
        try:
            return list(options.strategy(instance.client_id, queues, sorted(client_ids)))
        except BaseException as error:
            if is_addressed_to(asyncio.current_task(), error):
                raise
            logger.exception(
                "group %s: the allocation strategy failed for topic %s; the assignment does not change",
                self._group, route.topic,
            )  # fmt: skip
            return None

    def _start_subscription_check(self) -> None:
        known = self._context.instance.routes.known
        routes = [route for topic in self._context.subscriptions if (route := known(topic)) is not None]
        routes = [route for route in routes if any(route.brokers.values())]
        if routes and (self._running_check is None or self._running_check.done()):
            check = self._subscription_check.run(broker_addresses(random.choice(routes))[0])  # noqa: S311 - spreads load
            self._running_check = self._context.background.start(check, f"subscriptions of {self._group}")

    # unassigned -> assigning -> assigned

    async def _assign(self, queues: list[MessageQueue], limits: PullLimits) -> None:
        """Assign queues of one broker. If it does not respond, the rest is left to the next rebalance."""
        try:
            if self._locks is not None:
                await self._locks.lock(queues)
            for first in range(0, len(queues), CONCURRENT_LOOKUPS):
                chunk = queues[first : first + CONCURRENT_LOOKUPS]
                if not all(await asyncio.gather(*(self._assign_queue(queue, limits) for queue in chunk))):
                    return
        finally:
            self._assigning.difference_update(queues)

    async def _assign_queue(self, queue: MessageQueue, limits: PullLimits) -> bool:
        """Assign a queue unless another member has its lock; return whether the broker responded."""
        locks = self._locks
        if locks is not None and not locks.holds(queue):
            logger.debug("group %s: another member may have the lock of %s", self._group, queue)
            return True
        try:
            offset = await self._start_offsets.find(queue)
        except MQError as error:
            self._context.instance.outages.failed(queue.broker_name, self._start_purpose(queue), error)
            return not is_unreachable(error)
        self._context.instance.outages.succeeded(queue.broker_name, self._start_purpose(queue))
        if queue in self._assigning:
            assigned = self.queues[queue] = AssignedQueue(queue, offset, limits, self._read_ahead)
            self._fetcher.start(assigned)
            client_id = self._context.instance.client_id
            logger.debug("group %s: %s is assigned to %s, starting at %d", self._group, queue, client_id, offset)
        elif locks is not None and queue not in self.queues:  # a later rebalance withdrew it
            await locks.unlock([queue])
        return True

    def _start_purpose(self, queue: MessageQueue) -> str:
        return f"group {self._group}: query of the start offset of {queue}"

    async def _relock(self, assigned: AssignedQueue, locks: QueueLocks) -> None:
        """Request a lost lock until held or revoked. Another member may have consumed and committed in the meantime."""
        while not assigned.is_revoked:
            await locks.lock([assigned.queue])
            if locks.holds(assigned.queue):
                try:
                    committed = await self._offset_store.read(assigned.queue)
                except MQError as error:
                    self._context.instance.outages.failed(
                        assigned.queue.broker_name, self._start_purpose(assigned.queue), error
                    )
                else:
                    if committed is not None and committed > assigned.process_queue.commit_offset:
                        self._fetcher.reset(assigned, committed)
                    self._ready_queue.unblock(assigned)
                    return
            await asyncio.sleep(RELOCK_PAUSE_MS / 1000)

    # assigned -> revoking -> unassigned

    def _revoke(self, assigned: AssignedQueue) -> asyncio.Task[None]:
        del self.queues[assigned.queue]
        assigned.is_revoked = True
        self._fetcher.stop(assigned)
        self._revoking[assigned.queue] = assigned
        client_id = self._context.instance.client_id
        logger.debug("group %s: %s is revoked from %s", self._group, assigned.queue, client_id)
        return self._context.background.start(self._release(assigned), f"release of {assigned.queue}")

    async def _release(self, assigned: AssignedQueue) -> None:
        # In order, wait for the delivery in flight: the next owner must not deliver while it runs.
        if self._locks is not None:
            await assigned.idle.wait()
        # From here on completions have no effect on the offset that is committed last.
        assigned.process_queue.drop()
        await self._commit([assigned])
        # Unlock after the commit, so that the next owner reads the committed offset.
        if self._locks is not None:
            await self._locks.unlock([assigned.queue])
        del self._revoking[assigned.queue]
        if self._locks is not None:
            self.rebalance_soon()  # it may be allocated to this member again

    async def _abandon(self, queues: list[AssignedQueue]) -> None:
        """Release queues of one broker when the consumer closes, without waiting for deliveries in flight."""
        for assigned in queues:
            self._fetcher.release(assigned)
        await self._commit(queues)
        for assigned in queues:
            assigned.is_revoked = True
            assigned.process_queue.drop()
        if self._locks is not None:
            await self._locks.unlock(assigned.queue for assigned in queues)

    async def _commit(self, queues: Iterable[AssignedQueue]) -> None:
        """Commit offsets, except of queues without their lock: another member may commit for these."""
        locks = self._locks
        await self._offset_store.commit(*(a for a in queues if locks is None or locks.holds(a.queue)))


async def _wait_for_brokers(tasks: list[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=BROKER_WAIT_MS / 1000)
