"""Live brokers as a message source: queue bounds, missing brokers, offsets at times, and partitions.

The bounds that the masters return freeze the end of a batch.

**Missing brokers.** A name server forgets a broker as soon as its connection closes, so a route contains no queues of a
stopped broker. They are known from requiredBrokers, assigned queues, a stream's offsets, or an archive's progress. A
known queue that is in no route is

    unavailable  if its master is not registered, or if the route still has the broker but does not let the queue be
                 read (perm, readQueueNums). If the queue is in the route for neither reads nor writes, and was read to
                 its end, the broker does not count as missing: the topic has fewer queues now
    deleted      if its master was registered before and after the route was requested, and the route does not have the
                 broker. Comparing both times excludes a broker that registered in between.

Brokers in a route that have no master or do not answer are missing as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, Self, TypeVar

from rucola.client import MessageQueue, PullConsumer
from rucola.client.route import TopicRoute
from rucola.errors import ConfigError, RemotingConnectError, RemotingTimeout, StoreError, TopicNotFound
from rucola.message.record import peek
from rucola.spark.source.log_splits import CLOCK_SLACK_MS
from rucola.spark.source.options import ReadOptions
from rucola.spark.source.pull_partitions import PullPartition, consumer_of, pack, record_sizes
from rucola.spark.source.source_offsets import (
    NO_OFFSETS,
    BrokerQueue,
    OffsetRanges,
    Offsets,
    Origin,
    SourceBounds,
    is_chosen,
    is_chosen_topic,
    limit_ranges,
)

T = TypeVar("T")

_UNREGISTERED: Final = "is not registered at the name servers"
_UNREADABLE: Final = "does not let these queues be read now (see perm and readQueueNums of the topic)"


class LiveSource:
    """The queues of live brokers that the options choose.

    Every call opens and closes a client, except in a `with` block, where they share one.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._shared: tuple[asyncio.Runner, PullConsumer] | None = None

    def __enter__(self) -> Self:
        runner, consumer = asyncio.Runner(), consumer_of(self._options)
        self._shared = runner, consumer
        return self

    def __exit__(self, *_: object) -> None:
        assert self._shared is not None
        runner, consumer = self._shared
        self._shared = None
        with runner:
            runner.run(consumer.close())

    def _run(self, ask: Callable[[PullConsumer], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with consumer_of(self._options) as consumer:
                return await ask(consumer)

        async def run_shared(consumer: PullConsumer) -> T:
            await consumer.open()
            return await ask(consumer)

        if self._shared is None:
            return asyncio.run(run())
        runner, consumer = self._shared
        return runner.run(run_shared(consumer))

    def bounds(self, known: Offsets = NO_OFFSETS) -> SourceBounds:
        """Return bounds of chosen queues, and missing brokers of `known` ones. Raises TopicNotFound or ConfigError."""
        queues = {origin: offset for origin, offset in known.items() if isinstance(origin, BrokerQueue)}
        return self._run(partial(self._bounds, queues))

    async def _bounds(self, known: Mapping[BrokerQueue, int], consumer: PullConsumer) -> SourceBounds:
        options = self._options
        assigned = {
            BrokerQueue(topic, name, queue_id) for topic, name, queue_id in options.assigned or () if name is not None
        }
        # 1. Ask the name servers: registered masters first, then routes.
        registered = await consumer.registered_masters()
        routes = await self._routes(consumer, known)
        listed = {_queue_key(queue) for route in routes.values() for queue in route.read_queues}
        # The configuration of an ordered topic names its brokers, including those that are not registered.
        writable = {_queue_key(queue) for route in routes.values() for queue in route.write_queues}
        ordered = {queue for queue in writable if queue.broker_name not in routes[queue.topic].brokers}
        # 2. Ask the masters of the chosen queues for bounds.
        chosen = sorted(queue for queue in listed if is_chosen(options, queue))
        ranges, missing = await _queue_bounds(consumer, chosen)
        # 3. Find expected queues that are in no route. Masters count as registered if they were before and after.
        absent = {queue for queue in (known.keys() | assigned | ordered) - listed if is_chosen(options, queue)}
        if absent:
            registered &= await consumer.registered_masters()
        unreadable = {queue for queue in absent & known.keys() if _has_broker(routes, queue)}
        ends, _ = await _queue_bounds(consumer, sorted(unreadable - writable))
        # 4. Distinguish missing brokers from deleted queues.
        unavailable: set[Origin] = {queue for queue in chosen if queue not in ranges}
        for name in options.required_brokers - registered - {origin.broker_name for origin in ranges}:
            missing.setdefault(name, _UNREGISTERED)
        for queue in absent:
            if queue.broker_name not in registered:
                missing.setdefault(queue.broker_name, _UNREGISTERED)
                unavailable.add(queue)
            elif queue in unreadable:
                end = ends[queue][1] if queue in ends else None
                if end is None or known[queue] < end:
                    missing.setdefault(queue.broker_name, _UNREADABLE)
                if end is None or known[queue] <= end:  # otherwise the topic was deleted and created again
                    unavailable.add(queue)
        if not missing:
            self._check_named(ranges, routes)
        return SourceBounds(ranges, missing, frozenset(unavailable))

    async def _routes(self, consumer: PullConsumer, known: Iterable[BrokerQueue]) -> dict[str, TopicRoute]:
        options = self._options
        topics = set(options.named_topics) or {
            topic for topic in await consumer.topics() if is_chosen_topic(options, topic)
        }
        topics |= {queue.topic for queue in known}

        async def route(topic: str) -> TopicRoute | None:
            try:
                return await consumer.instance.routes.refresh(topic)
            except TopicNotFound:
                return None

        found = await asyncio.gather(*map(route, sorted(topics)))
        return {each.topic: each for each in found if each is not None}

    def _check_named(self, origins: Collection[Origin], routes: Mapping[str, TopicRoute]) -> None:
        for topic in sorted(self._options.named_topics - routes.keys() - self._options.archived_topics):
            raise TopicNotFound(
                f"no name server knows a route for topic {topic}: start the brokers that have it, "
                f"or create it with `rucola admin updateTopic`"
            )
        found: set[tuple[str, str | None, int]] = set()
        for origin in origins:
            assert isinstance(origin, BrokerQueue)
            found |= {(*origin,), (origin.topic, None, origin.queue_id)}
        for topic, name, queue_id in sorted((self._options.assigned or set()) - found, key=str):
            if topic in self._options.archived_topics:
                continue
            why = "on no readable broker" if name is None else f"not on {name}, or not readable there"
            raise ConfigError(f"queue {queue_id} of topic {topic!r} is {why}")

    def plan(self, ranges: OffsetRanges) -> list[PullPartition]:
        """Return partitions of nearly equal size, each of one broker."""
        return self._run(partial(self._plan, ranges)) if ranges else []

    async def _plan(self, ranges: OffsetRanges, consumer: PullConsumer) -> list[PullPartition]:
        options = self._options
        await asyncio.gather(
            *map(consumer.queues, {origin.topic for origin in ranges if isinstance(origin, BrokerQueue)})
        )
        if options.starting_timestamp is not None:
            ranges = await _from_time(consumer, ranges, options.starting_timestamp - CLOCK_SLACK_MS)
        return pack(ranges, await record_sizes(consumer, ranges), options.min_partitions)

    def at_times(self, times: Mapping[BrokerQueue, int], bounds: OffsetRanges) -> Mapping[BrokerQueue, int]:
        """Return by queue the offset of the first message stored at a time or later."""
        return self._run(partial(self._at_times, times, bounds))

    async def _at_times(
        self, times: Mapping[BrokerQueue, int], bounds: OffsetRanges, consumer: PullConsumer
    ) -> Mapping[BrokerQueue, int]:
        """Find offsets by a binary search: a broker's own search can return the message before the time."""
        for topic in sorted({queue.topic for queue in times}):
            await consumer.queues(topic)

        async def first_stored(queue: BrokerQueue) -> int:
            begin, end = bounds[queue]
            while begin < end:
                middle = (begin + end) // 2
                if await _store_time(consumer, queue, middle) < times[queue]:
                    begin = middle + 1
                else:
                    end = middle
            return begin

        found = await asyncio.gather(*map(first_stored, times))
        return dict(zip(times, found, strict=True))

    def store_times(self, offsets: Mapping[BrokerQueue, int]) -> Mapping[BrokerQueue, int | None]:
        """Return by queue the store time of the message at an offset, None if there is none."""

        async def ask(consumer: PullConsumer) -> Mapping[BrokerQueue, int | None]:
            await asyncio.gather(*map(consumer.queues, {queue.topic for queue in offsets}))
            times = [_store_time_at(consumer, queue, offset) for queue, offset in offsets.items()]
            return dict(zip(offsets, await asyncio.gather(*times), strict=True))

        return self._run(ask) if offsets else {}

    def limit(self, ranges: OffsetRanges, count: int) -> OffsetRanges:
        """Return the first `count` messages of the ranges."""
        return limit_ranges(ranges, count)

    def count(self, ranges: OffsetRanges, most: int) -> int:
        """Return the number of messages in the ranges."""
        return sum(end - begin for begin, end in ranges.values())


def _has_broker(routes: Mapping[str, TopicRoute], queue: BrokerQueue) -> bool:
    route = routes.get(queue.topic)
    return route is not None and queue.broker_name in route.brokers


def _queue_key(queue: MessageQueue) -> BrokerQueue:
    return BrokerQueue(queue.topic, queue.broker_name, queue.queue_id)


async def _queue_bounds(
    consumer: PullConsumer, queues: Collection[BrokerQueue]
) -> tuple[dict[Origin, tuple[int, int]], dict[str, str]]:
    missing: dict[str, str] = {}

    async def ends(queue: BrokerQueue) -> tuple[int, int] | None:
        try:
            return await consumer.min_offset(MessageQueue(*queue)), await consumer.max_offset(MessageQueue(*queue))
        except (RemotingConnectError, RemotingTimeout) as error:
            missing.setdefault(queue.broker_name, f"does not answer ({error})")
            return None

    found = await asyncio.gather(*map(ends, queues))
    # A broker that stopped in between has answered for some queues; a batch with these could not be read.
    answered: dict[Origin, tuple[int, int]] = {
        queue: each
        for queue, each in zip(queues, found, strict=True)
        if each is not None and queue.broker_name not in missing
    }
    return answered, missing


async def _from_time(consumer: PullConsumer, ranges: OffsetRanges, timestamp_ms: int) -> OffsetRanges:
    """Return the ranges without messages that, by the brokers' search, were stored before a time."""

    async def later(origin: Origin, begin: int, end: int) -> tuple[Origin, tuple[int, int]]:
        assert isinstance(origin, BrokerQueue)
        first = await consumer.search_offset(MessageQueue(*origin), max(timestamp_ms, 0))
        return origin, (max(begin, first), end)

    found = await asyncio.gather(*(later(origin, begin, end) for origin, (begin, end) in ranges.items()))
    return {origin: (begin, end) for origin, (begin, end) in found if begin < end}


async def _store_time(consumer: PullConsumer, queue: BrokerQueue, queue_offset: int) -> int:
    if (found := await _store_time_at(consumer, queue, queue_offset)) is None:
        raise StoreError(f"offset {queue_offset} of {queue} was deleted while its store time was read; try again")
    return found


async def _store_time_at(consumer: PullConsumer, queue: BrokerQueue, queue_offset: int) -> int | None:
    result = await consumer.pull_records(MessageQueue(*queue), queue_offset, 1)
    return peek(result.records).store_timestamp if result.records else None


def commit_offsets(options: ReadOptions, offsets: Offsets) -> None:
    """Commit queue offsets of the consumer group to brokers. Raises RemotingError if a broker fails."""

    async def run() -> None:
        async with consumer_of(options) as consumer:
            queues = {origin: offset for origin, offset in offsets.items() if isinstance(origin, BrokerQueue)}
            await asyncio.gather(*map(consumer.queues, {queue.topic for queue in queues}))
            await asyncio.gather(*(consumer.commit(MessageQueue(*queue), offset) for queue, offset in queues.items()))

    asyncio.run(run())
