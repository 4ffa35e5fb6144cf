"""Listeners: batches, what they say of their messages, how long they may take, and how much waits for them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rucola.client import MessageExt, PullLimits, PushConsumer, ReconsumeLater, SuspendCurrentQueueAMoment
from rucola.client.consumer import dispatcher
from rucola.client.daemon_threads import DaemonThreads
from rucola.errors import ConfigError
from support.cluster import Tally, cluster
from support.consumers import ScriptedBroker, cluster_with_topic, committed, consumer_of, record_of, send, take
from support.errors import raises
from support.waiting import until


async def test_a_batch_holds_waiting_messages_of_one_queue(tmp_path: Path) -> None:
    batches: Tally[list[MessageExt]] = Tally()

    async def listen(messages: list[MessageExt]) -> None:
        batches.add(messages)

    async with cluster_with_topic(tmp_path, range(100)) as (running, _):
        consumer = consumer_of(running)
        consumer.listen_to_batches(listen, 8)
        async with consumer:
            await batches.reach(lambda batches: sum(map(len, batches)) == 100)
            assert consumer.operations.settings()["consumeMessageBatchMaxSize"] == "8"
        assert await committed(running) == 100
    assert all(len({message.queue_id for message in batch}) == 1 for batch in batches.items)
    assert max(map(len, batches.items)) == 8
    for batch in batches.items:
        offsets = [message.queue_offset for message in batch]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


async def test_a_batch_listener_runs_in_a_thread(tmp_path: Path) -> None:
    seen: Tally[int] = Tally()
    loop = asyncio.get_running_loop()

    def listen(messages: list[MessageExt]) -> None:
        assert threading.current_thread().name.startswith("listener of c")
        for message in messages:
            loop.call_soon_threadsafe(seen.add, int(message.body))

    async with cluster_with_topic(tmp_path, range(50)) as (running, _):
        consumer = consumer_of(running)
        consumer.listen_to_batches(listen, 32)
        async with consumer:
            assert sorted(await seen.reach(50)) == list(range(50))


@pytest.mark.parametrize("max_count", [0, 1025])
def test_a_batch_of_no_or_too_many_messages_is_refused(max_count: int) -> None:
    consumer = PushConsumer("c", "127.0.0.1:1")
    with raises(ConfigError, subject="max_count"):
        consumer.listen_to_batches(print, max_count)


async def test_a_batch_is_complete_up_to_its_ack_index_and_the_rest_retried(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(6)])
        await broker.start(running)

        async def listen(messages: list[MessageExt]) -> None:
            raise ReconsumeLater(5, ack_index=3)

        consumer = consumer_of(running)
        consumer.listen_to_batches(listen, 6)
        async with consumer:
            returned = await broker.given_back.reach(2)
        assert [(header.offset, header.delay_level) for header in returned] == [(1004, 5), (1005, 5)]
        assert broker.committed == 6


async def test_a_fast_plain_listener_gets_many_messages_in_one_visit_of_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "RUN_S", 60)
    visits = 0
    submit = DaemonThreads.submit

    def count(threads: DaemonThreads, *arguments: Any) -> Any:
        nonlocal visits
        visits += 1
        return submit(threads, *arguments)

    monkeypatch.setattr(DaemonThreads, "submit", count)
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(200)])
        await broker.start(running)
        seen: Tally[int] = Tally()
        loop = asyncio.get_running_loop()

        def listen(message: MessageExt) -> None:
            loop.call_soon_threadsafe(seen.add, int(message.body))
            if message.body in (b"7", b"150"):
                raise ReconsumeLater(3)

        consumer = consumer_of(running, concurrency=1, pull_batch_size=200)
        consumer.listen(listen)
        async with consumer:
            await seen.reach(200)
            returned = await broker.given_back.reach(2)
            await until(lambda: consumer.stats()["T"].consumed == 198)
        assert seen.items == list(range(200))
        assert [(header.offset, header.delay_level) for header in returned] == [(1007, 3), (1150, 3)]
        assert broker.committed == 200
        assert 0 < visits < 50


async def test_a_call_that_hangs_holds_up_no_other_message(tmp_path: Path) -> None:
    """Not those that its thread was to take next, which others get, and not those that it had called before."""
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(200)])
        await broker.start(running)
        seen: Tally[int] = Tally()
        loop, released = asyncio.get_running_loop(), threading.Event()

        def listen(message: MessageExt) -> None:
            if message.body == b"100":
                released.wait()
            loop.call_soon_threadsafe(seen.add, int(message.body))

        consumer = consumer_of(running, concurrency=2, pull_batch_size=200)
        consumer.listen(listen)
        async with consumer:
            await until(lambda: consumer.stats()["T"].consumed == 199)
            (of_topic,) = (one for queue, one in consumer.operations.process_queues().items() if queue.topic == "T")
            assert of_topic.commit_offset == 100
            released.set()
            await seen.reach(200)
        assert set(seen.items) == set(range(200))
        assert broker.committed == 200


@pytest.mark.parametrize("error", [ValueError("no"), ReconsumeLater(), SuspendCurrentQueueAMoment(5)])
async def test_concurrently_an_error_retries_the_whole_batch(tmp_path: Path, error: Exception) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(3)])
        await broker.start(running)

        async def listen(messages: list[MessageExt]) -> None:
            raise error

        consumer = consumer_of(running)
        consumer.listen_to_batches(listen, 3)
        async with consumer:
            returned = await broker.given_back.reach(3)
        assert sorted(header.offset for header in returned) == [1000, 1001, 1002]
        assert {(header.delay_level, header.max_reconsume_times) for header in returned} == {(0, 16)}
        assert broker.committed == 3


async def test_a_message_consumed_for_too_long_is_retried_and_the_offset_advances(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(3)])
        await broker.start(running)
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def listen(message: MessageExt) -> None:
            if message.body == b"1":
                begun.set()
                await may_end.wait()
                raise ValueError("too late to count")

        consumer = consumer_of(running, consume_timeout_ms=30)
        consumer.listen(listen)
        async with consumer:
            await begun.wait()
            (header,) = await broker.given_back.reach(1)
            assert (header.offset, header.delay_level) == (1001, 3)
            (queue,) = consumer.queues
            await until(lambda: consumer.operations.process_queues()[queue].commit_offset == 3)
            may_end.set()
        stats = consumer.stats()["T"]
        assert (stats.consumed, stats.failed, stats.in_hand) == (2, 1, 0)
        assert broker.committed == 3
        assert len(broker.given_back.items) == 1
    assert "and go back to the broker" in caplog.text


@pytest.mark.parametrize(
    ("limits", "held"),
    [
        (PullLimits(count=5), 5),
        (PullLimits(size=40), 4),
        (PullLimits(span=7), 8),
        (PullLimits(topic_count=6), 6),
        (PullLimits(topic_size=20), 2),
        (PullLimits(total_size=25), 3),
    ],
)
async def test_the_fetcher_pauses_at_each_limit_and_resumes_below_it(
    tmp_path: Path, limits: PullLimits, held: int
) -> None:
    """One message a pull, each of ten bytes."""

    async with cluster_with_topic(tmp_path, (10**9 + number for number in range(30)), queues=1) as (running, _):
        async with consumer_of(running, limits=limits, pull_batch_size=1) as consumer:
            (queue,) = consumer.queues
            await until(lambda: consumer.operations.process_queues()[queue].cached_msg_count == held)
            assert len(await take(consumer, 30)) == 30
        assert await committed(running) == 30


async def test_beyond_the_limit_of_all_queues_only_empty_ones_are_pulled(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(40)) as (running, _):
        async with consumer_of(running, limits=PullLimits(total_size=1), pull_batch_size=1) as consumer:
            held = consumer.operations.process_queues
            await until(lambda: sorted(queue.cached_msg_count for queue in held().values()) == [0, 1, 1, 1, 1])
            assert sorted(await take(consumer, 40)) == list(range(40))
        assert await committed(running) == 40


def test_limits_of_a_topic_are_divided_among_its_assigned_queues() -> None:
    limits = PullLimits(topic_count=100, topic_size=10)
    assert limits.shared_by(3, in_order=False) == PullLimits(count=33, size=3)
    assert limits.shared_by(1000, in_order=True) == PullLimits(count=1, size=1, span=None)
    assert PullLimits(count=7).shared_by(3, in_order=False).count == 7


@pytest.mark.parametrize("name", ["count", "size", "span", "topic_count", "topic_size", "total_size"])
def test_a_limit_below_one_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        PullLimits(**{name: 0})


async def test_a_suspended_consumer_gets_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(5)) as (running, _), consumer_of(running) as consumer:
        assert len(await take(consumer, 5)) == 5
        consumer.suspend()
        await send(running, range(5, 10))
        assert [message async for message in consumer.messages(idle_timeout_ms=200)] == []
        assert len(consumer.queues) == 4
        consumer.resume()
        assert sorted(await take(consumer, 5)) == [5, 6, 7, 8, 9]


async def test_a_reassigned_queue_accepts_no_requeued_messages(tmp_path: Path) -> None:
    """It is not done, so whoever has the queue now gets it anyway; sent back it would come twice."""

    begun, may_end = asyncio.Event(), asyncio.Event()

    async def listen(message: MessageExt) -> None:
        begun.set()
        await may_end.wait()
        raise ValueError("after the queue has gone")

    async with cluster_with_topic(tmp_path, [1], queues=1) as (running, _):
        consumer = consumer_of(running, strategy=lambda client_id, queues, members: list(queues)[: len(shares)])
        shares = [1, 2]
        consumer.listen(listen)
        async with consumer:
            await begun.wait()
            shares.clear()
            consumer.members_changed()
            await until(lambda: not consumer.queues)
            may_end.set()
        assert await committed(running) == 0
        async with consumer_of(running) as successor:
            assert await take(successor, 1) == [1]
            assert [message async for message in successor.messages(idle_timeout_ms=50)] == []
