"""Partitions of live brokers: packing of queues, and pulling and decoding by workers.

Workers pull without joining the consumer group: they own no queue and commit nothing.

A task costs some 60 ms, so a partition holds ranges of many queues of one broker: its queues are put in a row, weighted
by message count times sampled record size, and cut into parts of equal weight. Pulls of several queues are in
flight, so that their messages alternate. The order within a queue is preserved.

Brokers filter by tags code; the tags themselves are compared here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rucola.client import MessageQueue, PullConsumer, PullStatus
from rucola.errors import RemoteProtocolError, RemotingConnectError, RemotingError, RemotingTimeout, StoreError
from rucola.message.record import FRAME, MIN_RECORD_SIZE
from rucola.spark.source import record_layout
from rucola.spark.source.array_conversions import Array
from rucola.spark.source.log_splits import QueueRange, partition_count
from rucola.spark.source.option_values import parse_tags
from rucola.spark.source.options import ReadOptions, connection_of
from rucola.spark.source.record_decoder import RecordDecoder
from rucola.spark.source.record_layout import DamagedRecord, Records
from rucola.spark.source.source_offsets import BrokerQueue, OffsetRanges

_log = logging.getLogger(__name__)

_MESSAGES_PER_PULL: Final = 1024
"""Brokers return fewer, by their own limits."""

_IN_FLIGHT: Final = 8
"""Pulls in flight. Each brings at most what the broker allows, 256 KiB by default, or one message."""

_SAMPLES: Final = 8
_USUAL_SIZE: Final = 1024


@dataclass
class PullPartition(InputPartition):
    """Ranges of queues of one broker. Pickled to a worker."""

    broker_name: str
    ranges: tuple[QueueRange, ...]


def consumer_of(options: ReadOptions) -> PullConsumer:
    """Return a new consumer for these options, not opened."""
    return PullConsumer(options.consumer_group, connection_of(options))


async def record_sizes(consumer: PullConsumer, ranges: OffsetRanges) -> dict[tuple[str, str], int]:
    """Estimate record sizes by (topic, broker name), from one message of each of the `_SAMPLES` largest topics."""
    counts: dict[tuple[str, str], int] = {}
    largest: dict[tuple[str, str], tuple[int, BrokerQueue, int]] = {}
    for queue, (begin, end) in ranges.items():
        assert isinstance(queue, BrokerQueue)
        key = queue.topic, queue.broker_name
        counts[key] = counts.get(key, 0) + end - begin
        largest[key] = max(largest.get(key, (0, queue, begin)), (end - begin, queue, (begin + end) // 2))

    async def sample(key: tuple[str, str]) -> int:
        _, queue, offset = largest[key]
        try:
            return len((await consumer.pull_records(MessageQueue(*queue), offset, 1)).records)
        except RemotingError:
            return 0  # if the failure persists, the task that reads the queue reports it

    most = sorted(counts, key=lambda key: -counts[key])[:_SAMPLES]
    sizes = {key: size for key, size in zip(most, await asyncio.gather(*map(sample, most)), strict=True) if size}
    usual = sum(sizes.values()) // len(sizes) if sizes else _USUAL_SIZE
    return {key: sizes.get(key, usual) for key in counts}


def pack(ranges: OffsetRanges, sizes: Mapping[tuple[str, str], int], min_partitions: int) -> list[PullPartition]:
    """Pack ranges into partitions of nearly equal bytes, at least `min_partitions` if there are enough messages."""
    by_broker: dict[str, list[QueueRange]] = {}
    for queue, (begin, end) in sorted(ranges.items()):
        assert isinstance(queue, BrokerQueue)
        if begin < end:
            by_broker.setdefault(queue.broker_name, []).append(QueueRange(queue.topic, queue.queue_id, begin, end))
    counts = {name: sum(each.end - each.begin for each in queues) for name, queues in by_broker.items()}
    totals = {
        name: sum((each.end - each.begin) * sizes[each.topic, name] for each in queues)
        for name, queues in by_broker.items()
    }
    total = sum(totals.values())
    count = max(partition_count(total), min_partitions)
    partitions = []
    for name, queues in sorted(by_broker.items()):
        # A broker's number of partitions follows its bytes, rounded up, but no partition is below one message.
        # 8 partitions for 70 and 30 MB: 5.6 and 2.4 become 6 and 3.
        share = min(-(-count * totals[name] // total), counts[name])
        parts = _cut(queues, [sizes[each.topic, name] for each in queues], share)
        partitions += [PullPartition(name, tuple(part)) for part in parts if part]
    return partitions


def _cut(ranges: Sequence[QueueRange], sizes: Sequence[int], count: int) -> list[list[QueueRange]]:
    """Cut a row of ranges into `count` parts of equal weight, which can be empty: no message is divided."""
    total = sum((each.end - each.begin) * size for each, size in zip(ranges, sizes, strict=True))
    parts: list[list[QueueRange]] = [[]]
    passed = 0
    for each, size in zip(ranges, sizes, strict=True):
        begin = each.begin
        upto = passed + (each.end - each.begin) * size
        # `edge` is the weight at which the current part ends; it may be inside this range several times.
        while len(parts) < count and (edge := total * len(parts) // count) < upto:
            at = each.begin + (edge - passed) // size
            if begin < at:
                parts[-1].append(each._replace(begin=begin, end=at))
                begin = at
            parts.append([])
        parts[-1].append(each._replace(begin=begin))
        passed = upto
    return parts


class _PulledRecords(NamedTuple):
    """Whole records of one pull; fewer than the offsets `begin` to `end` if the broker filtered by tags code."""

    range: QueueRange
    records: bytes
    begin: int
    end: int


def read(partition: PullPartition, chosen: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield a partition's selected messages in each queue's order; the event loop is idle between batches."""
    with asyncio.Runner() as runner:
        consumer = consumer_of(chosen)
        decoder = RecordDecoder(chosen, names, partition.broker_name, partition.broker_name, whole_log=False)
        batches = _batches(consumer, partition, chosen)

        async def following() -> list[_PulledRecords] | None:
            return await anext(batches, None)

        async def close() -> None:
            await batches.aclose()
            await consumer.close()

        try:
            while (pulled := runner.run(following())) is not None:
                yield from _decode(pulled, partition.broker_name, decoder)
            yield from decoder.close()
        finally:
            runner.run(close())


async def _batches(
    consumer: PullConsumer, partition: PullPartition, chosen: ReadOptions
) -> AsyncGenerator[list[_PulledRecords], None]:
    await consumer.open()
    await _check_routes(consumer, partition)
    pulled: list[_PulledRecords] = []
    size = rows = 0
    async with aclosing(_pull_ranges(consumer, partition, chosen)) as found:
        async for each in found:
            pulled.append(each)
            size += len(each.records)
            rows += each.end - each.begin
            if size >= record_layout.BATCH_SIZE or rows >= record_layout.BATCH_ROWS:
                yield pulled
                pulled, size, rows = [], 0, 0
    if pulled:
        yield pulled


async def _check_routes(consumer: PullConsumer, partition: PullPartition) -> None:
    """Raise RemotingError if a queue of the partition is no longer in the topic's route."""
    topics = sorted({each.topic for each in partition.ranges})
    routes = dict(zip(topics, await asyncio.gather(*map(consumer.queues, topics)), strict=True))
    readable = {topic: set(queues) for topic, queues in routes.items()}
    for each in partition.ranges:
        if MessageQueue(each.topic, partition.broker_name, each.queue_id) not in readable[each.topic]:
            queue = BrokerQueue(each.topic, partition.broker_name, each.queue_id)
            raise RemotingError(
                f"{queue} was readable when the query was planned, and is in no route now", queue.broker_name
            )


async def _pull_ranges(
    consumer: PullConsumer, partition: PullPartition, chosen: ReadOptions
) -> AsyncGenerator[_PulledRecords, None]:
    ranges = iter(partition.ranges)
    ahead: deque[asyncio.Task[_PulledRecords]] = deque()
    try:
        while True:
            for each in islice(ranges, _IN_FLIGHT - len(ahead)):
                ahead.append(asyncio.create_task(_pull(consumer, partition.broker_name, each, each.begin, chosen)))
            if not ahead:
                return
            pulled = await ahead.popleft()
            if pulled.end < pulled.range.end:
                again = _pull(consumer, partition.broker_name, pulled.range, pulled.end, chosen)
                ahead.append(asyncio.create_task(again))
            yield pulled
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)


async def _pull(
    consumer: PullConsumer, broker_name: str, wanted: QueueRange, offset: int, chosen: ReadOptions
) -> _PulledRecords:
    """Pull once from `offset` on. Raises StoreError if messages were deleted, unless loss is allowed."""
    queue = BrokerQueue(wanted.topic, broker_name, wanted.queue_id)
    count = min(wanted.end - offset, _MESSAGES_PER_PULL)
    try:
        result = await consumer.pull_records(MessageQueue(*queue), offset, count, _subscription(chosen))
    except (RemotingConnectError, RemotingTimeout) as error:
        raise RemotingConnectError(f"{queue} cannot be pulled: {error}", queue.broker_name) from error
    upto = result.next_begin_offset
    if result.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG) and upto > offset:
        return _PulledRecords(wanted, result.records, offset, upto)
    # The broker does not have the offset: the oldest messages were deleted, or the end of the queue was lost.
    further = min(result.min_offset, wanted.end) if result.min_offset > offset else wanted.end
    what = (
        f"offsets {offset} to {further} of {queue} are gone from the broker, "
        f"which holds {result.min_offset} to {result.max_offset}"
    )
    if chosen.fail_on_data_loss:
        raise StoreError(f"{what}; failOnDataLoss=false reads what there is")
    _log.warning("%s", what)
    return _PulledRecords(wanted, result.records, offset, further)


def _subscription(chosen: ReadOptions) -> str:
    """Return the subscription by which the broker filters; `*` if none can express the chosen tags."""
    if chosen.tags is None:
        return "*"
    subscription = " || ".join(sorted(chosen.tags))
    try:
        return subscription if parse_tags(subscription) == chosen.tags else "*"
    except ValueError:
        return "*"


def _decode(pulled: Sequence[_PulledRecords], broker_name: str, decoder: RecordDecoder) -> Iterator[pa.RecordBatch]:
    positions, sizes, counts = _positions(pulled, broker_name)
    begins = np.repeat([each.range.begin for each in pulled], counts)
    ends = np.repeat([each.range.end for each in pulled], counts)

    def within(records: Records) -> tuple[Records, list[DamagedRecord]]:
        # A broker that filters may return messages from after the range.
        # For example, a pull of range 5:10 that asked for 5 messages, of which the filter left out 2, may end with 11.
        row = np.searchsorted(positions, records.layout["begin"])
        offsets = records.heads["queue_offset"]
        return records.where((offsets >= begins[row]) & (offsets < ends[row])), []

    def error(damaged: DamagedRecord) -> RemoteProtocolError:
        return RemoteProtocolError(f"a pull from {broker_name} returned a record that cannot be read: {damaged.why}")

    data = b"".join([each.records for each in pulled])
    return decoder.decode(data, None, positions, sizes, within, error)


def _positions(pulled: Sequence[_PulledRecords], broker_name: str) -> tuple[Array, Array, list[int]]:
    """Return positions, sizes and counts of records in these pulls; RemoteProtocolError for a partial record."""
    positions: list[int] = []
    counts: list[int] = []
    before, unpack_from = 0, FRAME.unpack_from
    for each in pulled:
        data, position, first = each.records, 0, len(positions)
        end = len(data)
        while position < end:
            size, _ = unpack_from(data, position) if position + FRAME.size <= end else (0, 0)
            if not MIN_RECORD_SIZE <= size <= end - position:
                queue = BrokerQueue(each.range.topic, broker_name, each.range.queue_id)
                raise RemoteProtocolError(f"a pull from {queue} returned no whole record at byte {position}")
            positions.append(before + position)
            position += size
        before += len(data)
        counts.append(len(positions) - first)
    found = np.array(positions, np.int64)
    return found, np.diff(found, append=before), counts
