"""Partitions of live brokers: which queues a task reads, and how a worker pulls and decodes them.

A worker pulls without being a member of the group: it takes no queue from the group's consumers and commits nothing.

**Packing.** A task costs Spark some thirty milliseconds, and its client about as much, so a partition holds ranges of
many queues, all of one broker. The queues of a broker in a row, each weighted by its messages times the size of a
sample, are cut into parts of equal weight; a queue that crosses a cut is split. 256 queues of four messages each are
one task instead of 256 (0.3 s of CPU instead of 12).

**PullPartition** bring few records each. Of the queues to come, the first pulls are in flight while a queue is read; records
are put side by side until they make a batch worth decoding. Within a queue they stay in order.

Brokers filter by the hash of tags; every row is compared as well.
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
from rucola.spark.source import columns, record_layout
from rucola.spark.source.arrays import Array
from rucola.spark.source.log_reader import selection_mask
from rucola.spark.source.log_splits import QueueRange, partition_count
from rucola.spark.source.options import CorruptRecords, ReadOptions, parse_tags
from rucola.spark.source.record_layout import DamagedRecord
from rucola.spark.source.source_offsets import BrokerQueue, OffsetRanges

_log = logging.getLogger(__name__)

_MESSAGES_A_PULL: Final = 1024
"""Asked for at once; brokers give fewer, by limits of their own."""

_IN_FLIGHT: Final = 8
"""PullPartition under way at once. Each brings at most what the broker allows, 256 KiB by default, or one message."""

_SAMPLES: Final = 8
_USUAL_SIZE: Final = 1024


@dataclass
class PullPartition(InputPartition):
    """One partition: ranges of queues on one broker, read one behind the other."""

    broker_name: str
    ranges: tuple[QueueRange, ...]


def consumer_of(options: ReadOptions) -> PullConsumer:
    """Return the client with which options read."""
    return PullConsumer(options.consumer_group, options.name_server)


async def record_sizes(consumer: PullConsumer, ranges: OffsetRanges) -> dict[tuple[str, str], int]:
    """Estimate the size of a record by topic and broker name, from one sample of each of the largest."""
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
            return 0  # met again when the partition is read, if it is still there then

    most = sorted(counts, key=lambda key: -counts[key])[:_SAMPLES]
    sizes = {key: size for key, size in zip(most, await asyncio.gather(*map(sample, most)), strict=True) if size}
    usual = sum(sizes.values()) // len(sizes) if sizes else _USUAL_SIZE
    return {key: sizes.get(key, usual) for key in counts}


def pack(ranges: OffsetRanges, sizes: Mapping[tuple[str, str], int], min_partitions: int) -> list[PullPartition]:
    """Return partitions of near-equal size, at least `min_partitions` if there are as many messages.

    `sizes` are those of a record by topic and broker name. Queues are in the order of their names.
    """
    by_broker: dict[str, list[QueueRange]] = {}
    for queue, (begin, end) in sorted(ranges.items()):
        assert isinstance(queue, BrokerQueue)
        if begin < end:
            by_broker.setdefault(queue.broker_name, []).append(QueueRange(queue.topic, queue.queue_id, begin, end))
    counts = {name: sum(each.end - each.begin for each in on_it) for name, on_it in by_broker.items()}
    totals = {
        name: sum((each.end - each.begin) * sizes[each.topic, name] for each in on_it)
        for name, on_it in by_broker.items()
    }
    total = sum(totals.values())
    count = max(partition_count(total), min_partitions)
    found = []
    for name, on_it in sorted(by_broker.items()):
        share = min(-(-count * totals[name] // total), counts[name])
        parts = _cut(on_it, [sizes[each.topic, name] for each in on_it], share)
        found += [PullPartition(name, tuple(part)) for part in parts if part]
    return found


def _cut(ranges: Sequence[QueueRange], sizes: Sequence[int], count: int) -> list[list[QueueRange]]:
    """Cut a row of ranges into `count` parts of equal weight; few may be empty, since no message is cut."""
    total = sum((each.end - each.begin) * size for each, size in zip(ranges, sizes, strict=True))
    parts: list[list[QueueRange]] = [[]]
    passed = 0
    for each, size in zip(ranges, sizes, strict=True):
        begin = each.begin
        upto = passed + (each.end - each.begin) * size
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
    """Whole records end to end that one pull brought of a range, from queue offset `begin` to `end`."""

    range: QueueRange
    records: bytes
    begin: int
    end: int


def read(partition: PullPartition, chosen: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition as record batches of these columns, in the order of each queue."""
    with asyncio.Runner() as runner:
        consumer = consumer_of(chosen)
        batches = _batches(consumer, partition, chosen)

        async def following() -> list[_PulledRecords] | None:
            return await anext(batches, None)

        async def close() -> None:
            await batches.aclose()
            await consumer.close()

        try:
            while (chunks := runner.run(following())) is not None:
                yield from _decode(chunks, partition.broker_name, chosen, names)
        finally:
            runner.run(close())


async def _batches(
    consumer: PullConsumer, partition: PullPartition, chosen: ReadOptions
) -> AsyncGenerator[list[_PulledRecords], None]:
    """Yield the chunks of several partition, enough to be worth decoding together."""
    await consumer.open()
    await _check_routes(consumer, partition)
    chunks: list[_PulledRecords] = []
    size = rows = 0
    async with aclosing(_chunks(consumer, partition, chosen)) as found:
        async for chunk in found:
            chunks.append(chunk)
            size += len(chunk.records)
            rows += chunk.end - chunk.begin
            if size >= record_layout.BATCH_SIZE or rows >= record_layout.BATCH_ROWS:
                yield chunks
                chunks, size, rows = [], 0, 0
    if chunks:
        yield chunks


async def _check_routes(consumer: PullConsumer, partition: PullPartition) -> None:
    topics = sorted({each.topic for each in partition.ranges})
    routes = dict(zip(topics, await asyncio.gather(*map(consumer.queues, topics)), strict=True))
    readable = {topic: set(queues) for topic, queues in routes.items()}
    for each in partition.ranges:
        if MessageQueue(each.topic, partition.broker_name, each.queue_id) not in readable[each.topic]:
            queue = BrokerQueue(each.topic, partition.broker_name, each.queue_id)
            raise RemotingError(f"{queue} was readable when the query was planned, and is in no route now")


async def _chunks(
    consumer: PullConsumer, partition: PullPartition, chosen: ReadOptions
) -> AsyncGenerator[_PulledRecords, None]:
    """Pull every range from its beginning to its end, while first pulls of the next ranges are in flight."""
    ranges = iter(partition.ranges)
    ahead: deque[asyncio.Task[_PulledRecords]] = deque()
    try:
        while True:
            for each in islice(ranges, _IN_FLIGHT - len(ahead)):
                ahead.append(asyncio.create_task(_pull(consumer, partition.broker_name, each, each.begin, chosen)))
            if not ahead:
                return
            chunk = await ahead.popleft()
            yield chunk
            while chunk.end < chunk.range.end:
                chunk = await _pull(consumer, partition.broker_name, chunk.range, chunk.end, chosen)
                yield chunk
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)


async def _pull(
    consumer: PullConsumer, broker_name: str, wanted_range: QueueRange, offset: int, chosen: ReadOptions
) -> _PulledRecords:
    """Pull once from `offset` on. Raises StoreError if messages are gone, unless loss is allowed."""
    queue = BrokerQueue(wanted_range.topic, broker_name, wanted_range.queue_id)
    count = min(wanted_range.end - offset, _MESSAGES_A_PULL)
    try:
        result = await consumer.pull_records(MessageQueue(*queue), offset, count, _subscription(chosen))
    except (RemotingConnectError, RemotingTimeout) as error:
        raise RemotingConnectError(f"{queue} cannot be pulled: {error}") from error
    upto = result.next_begin_offset
    if result.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG) and upto > offset:
        return _PulledRecords(wanted_range, result.records, offset, upto)
    # The broker has nothing here: what was promised was deleted from the queue's beginning, or its end was lost.
    further = min(result.min_offset, wanted_range.end) if result.min_offset > offset else wanted_range.end
    what = (
        f"offsets {offset} to {further} of {queue} are gone from the broker, "
        f"which holds {result.min_offset} to {result.max_offset}"
    )
    if chosen.fail_on_data_loss:
        raise StoreError(f"{what}; failOnDataLoss=false reads what there is")
    _log.warning("%s", what)
    return _PulledRecords(wanted_range, result.records, offset, further)


def _subscription(chosen: ReadOptions) -> str:
    """Return the subscription that the broker filters by: the wanted tags, if a subscription can name them all."""
    if chosen.tags is None:
        return "*"
    subscription = " || ".join(sorted(chosen.tags))
    try:
        return subscription if parse_tags(subscription) == chosen.tags else "*"
    except ValueError:
        return "*"


def _decode(
    chunks: Sequence[_PulledRecords], broker_name: str, chosen: ReadOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    places, sizes, counts = _positions(chunks, broker_name)
    begins = np.repeat([chunk.range.begin for chunk in chunks], counts)
    ends = np.repeat([chunk.range.end for chunk in chunks], counts)
    data = b"".join([chunk.records for chunk in chunks])
    for cut in record_layout.batches(places, sizes):
        records, damages = record_layout.locate(data, None, places[cut], sizes[cut])
        yield from _report(damages, broker_name, chosen, names)
        row = np.searchsorted(places, records.layout["begin"])
        offsets = records.heads["queue_offset"]
        # A broker that filters may give messages from behind the range.
        records = records.where((offsets >= begins[row]) & (offsets < ends[row]))
        records = records.where(selection_mask(records, chosen, whole_log=False))
        for batch, damages in columns.decode(records, names, broker_name=broker_name):
            yield from _report(damages, broker_name, chosen, names)
            if batch.num_rows:
                yield batch


def _positions(chunks: Sequence[_PulledRecords], broker_name: str) -> tuple[Array, Array, list[int]]:
    """Return the position and size of every record in all chunks end to end, and the number in each chunk."""
    positions: list[int] = []
    counts: list[int] = []
    before = 0
    for chunk in chunks:
        data, position, first = chunk.records, 0, len(positions)
        while position < len(data):
            size = FRAME.unpack_from(data, position)[0] if position + FRAME.size <= len(data) else 0
            if not MIN_RECORD_SIZE <= size <= len(data) - position:
                queue = BrokerQueue(chunk.range.topic, broker_name, chunk.range.queue_id)
                raise RemoteProtocolError(f"a pull from {queue} brought no whole record at byte {position}")
            positions.append(before + position)
            position += size
        before += len(data)
        counts.append(len(positions) - first)
    places = np.array(positions, np.int64)
    return places, np.diff(places, append=before), counts


def _report(
    damages: Sequence[DamagedRecord], broker_name: str, chosen: ReadOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """End the read, warn or yield rows for records that are damaged."""
    if damages and chosen.corrupt_records is CorruptRecords.COLUMN:
        yield columns.corrupt_rows(damages, names, broker_name=broker_name, with_offsets=False)
        return
    for damage in damages:
        what = f"a pull from {broker_name} brought a record that cannot be read: {damage.why}"
        if chosen.corrupt_records is CorruptRecords.FAIL:
            raise RemoteProtocolError(what)
        _log.warning("left out: %s", what)
