"""Iterations that end early: what they had in hand comes again to the next one, unless it is settled before."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from rucola.client import Message, MessageExt, PullLimits, PushConsumer
from rucola.client import sync as blocking
from support.broker_thread import servers
from support.cluster import Tally, cluster
from support.consumers import FIRST, ScriptedBroker, cluster_with_topic, committed, consumer_of, record_of, take
from support.waiting import until

each_order = pytest.mark.parametrize("orderly", [False, True])


async def fail_at_the_next(consumer: PushConsumer) -> MessageExt:
    """An iteration whose body raises; the message that it had."""
    had: list[MessageExt] = []
    try:
        async for message in consumer:
            had.append(message)
            raise ValueError("the body fails")
    except ValueError:
        pass
    return had[0]


@each_order
async def test_an_error_in_the_loop_requeues_the_message(tmp_path: Path, orderly: bool) -> None:
    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        async with consumer_of(running, orderly=orderly) as consumer:
            for _ in range(3):
                assert (await fail_at_the_next(consumer)).body == b"0"
            assert await take(consumer, 3) == [0, 1, 2]
        assert await committed(running) == 3


@each_order
async def test_a_queue_advances_if_every_message_fails_once(tmp_path: Path, orderly: bool) -> None:
    """No more than two messages are held, so each one that is stuck would be noticed."""

    async with cluster_with_topic(tmp_path, range(20), queues=2) as (running, _):
        async with consumer_of(running, orderly=orderly, limits=PullLimits(count=2), pull_batch_size=1) as consumer:
            failed: set[bytes] = set()
            done: set[bytes] = set()
            while len(done) < 20:
                try:
                    async with asyncio.timeout(20):
                        async for message in consumer:
                            if message.body not in failed:
                                failed.add(message.body)
                                raise ValueError("the first time")
                            done.add(message.body)
                            if len(done) == 20:
                                consumer.ack(message)
                                break
                except ValueError:
                    pass
        assert await committed(running) == 20


@each_order
async def test_another_running_iteration_gets_a_requeued_message(tmp_path: Path, orderly: bool) -> None:
    async with cluster_with_topic(tmp_path, range(2), queues=1) as (running, _):
        async with consumer_of(running, orderly=orderly) as consumer:
            first = consumer.messages()
            assert (await anext(first)).body == b"0"
            seen: Tally[bytes] = Tally()

            async def drain() -> None:
                async for message in consumer:
                    seen.add(message.body)

            draining = asyncio.create_task(drain())
            if not orderly:
                assert await seen.reach(1) == [b"1"]
            await first.aclose()
            await seen.reach(2)
            assert sorted(seen.items) == [b"0", b"1"]
            await until(lambda: consumer.stats()["T"].held == 0)
        await draining
        assert await committed(running) == 2


@each_order
async def test_a_collected_or_cancelled_generator_requeues_its_message(tmp_path: Path, orderly: bool) -> None:
    async with cluster_with_topic(tmp_path, range(2), queues=1) as (running, _):
        async with consumer_of(running, orderly=orderly) as consumer:
            stream: AsyncGenerator[MessageExt, None] | None = consumer.messages()
            assert stream is not None
            assert (await anext(stream)).body == b"0"
            stream = None
            gc.collect()

            at_work = asyncio.Event()

            async def work() -> None:
                async for message in consumer:
                    assert message.body == b"0"
                    at_work.set()
                    await asyncio.Event().wait()

            working = asyncio.create_task(work())
            await at_work.wait()
            working.cancel()
            await asyncio.wait([working])
            assert await take(consumer, 2) == [0, 1]
        assert await committed(running) == 2


@each_order
async def test_a_message_can_be_acknowledged_after_its_loop_ended(tmp_path: Path, orderly: bool) -> None:
    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        async with consumer_of(running, orderly=orderly) as consumer:
            message = await fail_at_the_next(consumer)
            await until(lambda: consumer.stats()["T"].in_hand == 0)  # the loop has closed its generator
            consumer.ack(message)
            consumer.ack(message)
            stats = consumer.stats()["T"]
            assert (stats.consumed, stats.in_hand) == (1, 0)
            assert await take(consumer, 2) == [1, 2]
            consumer.ack(message)
        assert await committed(running) == 3


async def test_a_message_can_be_retried_after_its_loop_ended(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(i, b"%d" % i) for i in range(2)])
        await broker.start(running)
        async with consumer_of(running) as consumer:
            message = await fail_at_the_next(consumer)
            await until(lambda: consumer.stats()["T"].in_hand == 0)
            await consumer.reconsume_later(message, 4)
            await consumer.reconsume_later(message, 4)
            assert await take(consumer, 1) == [1]
        assert [(header.offset, header.delay_level) for header in broker.given_back.items] == [(1000, 4)]
        assert broker.committed == 2


async def test_in_order_a_message_retried_after_its_loop_is_delivered_first(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        async with consumer_of(running, orderly=True, suspend_current_queue_ms=10) as consumer:
            message = await fail_at_the_next(consumer)
            await until(lambda: consumer.stats()["T"].in_hand == 0)
            await consumer.reconsume_later(message)
            assert message.reconsume_times == 1
            assert await take(consumer, 3) == [0, 1, 2]
        assert await committed(running) == 3


@each_order
async def test_an_unacknowledged_message_is_not_requeued_after_its_queue_was_reset(
    tmp_path: Path, orderly: bool
) -> None:
    async with cluster_with_topic(tmp_path, range(5), queues=1) as (running, _):
        async with consumer_of(running, orderly=orderly) as consumer:
            (queue,) = consumer.queues
            left = consumer.messages()
            message = await anext(left)
            await consumer.operations.reset_offsets({queue: 3})
            await left.aclose()
            consumer.ack(message)
            assert await take(consumer, 2) == [3, 4]
        assert await committed(running) == 5


async def test_a_message_retried_by_the_broker_is_not_requeued(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(0, b"0"), record_of(1, b"1")])
        await broker.start(running)
        async with consumer_of(running, consume_timeout_ms=30) as consumer:
            slow = consumer.messages()
            await anext(slow)
            await broker.given_back.reach(1)
            await slow.aclose()
            assert [message.body async for message in consumer.messages(idle_timeout_ms=50)] == [b"1"]
        assert broker.committed == 2


@each_order
def test_a_failed_blocking_loop_gets_its_message_again(tmp_path: Path, orderly: bool) -> None:
    with servers(tmp_path) as namesrv:
        with blocking.Producer("g", namesrv) as producer:
            queue = producer.queues("T")[0]
            producer.send_batch([Message("T", b"0"), Message("T", b"1")], queue)
        consumer = blocking.PushConsumer("c", namesrv, consume_from=FIRST, orderly=orderly)
        consumer.subscribe("T")

        def fail() -> None:
            for message in consumer:
                raise ValueError(message.body.decode())

        with consumer:
            for _ in range(2):
                with pytest.raises(ValueError, match="0"):
                    fail()
            bodies = []
            for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 2:
                    break
            consumer.ack(message)
        assert bodies == [b"0", b"1"]
        with blocking.PullConsumer("c", namesrv) as reader:
            assert reader.committed(queue) == 2
