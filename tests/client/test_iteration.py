"""Iterations that end early: what they had in hand comes again to the next one, unless it is settled before."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from rucola.client import Message, MessageExt, PullLimits, PushConsumer
from rucola.client import sync as blocking
from support.broker_thread import servers
from support.cluster import Tally, cluster
from support.consumers import FIRST, ScriptedBroker, cluster_with_topic, committed, consumer_of, record_of, send, take
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


@pytest.mark.slow
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
            message = await anext(slow)
            await broker.given_back.reach(1)
            await slow.aclose()
            await consumer.reconsume_later(message)
            assert [message.body async for message in consumer.messages(idle_timeout_ms=50)] == [b"1"]
        assert len(broker.given_back.items) == 1
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


@each_order
@pytest.mark.parametrize("acknowledges", [False, True])
async def test_closing_warns_of_a_message_that_a_break_left(
    tmp_path: Path, orderly: bool, acknowledges: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_with_topic(tmp_path, range(2), queues=1) as (running, _):
        with caplog.at_level(logging.WARNING, "rucola.client"):
            async with consumer_of(running, orderly=orderly) as consumer:
                async for message in consumer:
                    if acknowledges:
                        consumer.ack(message)
                    break
        warned = [record.getMessage() for record in caplog.records if "acknowledged" in record.getMessage()]
        assert warned == ([] if acknowledges else [
            "group c: closing with unacknowledged messages of an iteration (1, the first with offset 0 of T), "
            "which the group receives again; call ack(message) before leaving the loop by break"
        ])  # fmt: skip
        assert await committed(running) == acknowledges


@each_order
async def test_a_consumer_that_closes_within_the_loop_leaves_its_message_to_the_next_one(
    tmp_path: Path, orderly: bool
) -> None:
    async with cluster_with_topic(tmp_path, range(4), queues=1) as (running, _):
        consumer = consumer_of(running, orderly=orderly)
        await consumer.open()
        seen = []
        async for message in consumer:
            seen.append(int(message.body))
            if len(seen) == 2:
                await consumer.close()
        assert seen == [0, 1]
        assert await committed(running) == 1
        async with consumer_of(running, orderly=orderly) as successor:
            assert await take(successor, 3) == [1, 2, 3]
        assert await committed(running) == 4


@each_order
async def test_a_loop_that_ends_when_no_message_arrives_has_acknowledged_all(tmp_path: Path, orderly: bool) -> None:
    async with cluster_with_topic(tmp_path, range(4), queues=1) as (running, _):
        async with consumer_of(running, orderly=orderly) as consumer:
            assert [int(message.body) async for message in consumer.messages(idle_timeout_ms=300)] == [0, 1, 2, 3]
        assert await committed(running) == 4


KILLED = """
import sys
from rucola.client import ConsumeFromWhere
from rucola.client.sync import PushConsumer

consumer = PushConsumer("c", sys.argv[1], consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer.subscribe("T")
consumer.open()
for message in consumer:
    print(message.body.decode(), flush=True)
    if message.body == b"4":
        sys.stdin.read()  # until the process is killed
"""


async def test_the_message_of_a_killed_process_is_delivered_to_the_next_one(tmp_path: Path) -> None:
    """The step of message 4 is not complete: 0 to 3 are committed, by the next pull, and 4 is not."""
    async with cluster_with_topic(tmp_path, range(10), queues=1) as (running, _):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, running.namesrv, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            assert [int(await process.stdout.readline()) for _ in range(5)] == [0, 1, 2, 3, 4]
            await send(running, [10])  # answers the held pull, so that the next one commits

            async def has_committed() -> bool:
                return await committed(running) == 4

            await until(has_committed)
        finally:
            process.kill()
            await process.wait()
        async with consumer_of(running) as successor:
            assert await take(successor, 7) == [4, 5, 6, 7, 8, 9, 10]
        assert await committed(running) == 11
