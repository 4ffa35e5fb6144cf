"""Live brokers as a source: the bounds of their queues, and brokers that are missing.

The driver asks the name servers for the routes of the chosen topics and every master for the bounds of its queues,
which freezes them. `pulls` reads the partitions.

**Missing brokers.** Name servers forget a broker as soon as its connection ends, so a route says nothing about the
queues of a broker that stopped. They are known from elsewhere: the option requiredBrokers, queues that are assigned by
broker, the offsets of a stream, the progress of an archive. A known queue that no route has is

    unavailable       if its master is not registered, or if the route still has the broker but does not let the queue be
               read (perm, readQueueNums)
    gone       if its master was registered before and after the route was asked for, and the route lacks the broker:
               the topic was deleted there

Brokers in a route that have no master or do not answer are missing as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from rucola.client import MessageQueue, PullConsumer
from rucola.client.route import TopicRoute
from rucola.errors import ConfigError, RemotingConnectError, RemotingTimeout, StoreError, TopicNotFound
from rucola.message.record import peek
from rucola.spark.source.log_splits import CLOCK_SLACK_MS
from rucola.spark.source.options import ReadOptions
from rucola.spark.source.pull_partitions import PullPartition, consumer_of, pack, record_sizes
from rucola.spark.source.source_offsets import (
    BrokerQueue,
    OffsetRanges,
    Offsets,
    Origin,
    SourceBounds,
    is_chosen,
    is_chosen_topic,
    limit_ranges,
)

_UNREGISTERED: Final = "is not registered at the name servers"
_UNREADABLE: Final = "does not let these queues be read now (see perm and readQueueNums of the topic)"


class LiveSource:
    """Queues of live brokers. Each question asks name servers and brokers afresh."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def bounds(self, known: Iterable[Origin] = ()) -> SourceBounds:
        """Return the bounds of every chosen queue, and the brokers that are missing for others that are `known`.

        Raises TopicNotFound and ConfigError for topics and queues that are named and do not exist.
        """
        return asyncio.run(self._bounds({origin for origin in known if isinstance(origin, BrokerQueue)}))

    async def _bounds(self, known: set[BrokerQueue]) -> SourceBounds:
        options = self._options
        assigned = {
            BrokerQueue(topic, name, queue_id) for topic, name, queue_id in options.assigned or () if name is not None
        }
        async with consumer_of(options) as consumer:
            registered = await consumer.registered_masters()
            routes = await self._routes(consumer, known)
            listed = {_queue_key(queue) for route in routes.values() for queue in route.read_queues}
            # The configuration of an ordered topic names its brokers, also those that are not registered.
            ordered = {_queue_key(queue) for route in routes.values() for queue in route.write_queues}
            ordered = {queue for queue in ordered if queue.broker_name not in routes[queue.topic].brokers}
            chosen = sorted(queue for queue in listed if is_chosen(options, queue))
            ranges, missing = await _ask_ends(consumer, chosen)
            lacking = {queue for queue in (known | assigned | ordered) - listed if is_chosen(options, queue)}
            if lacking:
                registered &= await consumer.registered_masters()
        unavailable: set[Origin] = {queue for queue in chosen if queue not in ranges}
        for name in options.required_brokers - registered - {origin.broker_name for origin in ranges}:
            missing.setdefault(name, _UNREGISTERED)
        for queue in lacking:
            route = routes.get(queue.topic)
            if queue.broker_name not in registered:
                missing.setdefault(queue.broker_name, _UNREGISTERED)
                unavailable.add(queue)
            elif queue in known and route is not None and queue.broker_name in route.brokers:
                missing.setdefault(queue.broker_name, _UNREADABLE)
                unavailable.add(queue)
        if not missing:
            self._check_named(ranges, routes)
        return SourceBounds(ranges, missing, frozenset(unavailable))

    async def _routes(self, consumer: PullConsumer, known: Iterable[BrokerQueue]) -> dict[str, TopicRoute]:
        """Return the routes of all topics that are chosen or have a known queue, as far as they exist."""
        options = self._options
        topics = self._named_topics() or {topic for topic in await consumer.topics() if is_chosen_topic(options, topic)}
        topics |= {queue.topic for queue in known}

        async def route(topic: str) -> TopicRoute | None:
            try:
                await consumer.queues(topic)
            except TopicNotFound:
                return None
            return consumer.instance.routes.known(topic)

        found = await asyncio.gather(*map(route, sorted(topics)))
        return {each.topic: each for each in found if each is not None}

    def _named_topics(self) -> set[str]:
        return set(self._options.topics or ()) | {topic for topic, _, _ in self._options.assigned or ()}

    def _check_named(self, origins: Collection[Origin], routes: Mapping[str, TopicRoute]) -> None:
        """Raise TopicNotFound or ConfigError for topics and queues that the options name and no broker has."""
        for topic in sorted(self._named_topics() - routes.keys()):
            raise TopicNotFound(
                f"no name server knows a route for topic {topic}: start the brokers that have it, "
                f"or create it with `rucola admin updateTopic`"
            )
        found: set[tuple[str, str | None, int]] = set()
        for origin in origins:
            assert isinstance(origin, BrokerQueue)
            found |= {(*origin,), (origin.topic, None, origin.queue_id)}
        for topic, name, queue_id in sorted((self._options.assigned or set()) - found, key=str):
            why = "on no broker that may be read" if name is None else f"not on {name}, or may not be read there"
            raise ConfigError(f"queue {queue_id} of topic {topic!r} is {why}")

    def plan(self, ranges: OffsetRanges) -> list[PullPartition]:
        return asyncio.run(self._plan(ranges)) if ranges else []

    async def _plan(self, ranges: OffsetRanges) -> list[PullPartition]:
        options = self._options
        async with consumer_of(options) as consumer:
            await asyncio.gather(
                *map(consumer.queues, {origin.topic for origin in ranges if isinstance(origin, BrokerQueue)})
            )
            if options.starting_timestamp is not None:
                ranges = await _from_time(consumer, ranges, options.starting_timestamp - CLOCK_SLACK_MS)
            return pack(ranges, await record_sizes(consumer, ranges), options.min_partitions)

    def at_times(self, times: Mapping[BrokerQueue, int], bounds: OffsetRanges) -> Mapping[BrokerQueue, int]:
        return asyncio.run(self._at_times(times, bounds))

    async def _at_times(self, times: Mapping[BrokerQueue, int], bounds: OffsetRanges) -> Mapping[BrokerQueue, int]:
        """Look at messages themselves, since what a broker says is the nearest, which may be the one before."""
        async with consumer_of(self._options) as consumer:
            for topic in sorted({queue.topic for queue in times}):
                await consumer.queues(topic)

            async def first(queue: BrokerQueue) -> int:
                begin, end = bounds[queue]
                while begin < end:
                    middle = (begin + end) // 2
                    if await _stored(consumer, queue, middle) < times[queue]:
                        begin = middle + 1
                    else:
                        end = middle
                return begin

            found = await asyncio.gather(*map(first, times))
        return dict(zip(times, found, strict=True))

    def limit(self, ranges: OffsetRanges, count: int) -> OffsetRanges:
        return limit_ranges(ranges, count)

    def count(self, ranges: OffsetRanges, most: int) -> int:
        return sum(end - begin for begin, end in ranges.values())


def _queue_key(queue: MessageQueue) -> BrokerQueue:
    return BrokerQueue(queue.topic, queue.broker_name, queue.queue_id)


async def _ask_ends(
    consumer: PullConsumer, queues: Collection[BrokerQueue]
) -> tuple[dict[Origin, tuple[int, int]], dict[str, str]]:
    """Return the bounds of queues, and of brokers that do not answer the reason by name."""
    missing: dict[str, str] = {}

    async def ends(queue: BrokerQueue) -> tuple[int, int] | None:
        try:
            return await consumer.min_offset(MessageQueue(*queue)), await consumer.max_offset(MessageQueue(*queue))
        except (RemotingConnectError, RemotingTimeout) as error:
            missing.setdefault(queue.broker_name, f"does not answer ({error})")
            return None

    found = await asyncio.gather(*map(ends, queues))
    # A broker that went while it was asked has answered for some queues; a batch with these could not be read.
    answered: dict[Origin, tuple[int, int]] = {
        queue: each
        for queue, each in zip(queues, found, strict=True)
        if each is not None and queue.broker_name not in missing
    }
    return answered, missing


async def _from_time(consumer: PullConsumer, ranges: OffsetRanges, timestamp_ms: int) -> OffsetRanges:
    """Return the ranges without what brokers say was stored before a time."""

    async def later(origin: Origin, begin: int, end: int) -> tuple[Origin, tuple[int, int]]:
        assert isinstance(origin, BrokerQueue)
        first = await consumer.search_offset(MessageQueue(*origin), max(timestamp_ms, 0))
        return origin, (max(begin, first), end)

    found = await asyncio.gather(*(later(origin, begin, end) for origin, (begin, end) in ranges.items()))
    return {origin: (begin, end) for origin, (begin, end) in found if begin < end}


async def _stored(consumer: PullConsumer, queue: BrokerQueue, queue_offset: int) -> int:
    """Return when a message was stored. Raises StoreError if it is gone."""
    result = await consumer.pull_records(MessageQueue(*queue), queue_offset, 1)
    if not result.records:
        raise StoreError(f"offset {queue_offset} of {queue} was deleted while its time was looked for; ask again")
    return peek(result.records).store_timestamp


def commit(options: ReadOptions, offsets: Offsets) -> None:
    """Commit queue offsets as those of the consumer group. Raises RemotingError if a broker did not note them."""

    async def run() -> None:
        async with consumer_of(options) as consumer:
            queues = {origin: offset for origin, offset in offsets.items() if isinstance(origin, BrokerQueue)}
            await asyncio.gather(*map(consumer.queues, {queue.topic for queue in queues}))
            await asyncio.gather(*(consumer.commit(MessageQueue(*queue), offset) for queue, offset in queues.items()))

    asyncio.run(run())
