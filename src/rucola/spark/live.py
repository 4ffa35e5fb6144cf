"""Live brokers as a source: the bounds of their queues.

The driver asks the name servers for the routes of the chosen topics and every master for the bounds of its queues,
which freezes them. `pulls` reads the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rucola.client import MessageQueue, PullConsumer
from rucola.errors import ConfigError, StoreError, TopicNotFound
from rucola.message.record import peek
from rucola.spark.options import Options
from rucola.spark.places import Place, Queue, Ranges, is_chosen, is_chosen_topic, shares
from rucola.spark.planning import CLOCK_SLACK_MS
from rucola.spark.pulls import Pulls, consumer_of, pack, record_sizes


class LiveSource:
    """What is chosen of live brokers. Each question asks them anew."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def bounds(self) -> Ranges:
        return asyncio.run(self._bounds())

    async def _bounds(self) -> Ranges:
        async with consumer_of(self._options) as consumer:

            async def ends(queue: MessageQueue) -> tuple[int, int]:
                return await consumer.min_offset(queue), await consumer.max_offset(queue)

            queues = await self._queues(consumer)
            found = await asyncio.gather(*map(ends, queues.values()))
        return dict(zip(queues, found, strict=True))

    async def _queues(self, consumer: PullConsumer) -> dict[Queue, MessageQueue]:
        """Return the chosen queues. Raises ConfigError for queues that are named and not there."""
        options = self._options
        named = set(options.topics or ()) | {topic for topic, _, _ in options.assigned or ()}
        topics = named or {topic for topic in await consumer.topics() if is_chosen_topic(options, topic)}
        found: dict[Queue, MessageQueue] = {}
        for topic in sorted(topics):
            try:
                queues = await consumer.queues(topic)
            except TopicNotFound:
                if topic in named:
                    raise
                continue  # deleted since the name server listed it
            for queue in queues:
                place = Queue(topic, queue.broker_name, queue.queue_id)
                if is_chosen(options, place):
                    found[place] = queue
        for topic, broker_name, queue_id in options.assigned or ():
            if not any(
                (place.topic, place.queue_id) == (topic, queue_id) and broker_name in (None, place.broker_name)
                for place in found
            ):
                raise ConfigError(f"queue {queue_id} of topic {topic!r} is on no broker that may be read")
        return found

    def plan(self, ranges: Ranges) -> list[Pulls]:
        return asyncio.run(self._plan(ranges)) if ranges else []

    async def _plan(self, ranges: Ranges) -> list[Pulls]:
        options = self._options
        async with consumer_of(options) as consumer:
            await asyncio.gather(*map(consumer.queues, {place.topic for place in ranges if isinstance(place, Queue)}))
            if options.starting_timestamp is not None:
                ranges = await _from_time(consumer, ranges, options.starting_timestamp - CLOCK_SLACK_MS)
            return pack(ranges, await record_sizes(consumer, ranges), options.min_partitions)

    def at_times(self, times: Mapping[Queue, int], bounds: Ranges) -> Mapping[Queue, int]:
        return asyncio.run(self._at_times(times, bounds))

    async def _at_times(self, times: Mapping[Queue, int], bounds: Ranges) -> Mapping[Queue, int]:
        """Look at messages themselves, since what a broker says is the nearest, which may be the one before."""
        async with consumer_of(self._options) as consumer:
            for topic in sorted({queue.topic for queue in times}):
                await consumer.queues(topic)

            async def first(queue: Queue) -> int:
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

    def limit(self, ranges: Ranges, count: int) -> Ranges:
        return shares(ranges, count)


async def _from_time(consumer: PullConsumer, ranges: Ranges, timestamp_ms: int) -> Ranges:
    """Return the ranges without what brokers say was stored before a time."""

    async def later(place: Place, begin: int, end: int) -> tuple[Place, tuple[int, int]]:
        assert isinstance(place, Queue)
        first = await consumer.search_offset(MessageQueue(*place), max(timestamp_ms, 0))
        return place, (max(begin, first), end)

    found = await asyncio.gather(*(later(place, begin, end) for place, (begin, end) in ranges.items()))
    return {place: (begin, end) for place, (begin, end) in found if begin < end}


async def _stored(consumer: PullConsumer, queue: Queue, queue_offset: int) -> int:
    """Return when a message was stored. Raises StoreError where it is gone."""
    result = await consumer.pull_records(MessageQueue(*queue), queue_offset, 1)
    if not result.records:
        raise StoreError(f"offset {queue_offset} of {queue} was deleted while its time was looked for; ask again")
    return peek(result.records).store_timestamp
