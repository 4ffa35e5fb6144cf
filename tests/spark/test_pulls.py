"""Partitions of live brokers: how ranges of queues are packed, and how many requests and tasks a read takes."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo

from rucola.client import Message, MessageQueue, Producer, PullConsumer
from rucola.spark.source import batch_reader as reader
from rucola.spark.source.batch_reader import RocketMQPushdownReader, RocketMQReader
from rucola.spark.source.log_splits import TARGET_SIZE
from rucola.spark.source.options import parse_read_options
from rucola.spark.source.pull_partitions import PullPartition, pack
from rucola.spark.source.source_offsets import BrokerQueue, OffsetRanges
from support.cluster import cluster
from support.live_reads import read

RANGES = st.dictionaries(
    st.builds(BrokerQueue, st.sampled_from("TU"), st.sampled_from("ab"), st.integers(0, 20)),
    st.tuples(st.integers(0, 50), st.integers(0, 500)).map(lambda pair: (pair[0], sum(pair))),
)
SIZES = st.fixed_dictionaries({(topic, broker): st.integers(100, 4 << 20) for topic in "TU" for broker in "ab"})


def rows_of(reader: RocketMQReader, part: Any) -> list[dict[str, Any]]:
    return [row for batch in reader.read(part) for row in batch.to_pylist()]


def messages(pulls: PullPartition) -> int:
    return sum(each.end - each.begin for each in pulls.ranges)


@given(RANGES, SIZES, st.integers(0, 40))
def test_partitions_hold_every_message_once_and_in_order(
    ranges: OffsetRanges, sizes: dict[tuple[str, str], int], least: int
) -> None:
    found: dict[BrokerQueue, list[tuple[int, int]]] = {}
    for pulls in pack(ranges, sizes, least):
        assert pulls.ranges
        for topic, queue_id, begin, end in pulls.ranges:
            assert begin < end
            found.setdefault(BrokerQueue(topic, pulls.broker_name, queue_id), []).append((begin, end))
    joined = {queue: (parts[0][0], parts[-1][1]) for queue, parts in found.items()}
    assert joined == {queue: bounds for queue, bounds in ranges.items() if bounds[0] < bounds[1]}
    for parts in found.values():
        assert all(before[1] == after[0] for before, after in pairwise(parts))


def test_small_queues_share_a_partition_and_large_ones_are_cut() -> None:
    wide = {BrokerQueue("T", "a", number): (0, 4) for number in range(256)}
    (pulls,) = pack(wide, {("T", "a"): 200}, 1)
    assert (pulls.broker_name, len(pulls.ranges), messages(pulls)) == ("a", 256, 1024)
    sizes = {("T", "a"): 1024, ("T", "b"): 1024}
    brokers = pack({BrokerQueue("T", name, number): (0, 9) for name in "ab" for number in range(3)}, sizes, 1)
    assert [(pulls.broker_name, messages(pulls)) for pulls in brokers] == [("a", 27), ("b", 27)]
    long = {BrokerQueue("T", "a", 0): (100, 100 + TARGET_SIZE // 1024 * 8)}
    assert [messages(pulls) for pulls in pack(long, {("T", "a"): 1024}, 1)] == [TARGET_SIZE // 1024] * 8
    # By what messages weigh, not by their number.
    uneven = {BrokerQueue("Large", "a", 0): (0, 1024), BrokerQueue("Small", "a", 0): (0, 1024 * 64)}
    parts = pack(uneven, {("Large", "a"): 1 << 20, ("Small", "a"): 1 << 10}, 1)
    assert len(parts) == 8
    assert {messages(pulls) for pulls in parts[:7]} <= {136, 137}
    assert [messages(pulls) for pulls in pack({BrokerQueue("T", "a", 0): (0, 10)}, sizes, 4)] == [2, 3, 2, 3]
    assert len(pack({BrokerQueue("T", "a", 0): (0, 3)}, sizes, 10)) == 3


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The queue id of each pull."""
    found: list[int] = []
    pull_records = PullConsumer.pull_records

    async def counted(self: PullConsumer, queue: MessageQueue, *arguments: object, **named: object) -> object:
        found.append(queue.queue_id)
        return await pull_records(self, queue, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(PullConsumer, "pull_records", counted)
    return found


async def test_a_wide_topic_is_one_task_in_the_order_of_each_queue(tmp_path: Path, pulls: list[int]) -> None:
    """64 queues with 3 messages each, of which tags choose some; each queue is pulled once."""
    async with cluster(tmp_path) as running:
        await running.create_topic(await running.start_broker(), "T", queues=64)
        async with Producer("senders", running.namesrv) as producer:
            for n in range(192):
                await producer.send(
                    Message("T", b"%d" % n, tags="AB"[n // 64 % 2]), MessageQueue("T", "broker-a", n % 64)
                )
        options = parse_read_options({"nameServer": running.namesrv, "subscribe": "T"})
        (pulls_of_all,) = await asyncio.to_thread(reader.plan, options)
        assert len(pulls_of_all.ranges) == 64
        pulls.clear()
        whole = RocketMQReader(options, ("queueId", "queueOffset", "body"))
        rows = await asyncio.to_thread(rows_of, whole, pulls_of_all)
        assert len(pulls) == 64
        assert [(row["queueId"], row["queueOffset"]) for row in rows] == [(q, n) for q in range(64) for n in range(3)]
        assert all(int(row["body"]) == row["queueOffset"] * 64 + row["queueId"] for row in rows)
        some = json.dumps({"T": {"broker-a": dict.fromkeys(map(str, range(64)), 2)}})
        tagged = await asyncio.to_thread(
            read, running.namesrv, subscribe="T", subExpression="A", endingOffsets=some, minPartitions="5"
        )
        # The third message of each queue has the tag, too, and lies behind the end.
        assert sorted(int(row["body"]) for row in tagged) == list(range(64))


async def test_long_queues_of_a_task_are_pulled_by_turns(tmp_path: Path, pulls: list[int]) -> None:
    """Each answer has 32 messages; the next pull of a queue does not wait for the other queue's answer."""
    async with cluster(tmp_path) as running:
        await running.create_topic(await running.start_broker(), "T", queues=2)
        async with Producer("senders", running.namesrv) as producer:
            for queue_id, count in enumerate((80, 100)):
                batch = [Message("T", b"%d" % n) for n in range(count)]
                await producer.send_batch(batch, MessageQueue("T", "broker-a", queue_id))
        options = parse_read_options({"nameServer": running.namesrv, "subscribe": "T"})
        (part,) = await asyncio.to_thread(reader.plan, options)
        pulls.clear()
        rows = await asyncio.to_thread(rows_of, RocketMQReader(options, ("queueId", "body")), part)
    assert pulls == [0, 1, 0, 1, 0, 1, 1]
    for queue_id, count in enumerate((80, 100)):
        assert [int(row["body"]) for row in rows if row["queueId"] == queue_id] == [*range(count)]


async def test_a_tag_that_no_subscription_can_name_is_found(tmp_path: Path) -> None:
    """As the condition of a query gives it (see `pushdown`)."""

    async with cluster(tmp_path) as running:
        await running.create_topic(await running.start_broker(), "T")
        async with Producer("senders", running.namesrv) as producer:
            for tag in ("A", " A ", "*"):
                await producer.send(Message("T", tag.encode(), tags=tag))
        options = parse_read_options({"nameServer": running.namesrv, "subscribe": "T", "pushFilters": "true"})
        for tag in (" A ", "*", "A"):
            narrowed = RocketMQPushdownReader(options, ("body",))
            assert narrowed.pushFilters([EqualTo(("tags",), tag)]) == []
            (part,) = await asyncio.to_thread(narrowed.partitions)
            rows = await asyncio.to_thread(rows_of, narrowed, part)
            assert [row["body"].decode() for row in rows] == [tag]
