"""Assignment: which queues are this member's now, and how it takes them up and gives them up.

    clustering      the group's members and a topic's queues give each member its share, see `rebalance`
    broadcasting    every queue that may be read

Every 20 s, and as soon as a member comes or goes or a route changes, the share is worked out anew. Taking up a queue
means to lock it, where the group consumes in order, to find where to begin, and to pull; giving it up to commit how far
it is done, and in order to wait first for what is at work, and then to unlock it. So in order no two members have
messages of one queue in hand.

Where a group begins in a queue for which it has no committed offset, by `ConsumeFromWhere`:

                                a topic of its own        %RETRY%group
    CONSUME_FROM_LAST_OFFSET    the end                   0
    CONSUME_FROM_FIRST_OFFSET   0                         0
    CONSUME_FROM_TIMESTAMP      the offset at that time   the end

Brokers are handled concurrently: one that hangs holds up its own queues only. A rebalance waits `BROKER_WAIT_MS` at
most for brokers to answer; requests that take longer go on in the background.

A broker answers 0, not "none", for a young queue whose first message is still in memory, so a new group begins at 0
there, whatever was asked for.

Answers to `RebalanceImpl` and `RebalancePushImpl` of Apache RocketMQ 4.9.8. Deliberate difference: a member that the
broker does not list (it was started again) keeps its queues while it makes itself known.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from rucola.client.background_tasks import BackgroundTasks
from rucola.client.clock import now_ms
from rucola.client.consumer.assigned_queue import AssignedQueue
from rucola.client.consumer.fetcher import Fetcher
from rucola.client.consumer.listener import is_addressed_to
from rucola.client.consumer.offset_store import OffsetStore
from rucola.client.consumer.options import ConsumeFromWhere, ConsumeOptions
from rucola.client.consumer.process_queue import PullLimits
from rucola.client.consumer.pull_consumer import PullConsumer
from rucola.client.consumer.queue_locks import QueueLocks, by_broker
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.consumer.subscription_check import SubscriptionCheck
from rucola.client.hedging import hedged
from rucola.client.instance import ClientInstance
from rucola.client.route import HEDGE_MS, TopicRoute
from rucola.errors import BrokerError, MQError, RemotingConnectError, RemotingTimeout, TopicNotFound
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.heartbeat import (
    GetConsumerListByGroupRequestHeader,
    GetConsumerListByGroupResponseBody,
    SubscriptionData,
)
from rucola.protocol.queue import MessageQueue
from rucola.protocol.route import MASTER_ID

logger = logging.getLogger(__name__)

REBALANCE_INTERVAL_MS = 20_000
UNBALANCED_PAUSE_MS = 500
"""First wait after a rebalance that could not be finished; it doubles up to the interval."""
RELOCK_PAUSE_MS = 1000
BROKER_WAIT_MS = 2000
"""How long a rebalance waits for brokers to note the old queues' offsets and to tell the new ones'."""
CONCURRENT_LOOKUPS = 64
"""How many queues of one broker are looked up at a time."""
HALF_AN_HOUR_MS = 30 * 60 * 1000


class StartOffsets:
    """Where a group begins in a queue: where it was, or else as it was told."""

    def __init__(self, pulls: PullConsumer, offsets: OffsetStore, retry_topic: str, options: ConsumeOptions) -> None:
        self._pulls = pulls
        self._offsets = offsets
        self._retry_topic = retry_topic
        self._options = options

    async def offset(self, queue: MessageQueue) -> int:
        """The queue offset to pull first. RemotingError, ConfigError."""
        committed = await self._offsets.read(queue)
        if committed is not None:
            return committed
        is_retry = queue.topic == self._retry_topic
        match self._options.consume_from:
            case ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
                return 0 if is_retry else await self._pulls.max_offset(queue)
            case ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
                return 0
            case ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
                if is_retry:
                    return await self._pulls.max_offset(queue)
                timestamp_ms = self._options.consume_timestamp_ms
                if timestamp_ms is None:
                    timestamp_ms = now_ms() - HALF_AN_HOUR_MS
                return await self._pulls.search_offset(queue, timestamp_ms)


class Assignment:
    """The queues of one consumer. `locks` are given where it consumes in order and shares with others."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        subscriptions: Mapping[str, SubscriptionData],
        options: ConsumeOptions,
        beginning: StartOffsets,
        offsets: OffsetStore,
        pulling: Fetcher,
        line: ReadyQueue,
        locks: QueueLocks | None,
        background: BackgroundTasks,
    ) -> None:
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self._group = group
        self._instance = instance
        self._subscriptions = subscriptions
        self._options = options
        self._beginning = beginning
        self._offsets = offsets
        self._pulling = pulling
        self._line = line
        self._locks = locks
        self._background = background
        self._watch = SubscriptionCheck(group, instance, subscriptions)
        self._leaving: dict[MessageQueue, AssignedQueue] = {}
        self._taking_up: set[MessageQueue] = set()
        """Queues of the share that are being taken up."""
        self._looking: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        self._rebalanced = asyncio.Event()

    def held(self) -> dict[str, tuple[int, int]]:
        """How many messages of each topic are held, and how many bytes. May be asked from any thread."""
        held: dict[str, tuple[int, int]] = {}
        for own in list(self.queues.values()):
            count, size = held.get(own.queue.topic, (0, 0))
            held[own.queue.topic] = count + len(own.progress), size + own.progress.size
        return held

    def rebalance_soon(self) -> None:
        """Something has changed: work out the share anew."""
        self._due.set()

    async def rebalanced(self) -> None:
        """Wait until the share was next worked out."""
        await self._rebalanced.wait()

    async def open(self) -> None:
        """Take up the first share, and keep the share up to date from then on."""
        balanced = await self._rebalance()
        self._background.start(self._keep_balanced(balanced), f"rebalance of {self._group}")

    async def close(self) -> None:
        """Commit how far everything is done, and leave it to others."""
        owned = self.queues | self._leaving
        await asyncio.gather(*(self._leave([owned[queue] for queue in of_broker]) for of_broker in by_broker(owned)))
        self.queues.clear()
        self._leaving.clear()
        if self._locks is not None:
            await self._locks.unlock_all()

    async def commit(self) -> None:
        """Commit how far every own queue is done."""
        await self._commit(self.queues.values())

    async def begin_anew(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin at these offsets in those of the queues that are own, and commit them."""
        anew = [own for queue, own in self.queues.items() if queue in offsets]
        for own in anew:
            self._pulling.begin_anew(own, offsets[own.queue])
        await self._commit(anew)

    def may_take(self, own: AssignedQueue) -> bool:
        """Whether messages of the queue may be given out. Where its lock is missing, it is asked for again."""
        if self._locks is None or self._locks.holds(own.queue):
            return True
        self._background.start(self._regain(own, self._locks), f"lock of {own.queue}")
        return False

    async def _keep_balanced(self, balanced: bool) -> None:
        pause_ms = UNBALANCED_PAUSE_MS
        while True:
            try:
                async with asyncio.timeout((REBALANCE_INTERVAL_MS if balanced else pause_ms) / 1000):
                    await self._due.wait()
                pause_ms = UNBALANCED_PAUSE_MS
            except TimeoutError:
                pause_ms = min(2 * pause_ms, REBALANCE_INTERVAL_MS)
            self._due.clear()
            balanced = await self._rebalance()

    async def _rebalance(self) -> bool:
        """Take up and give up queues; return whether everything is as it should be."""
        balanced = all(await asyncio.gather(*map(self._try_to_rebalance, list(self._subscriptions))))
        given_up = [own for own in self.queues.values() if own.queue.topic not in self._subscriptions]
        await _wait_for(list(map(self._give_up, given_up)))
        routes = [route for topic in self._subscriptions if (route := self._instance.routes.known(topic)) is not None]
        routes = [route for route in routes if any(route.brokers.values())]
        if routes and (self._looking is None or self._looking.done()):
            look = self._watch.look(_brokers_of(random.choice(routes))[0])
            self._looking = self._background.start(look, f"subscriptions of {self._group}")
        rebalanced, self._rebalanced = self._rebalanced, asyncio.Event()
        rebalanced.set()
        return balanced

    async def _try_to_rebalance(self, topic: str) -> bool:
        try:
            return await self._rebalance_topic(topic)
        except TopicNotFound:
            return False
        except MQError as error:
            logger.warning("group %s cannot rebalance topic %s now: %s", self._group, topic, error)
            return False

    async def _rebalance_topic(self, topic: str) -> bool:
        route = await self._instance.routes.find(topic)
        share = await self._share_of(route)
        if share is None:
            return False
        given_up = [own for own in self.queues.values() if own.queue.topic == topic and own.queue not in share]
        tasks = list(map(self._give_up, given_up))
        if self._locks is not None:
            tasks.clear()  # in order, they wait for the application
        self._taking_up -= {queue for queue in self._taking_up if queue.topic == topic and queue not in share}
        limits = self._options.limits.shared_by(max(1, len(share)), in_order=self._options.orderly)
        for own in self.queues.values():
            if own.queue.topic == topic:
                own.limit(limits)
        known = self.queues.keys() | self._leaving.keys() | self._taking_up
        new = [queue for queue in share if queue not in known]
        self._taking_up.update(new)
        for of_broker in by_broker(new):
            name = f"new queues of {self._group} at {of_broker[0].broker_name}"
            tasks.append(self._background.start(self._take_up(of_broker, limits), name))
        await _wait_for(tasks)
        return all(queue in self.queues for queue in share)

    async def _share_of(self, route: TopicRoute) -> list[MessageQueue] | None:
        """The queues of the topic that are to be own; None while that cannot be told."""
        queues = sorted(route.read_queues)
        if self._options.broadcasting:
            return queues
        members = await self._members(route)
        if self._instance.client_id not in members:
            await self._instance.beat(BROKER_WAIT_MS)
            return None
        try:
            return list(self._options.strategy(self._instance.client_id, queues, sorted(members)))
        except BaseException as error:
            if is_addressed_to(asyncio.current_task(), error):
                raise
            logger.exception(
                "group %s: the rebalance strategy failed on topic %s; the share stays", self._group, route.topic
            )
            return None

    async def _members(self, route: TopicRoute) -> list[str]:
        """Return the client ids of the group, as one of the topic's brokers knows them; none if it knows no member."""

        def ask(address: str) -> Callable[[], Coroutine[Any, Any, list[str]]]:
            return lambda: self._members_at(address)

        try:
            _, members = await hedged([ask(address) for address in _brokers_of(route)], HEDGE_MS)
        except ExceptionGroup as failures:
            self._instance.renew_route(route.topic)
            raise failures.exceptions[0] from None
        return members

    async def _members_at(self, address: str) -> list[str]:
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        try:
            answer = await self._instance.remoting.invoke_ok(address, request)
        except BrokerError as error:
            logger.info("group %s: %s", self._group, error)
            return []
        # A member that reconnected is listed twice until the broker notices that its old connection is dead.
        return list(dict.fromkeys(decode_body(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list))

    async def _take_up(self, queues: list[MessageQueue], limits: PullLimits) -> None:
        """Take up queues of one broker. Those for which it does not answer are left to the next rebalance."""
        try:
            if self._locks is not None:
                await self._locks.lock(queues)
            for first in range(0, len(queues), CONCURRENT_LOOKUPS):
                chunk = queues[first : first + CONCURRENT_LOOKUPS]
                if not all(await asyncio.gather(*(self._begin(queue, limits) for queue in chunk))):
                    return
        finally:
            self._taking_up.difference_update(queues)

    async def _begin(self, queue: MessageQueue, limits: PullLimits) -> bool:
        """Begin with a queue, unless it is another member's by now; return whether its broker answered."""
        locks = self._locks
        if locks is not None and not locks.holds(queue):
            logger.info("group %s: %s is locked by another member still", self._group, queue)
            return True
        try:
            begin_offset = await self._beginning.offset(queue)
        except MQError as error:
            logger.warning("group %s cannot begin with %s now: %s", self._group, queue, error)
            return not isinstance(error, (RemotingConnectError, RemotingTimeout))
        if queue in self._taking_up:
            own = self.queues[queue] = AssignedQueue(queue, begin_offset, limits)
            self._pulling.start(own)
            logger.info("group %s: %s begins with %s at %d", self._group, self._instance.client_id, queue, begin_offset)
        elif locks is not None and queue not in self.queues:
            await locks.unlock([queue])
        return True

    def _give_up(self, own: AssignedQueue) -> asyncio.Task[None]:
        """Stop consuming a queue; return the task that leaves it to another member."""
        del self.queues[own.queue]
        own.is_given_up = True
        self._pulling.stop(own)
        self._leaving[own.queue] = own
        logger.info("group %s: %s gives up %s", self._group, self._instance.client_id, own.queue)
        return self._background.start(self._hand_over(own), f"handing over of {own.queue}")

    async def _hand_over(self, own: AssignedQueue) -> None:
        """Leave a queue to another member, in order once nothing of it is at work."""
        if self._locks is not None:
            await own.idle.wait()
        own.progress.is_dropped = True
        await self._commit([own])
        if self._locks is not None:
            await self._locks.unlock([own.queue])
        del self._leaving[own.queue]
        if self._locks is not None:
            self.rebalance_soon()  # it may have become own again meanwhile

    async def _leave(self, owned: list[AssignedQueue]) -> None:
        """Leave queues of one broker to other members."""
        await self._commit(owned)
        for own in owned:
            own.is_given_up = own.progress.is_dropped = True
        if self._locks is not None:
            await self._locks.unlock(own.queue for own in owned)

    async def _commit(self, queues: Iterable[AssignedQueue]) -> None:
        """Commit how far these are done. Without its lock a queue may be another's, who commits for it."""
        locks = self._locks
        await self._offsets.commit(*(own for own in queues if locks is None or locks.holds(own.queue)))

    async def _regain(self, own: AssignedQueue, locks: QueueLocks) -> None:
        """Ask for a queue's lock until it is held again or the queue is given up.

        Another member may have had it meanwhile: what that one committed is not consumed again.
        """
        while not own.is_given_up:
            await locks.lock([own.queue])
            if locks.holds(own.queue):
                try:
                    committed = await self._offsets.read(own.queue)
                except MQError as error:
                    logger.warning("group %s cannot go on with %s now: %s", self._group, own.queue, error)
                else:
                    if committed is not None and committed > own.progress.commit_offset:
                        self._pulling.begin_anew(own, committed)
                    self._line.come_back(own)
                    return
            await asyncio.sleep(RELOCK_PAUSE_MS / 1000)


async def _wait_for(tasks: list[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=BROKER_WAIT_MS / 1000)


def _brokers_of(route: TopicRoute) -> list[str]:
    """Return an address of each of the topic's brokers, its master's if possible, shuffled. RemotingConnectError."""
    brokers = [addresses for addresses in route.brokers.values() if addresses]
    if not brokers:
        raise RemotingConnectError(f"the route of topic {route.topic} names no broker")
    random.shuffle(brokers)
    return [addresses.get(MASTER_ID) or next(iter(addresses.values())) for addresses in brokers]
