"""What clients count of themselves, and what operators are told of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rucola.client import Message, MessageExt, Producer, ReconsumeLater, sync
from rucola.client.stats import PROCESS_BOUNDS_MS, ConsumeCounters
from rucola.errors import MQError
from rucola.protocol.codes import RequestCode
from rucola.remoting.connection import Processor
from support.cluster import cluster
from support.consumers import cluster_with_topic, consumer_of
from support.waiting import until


@pytest.mark.parametrize(("ms", "place"), [(0.2, 0), (1, 0), (1.1, 1), (60_000, 6), (60_001, 7)])
def test_a_duration_counts_in_the_first_bucket_that_holds_it(ms: float, place: int) -> None:
    counts = ConsumeCounters()
    counts.of("T").end_delivery(1, 1, ms)
    durations = counts.snapshot("T", 0, 0).consumed_ms
    assert durations.bounds_ms == PROCESS_BOUNDS_MS
    assert durations.counts.index(1) == place
    assert durations.sum_ms == ms


async def test_every_way_of_sending_is_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        await running.create_topic(await running.start_broker(), "T")
        assert producer.stats() == {}
        await producer.send(Message("T", b"x"))
        await producer.send_batch([Message("T", b"x")] * 5)
        assert [result async for result in producer.send_many([Message("T", b"x")] * 20)]
        await producer.send_oneway(Message("T", b"x"))
        stats = producer.stats()["T"]
        assert (stats.sent, stats.not_store_ok, stats.failed, stats.oneway, stats.in_flight) == (26, 0, 0, 1, 0)
        assert stats.sent_ms.count == 22, "a batch is one request"
        assert 0 < stats.sent_ms.mean_ms < 20_000


async def test_failures_and_abandoned_sends_are_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, Producer("g", running.namesrv) as producer:
        silent: dict[int, Processor] = {RequestCode.SEND_MESSAGE_V2: lambda *_: None}
        await running.scripted_broker("broker-a", "T", silent)
        with pytest.raises(MQError):
            await producer.send(Message("T", b"x"), timeout_ms=50)
        sending = asyncio.create_task(producer.send(Message("T", b"x")))
        await until(lambda: producer.stats()["T"].in_flight == 1)
        sending.cancel()
        stream = producer.send_many([Message("T", b"x")] * 3, timeout_ms=50)
        with pytest.raises(MQError):
            await anext(stream)
        with pytest.raises(MQError):
            await producer.send(Message("Unknown", b"x"))
        with pytest.raises(MQError):
            await anext(producer.send_many([Message("Unknown", b"x")]))
        stats = producer.stats()
        assert (stats["T"].sent, stats["T"].failed, stats["T"].in_flight) == (0, 5, 0)
        assert stats["T"].failed_ms.count == 5
        assert (stats["Unknown"].failed, stats["Unknown"].in_flight) == (2, 0)


async def test_results_of_a_listener_are_counted(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(20)) as (running, _):
        consumer = consumer_of(running)

        async def listen(message: MessageExt) -> None:
            if message.body == b"7":
                raise RuntimeError("seven")

        consumer.listen(listen)
        async with consumer:
            await until(lambda: (of := consumer.stats().get("T")) is not None and of.consumed + of.failed == 20)
            stats = consumer.stats()["T"]
            assert (stats.pulled, stats.consumed, stats.failed, stats.in_hand) == (20, 19, 1, 0)
            assert (stats.consumed_ms.count, stats.failed_ms.count) == (19, 1)
            await until(lambda: consumer.stats()["T"].held == 0)
            status = consumer.operations.status()["T"]
            assert status.consume_failed_msgs == 1
            assert status.consume_ok_tps > status.consume_failed_tps > 0
            assert status.pull_tps > 0
            assert set(consumer.operations.status()) == {"T", "%RETRY%c"}


async def test_a_batch_is_counted_by_its_ack_index(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(4), queues=1) as (running, _):
        consumer = consumer_of(running)
        sizes: list[int] = []

        async def listen(messages: list[MessageExt]) -> None:
            sizes.append(len(messages))
            raise ReconsumeLater(ack_index=0)

        consumer.listen_to_batches(listen, 10)
        async with consumer:
            await until(lambda: (of := consumer.stats().get("T")) is not None and of.consumed + of.failed == 4)
            stats = consumer.stats()["T"]
            assert (stats.consumed, stats.failed) == (len(sizes), 4 - len(sizes))


async def test_messages_of_an_iteration_are_counted(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(4), queues=1) as (running, _), consumer_of(running) as consumer:
        messages = consumer.messages()
        await anext(messages)
        await until(lambda: consumer.stats()["T"].pulled == 4)
        stats = consumer.stats()["T"]
        assert (stats.in_hand, stats.consumed, stats.held, stats.held_size) == (1, 0, 4, 4)
        second = await anext(messages)
        await consumer.reconsume_later(second)
        stats = consumer.stats()["T"]
        assert (stats.in_hand, stats.consumed, stats.failed, stats.held) == (0, 1, 1, 2)
        await anext(messages)
        await messages.aclose()
        stats = consumer.stats()["T"]
        assert (stats.in_hand, stats.consumed, stats.failed) == (0, 1, 1), "nobody said what became of the third"


def test_a_topic_without_messages_has_zero_counts() -> None:
    counts = ConsumeCounters()
    assert counts.status("T").consume_rt == 0.0
    assert counts.snapshot("T", 3, 30).held == 3
    counts.of("T").add_pull(0, 5.0)
    assert counts.status("T").pull_rt == 5.0
    assert counts.status("T").pull_tps == 0.0


def test_windows_expire() -> None:
    counts = ConsumeCounters()
    counts.of("T").end_delivery(2, 1, 8.0)
    for _ in range(7):
        counts.sample()
    status = counts.status("T")
    assert (status.consume_ok_tps, status.consume_failed_tps) == (0.0, 0.0), "all that was before the last minute"
    assert (status.consume_rt, status.consume_failed_msgs) == (8.0, 1), "which are of the last hour then"


async def test_blocking_clients_count_and_any_thread_can_read(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(10)) as (running, _):
        seen: list[int] = []

        def work() -> None:
            with (
                sync.Producer("p", running.namesrv) as producer,
                sync.PushConsumer("c", running.namesrv) as consumer,
            ):
                producer.send(Message("T", b"x"))
                consumer.subscribe("T")
                looker = threading.Thread(
                    target=lambda: seen.append(producer.stats()["T"].sent + len(consumer.stats()))
                )
                looker.start()
                looker.join()

        await asyncio.to_thread(work)
        assert seen
        assert seen[0] >= 1
