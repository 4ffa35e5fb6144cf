"""Messages of live brokers, pulled over the wire and decoded in columns as those of a store are.

The driver asks the name servers for the routes of the chosen topics and every master for the ends of its queues, which
freezes them. A partition is a stretch of one queue; a worker pulls it from its beginning to its end, without being a
member of the group: it takes no queue from the group's consumers and commits nothing.

Pulls bring few records each. Their bodies are put side by side until they make a batch worth decoding.

Brokers filter by the hash of tags; every row is compared as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rucola.client import MessageQueue, PullConsumer, PullStatus
from rucola.errors import ConfigError, RemoteProtocolError, RemotingError, StoreError, TopicNotFound
from rucola.message.record import FRAME, MIN_RECORD_SIZE, peek
from rucola.spark import columns
from rucola.spark.columns import Damage
from rucola.spark.options import CorruptRecords, Options
from rucola.spark.places import Place, Queue, Ranges, is_chosen, is_chosen_topic, shares
from rucola.spark.planning import CLOCK_SLACK_MS
from rucola.spark.reading import wanted

_log = logging.getLogger(__name__)

_MESSAGES_A_PULL: Final = 1024
"""Asked for at once; brokers give fewer, by limits of their own."""


@dataclass
class Pulls(InputPartition):
    """One partition: the messages of a queue from queue offset `begin` to `end`, half-open."""

    topic: str
    broker_name: str
    queue_id: int
    begin: int
    end: int

    @property
    def queue(self) -> MessageQueue:
        """The queue as clients call it."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class LiveSource:
    """What is chosen of live brokers. Each question asks them anew."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def bounds(self) -> Ranges:
        return asyncio.run(self._bounds())

    async def _bounds(self) -> Ranges:
        async with _consumer(self._options) as consumer:

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
        """There is a partition for each queue; several with minPartitions."""
        options = self._options
        if options.starting_timestamp is not None:
            ranges = asyncio.run(self._from_time(ranges, options.starting_timestamp - CLOCK_SLACK_MS))
        total = sum(end - begin for begin, end in ranges.values())
        found = []
        for place, (begin, end) in ranges.items():
            assert isinstance(place, Queue)
            count = min(max(-(-options.min_partitions * (end - begin) // max(total, 1)), 1), end - begin)
            edges = [begin + (end - begin) * number // count for number in range(count)] if count else []
            found += [Pulls(*place, first, last) for first, last in zip(edges, [*edges[1:], end], strict=False)]
        return found

    async def _from_time(self, ranges: Ranges, timestamp_ms: int) -> Ranges:
        """Return the ranges without what brokers say was stored before a time."""
        later: dict[Place, tuple[int, int]] = {}
        async with _consumer(self._options) as consumer:
            for place, (begin, end) in ranges.items():
                assert isinstance(place, Queue)
                await consumer.queues(place.topic)
                first = await consumer.search_offset(MessageQueue(*place), max(timestamp_ms, 0))
                if max(begin, first) < end:
                    later[place] = max(begin, first), end
        return later

    def at_times(self, times: Mapping[Queue, int], bounds: Ranges) -> Mapping[Queue, int]:
        return asyncio.run(self._at_times(times, bounds))

    async def _at_times(self, times: Mapping[Queue, int], bounds: Ranges) -> Mapping[Queue, int]:
        """Look at messages themselves, since what a broker says is the nearest, which may be the one before."""
        async with _consumer(self._options) as consumer:
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


def read(pulls: Pulls, chosen: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one stretch of a queue as record batches of these columns, in the order of the queue."""
    with asyncio.Runner() as runner:
        consumer = runner.run(_consumer(chosen).__aenter__())
        try:
            runner.run(_known(consumer, pulls))
            offset = pulls.begin
            while offset < pulls.end:
                records, offset = runner.run(_pull(consumer, pulls, offset, chosen))
                yield from _decode(records, pulls, chosen, names)
        finally:
            runner.run(consumer.close())


async def _stored(consumer: PullConsumer, queue: Queue, queue_offset: int) -> int:
    """Return when a message was stored. Raises StoreError where it is gone."""
    result = await consumer.pull_records(MessageQueue(*queue), queue_offset, 1)
    if not result.records:
        raise StoreError(f"offset {queue_offset} of {queue} was deleted while its time was looked for; ask again")
    return peek(result.records).store_timestamp


def _consumer(options: Options) -> PullConsumer:
    return PullConsumer(options.consumer_group, options.name_server)


async def _known(consumer: PullConsumer, pulls: Pulls) -> None:
    if pulls.queue not in await consumer.queues(pulls.topic):
        raise RemotingError(f"{pulls.queue} was readable when the query was planned, and is in no route now")


async def _pull(consumer: PullConsumer, pulls: Pulls, offset: int, chosen: Options) -> tuple[bytes, int]:
    """Pull from `offset` on until there is a batch; return its records end to end, and the offset to go on at."""
    subscription = "*" if chosen.tags is None else " || ".join(sorted(chosen.tags))
    parts: list[bytes] = []
    size = 0
    begin = offset
    while offset < pulls.end and size < columns.BATCH_SIZE and offset - begin < columns.BATCH_ROWS:
        count = min(pulls.end - offset, _MESSAGES_A_PULL)
        result = await consumer.pull_records(pulls.queue, offset, count, subscription)
        parts.append(result.records)
        size += len(result.records)
        upto = result.next_begin_offset
        if result.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG) and upto > offset:
            offset = upto
            continue
        # The broker has nothing here: what was promised was deleted from the queue's beginning, or its end was lost.
        further = min(result.min_offset, pulls.end) if result.min_offset > offset else pulls.end
        what = (
            f"offsets {offset} to {further} of {pulls.queue} are gone from the broker, "
            f"which holds {result.min_offset} to {result.max_offset}"
        )
        if chosen.fail_on_data_loss:
            raise StoreError(f"{what}; failOnDataLoss=false reads what there is")
        _log.warning("%s", what)
        offset = further
    return b"".join(parts), offset


def _decode(data: bytes, pulls: Pulls, chosen: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    positions: list[int] = []
    position = 0
    while position < len(data):
        size = FRAME.unpack_from(data, position)[0] if position + FRAME.size <= len(data) else 0
        if not MIN_RECORD_SIZE <= size <= len(data) - position:
            raise RemoteProtocolError(f"a pull from {pulls.queue} brought no whole record at byte {position}")
        positions.append(position)
        position += size
    if not positions:
        return
    places = np.array(positions, np.int64)
    sizes = np.diff(places, append=len(data))
    for cut in columns.batches(places, sizes):
        records, damages = columns.locate(data, None, places[cut], sizes[cut])
        yield from _report(damages, pulls, chosen, names)
        offsets = records.heads["queue_offset"]
        records = records.where((offsets >= pulls.begin) & (offsets < pulls.end))
        records = records.where(wanted(records, chosen, whole_log=False))
        for batch, damages in columns.decode(records, names, broker_name=pulls.broker_name):
            yield from _report(damages, pulls, chosen, names)
            if batch.num_rows:
                yield batch


def _report(damages: Sequence[Damage], pulls: Pulls, chosen: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """End the read, warn or yield rows for records that are damaged."""
    if damages and chosen.corrupt_records is CorruptRecords.COLUMN:
        yield columns.corrupt_rows(damages, names, broker_name=pulls.broker_name, with_offsets=False)
        return
    for damage in damages:
        what = f"a pull from {pulls.queue} brought a record that cannot be read: {damage.why}"
        if chosen.corrupt_records is CorruptRecords.FAIL:
            raise RemoteProtocolError(what)
        _log.warning("left out: %s", what)
