"""Consuming as a group: everything at least once, shared among members, resumed where it was left."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from rucola.client import ClientInstance, ConsumeFromWhere, MessageExt, Producer, PushConsumer
from rucola.client.consumer import push_consumer
from rucola.errors import ConfigError, InvalidMessage, RemotingConnectError
from rucola.message import Message
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.offset import OffsetResponseHeader, SearchOffsetRequestHeader
from rucola.remoting.connection import Connection
from support.cluster import Tally, cluster
from support.consumers import (
    FIRST,
    ScriptedBroker,
    cluster_with_topic,
    committed,
    consumer_of,
    record_of,
    send,
    take,
)
from support.errors import raises
from support.waiting import until


async def test_every_message_is_delivered_once_and_a_successor_resumes(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(200)) as (running, _):
        async with consumer_of(running) as consumer:
            assert len(consumer.queues) == 4
            first = await take(consumer, 120)
        assert await committed(running) <= 120
        async with consumer_of(running) as consumer:
            rest = await take(consumer, 200 - await committed(running))
        assert set(first) | set(rest) == set(range(200))
        assert await committed(running) == 200
        await send(running, range(200, 210))
        async with consumer_of(running) as consumer:
            assert sorted(await take(consumer, 10)) == list(range(200, 210))


async def test_only_subscribed_tags_are_delivered_and_others_count_as_complete(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path) as (running, _):
        for body, tag in enumerate(["Aa", "BB", "C"] * 10):  # "Aa" and "BB" have one hash
            await send(running, [body], tags=tag)
        async with consumer_of(running, expression="Aa || C") as consumer:
            taken = await take(consumer, 20)
            assert {body % 3 for body in taken} == {0, 2}
            assert [message async for message in consumer.messages(idle_timeout_ms=50)] == []
        assert await committed(running) == 30


async def test_a_message_in_flight_is_not_committed(tmp_path: Path) -> None:
    """Messages left by `break` come again; a message acknowledged, or followed by another, does not."""

    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        async with consumer_of(running) as consumer:
            async for message in consumer:
                if message.body == b"1":
                    break
        assert await committed(running) == 1
        async with consumer_of(running) as consumer:
            assert await take(consumer, 2) == [1, 2]
        assert await committed(running) == 3


async def test_offsets_are_committed_while_the_consumer_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every five seconds, of which a test need not wait for one."""
    assert push_consumer.PERSIST_INTERVAL_MS == 5000
    monkeypatch.setattr(push_consumer, "PERSIST_INTERVAL_MS", 10)

    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(number, b"%d" % number) for number in range(3)])
        await broker.start(running)
        async with consumer_of(running) as consumer:
            assert await take(consumer, 3) == [0, 1, 2]
            await until(lambda: broker.updates[-1:] == [3])


@pytest.mark.parametrize("kind", ["coroutine", "partial", "callable", "lambda", "thread"])
async def test_a_listener_receives_every_message(tmp_path: Path, kind: str) -> None:
    seen: Tally[int] = Tally()
    loop = asyncio.get_running_loop()

    async def listen(message: MessageExt) -> None:
        await asyncio.sleep(0)
        seen.add(int(message.body))

    def listen_in_a_thread(message: MessageExt) -> None:
        loop.call_soon_threadsafe(seen.add, int(message.body))

    class Callable:
        async def __call__(self, message: MessageExt) -> None:
            await listen(message)

    listeners = {
        "coroutine": listen,
        "partial": partial(listen),
        "callable": Callable(),
        "lambda": lambda message: listen(message),
        "thread": listen_in_a_thread,
    }
    async with cluster_with_topic(tmp_path, range(100)) as (running, _):
        consumer = consumer_of(running)
        consumer.listen(listeners[kind])
        async with consumer:
            assert sorted(await seen.reach(100)) == list(range(100))
        assert await committed(running) == 100


async def test_two_members_share_the_queues_until_one_leaves(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, queues=5) as (running, _):
        by_member: Tally[tuple[int, int]] = Tally()

        async def collect(number: int, consumer: PushConsumer) -> None:
            async for message in consumer:
                by_member.add((number, int(message.body)))

        first = consumer_of(running)
        await first.open()
        assert len(first.queues) == 5
        second = consumer_of(running)
        await second.open()
        collecting = [asyncio.create_task(collect(number, c)) for number, c in enumerate((first, second))]
        async with asyncio.timeout(20):
            while len(first.queues) + len(second.queues) != 5 or not second.queues:
                await first.rebalanced()
        assert sorted([len(first.queues), len(second.queues)]) == [2, 3]
        assert not first.queues & second.queues
        await send(running, range(100))
        await by_member.reach(lambda items: {body for _, body in items} == set(range(100)))
        assert {number for number, _ in by_member.items} == {0, 1}
        await first.close()
        async with asyncio.timeout(20):
            while len(second.queues) < 5:
                await second.rebalanced()
        await send(running, range(100, 200))
        await by_member.reach(lambda items: {body for _, body in items} == set(range(200)))
        await second.close()
        await asyncio.gather(*collecting)
        assert await committed(running) == 200


async def test_a_topic_created_later_is_consumed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        async with consumer_of(running) as consumer:
            assert not consumer.queues
            await running.create_topic(broker, "T", queues=2)
            await send(running, range(4))
            assert sorted(await take(consumer, 4)) == [0, 1, 2, 3]


async def test_subscriptions_can_change_while_open(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(4)) as (running, _):
        async with PushConsumer("c", running.namesrv, consume_from=FIRST) as consumer:
            consumer.subscribe("T")
            assert sorted(await take(consumer, 4)) == [0, 1, 2, 3]
            consumer.unsubscribe("T")
            async with asyncio.timeout(20):
                while consumer.queues:
                    await consumer.rebalanced()
        assert await committed(running) == 4
        with pytest.raises(InvalidMessage):
            consumer.subscribe("no topic")


async def test_a_restarted_broker_gets_a_heartbeat_at_once(tmp_path: Path) -> None:
    """It forgets them when it stops. A newcomer then shares with the old member instead of taking everything."""

    async with cluster_with_topic(tmp_path) as (running, broker), consumer_of(running) as old:
        await broker.stop()
        await running.start_broker(port=broker.config.listen_port)
        async with consumer_of(running) as new, asyncio.timeout(20):
            while not (len(old.queues) == len(new.queues) == 2 and not old.queues & new.queues):
                rebalanced = [asyncio.ensure_future(consumer.rebalanced()) for consumer in (old, new)]
                await asyncio.wait(rebalanced, return_when=asyncio.FIRST_COMPLETED)
                for waiting in rebalanced:
                    waiting.cancel()


async def test_a_new_group_starts_at_its_consume_from_option(tmp_path: Path) -> None:
    """On queues that are no longer young: what the broker answers for those decides nothing."""

    async with cluster(tmp_path) as running:
        broker = ScriptedBroker(committed=None, max_offset=70)
        await broker.start(running)
        now_ms = time.time_ns() // 1_000_000
        for consume_from, begin in [
            (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 70),
            (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 0),
            (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 33),
        ]:
            broker.committed, broker.pulled = None, Tally()
            async with consumer_of(running, consume_from=consume_from, consume_timestamp_ms=now_ms):
                assert (await broker.pulled.reach(1))[0].queue_offset == begin
        broker.committed, broker.pulled = 12, Tally()
        async with consumer_of(running):
            assert (await broker.pulled.reach(1))[0].queue_offset == 12


async def test_a_new_group_starts_its_retry_topic_by_apaches_rule(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker(committed=None, max_offset=70)
        await running.scripted_broker("broker-a", "%RETRY%c", broker.processors)
        for consume_from, begin in [
            (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 0),
            (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 0),
            (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 70),
        ]:
            broker.committed, broker.pulled = None, Tally()
            async with consumer_of(running, consume_from=consume_from):
                (pulled,) = await broker.pulled.reach(1)
            assert (pulled.topic, pulled.queue_offset) == ("%RETRY%c", begin)


async def test_a_new_group_starts_half_an_hour_ago_by_default(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker(committed=None)
        asked: Tally[int] = Tally()

        def search(connection: Connection, command: RemotingCommand) -> RemotingCommand:
            asked.add(command.decode_header(SearchOffsetRequestHeader).timestamp)
            return command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=33))

        broker.processors[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = search
        await broker.start(running)
        begin_ms = time.time_ns() // 1_000_000
        async with consumer_of(running, consume_from=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP):
            (timestamp,) = await asked.reach(1)
        assert begin_ms <= timestamp + 30 * 60 * 1000 <= time.time_ns() // 1_000_000


async def test_an_offset_outside_the_queue_is_corrected_and_committed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(0, b"0"), record_of(1, b"1")], committed=99)
        await broker.start(running)
        async with consumer_of(running) as consumer:
            assert await take(consumer, 2) == [0, 1]
            assert [header.queue_offset for header in broker.pulled.items[:2]] == [99, 0]
            assert broker.updates == [0]
        assert broker.updates == [0, 2]


async def test_a_message_sent_back_is_complete(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(0, b"0", UNIQ_KEY="KEY0"), record_of(1, b"1")])
        await broker.start(running)
        seen: Tally[bytes] = Tally()

        async def listen(message: MessageExt) -> None:
            seen.add(message.body)
            if message.body == b"0":
                raise ValueError("not today")

        consumer = consumer_of(running, max_reconsume_times=5)
        consumer.listen(listen)
        async with consumer:
            await seen.reach(2)
            (header,) = await broker.given_back.reach(1)
        assert (header.offset, header.group, header.delay_level) == (1000, "c", 0)
        assert (header.origin_msg_id, header.origin_topic, header.max_reconsume_times) == ("KEY0", "T", 5)
        assert broker.committed == 2
        assert broker.left == ["c"]
        assert sorted(seen.items) == [b"0", b"1"]


async def test_a_message_that_cannot_be_sent_back_is_retried_locally_and_holds_the_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with cluster(tmp_path) as running:
        broker = ScriptedBroker([record_of(0, b"0"), record_of(1, b"1")])
        broker.send_back_code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await broker.start(running)
        tries: Tally[int] = Tally()

        async def listen(message: MessageExt) -> None:
            if message.body == b"0":
                tries.add(message.reconsume_times)
                raise ValueError("never")

        consumer = consumer_of(running, local_retry_ms=1)
        consumer.listen(listen)
        async with consumer:
            assert (await tries.reach(4))[:4] == [0, 1, 2, 3]
        assert broker.committed == 0


async def test_a_message_from_the_retry_topic_has_its_original_topic(tmp_path: Path) -> None:
    async with (
        cluster_with_topic(tmp_path) as (running, _),
        Producer("g", running.namesrv) as producer,
        consumer_of(running) as consumer,
    ):
        await producer.send(Message("%RETRY%c", b"7", properties={"RETRY_TOPIC": "T"}))
        async with asyncio.timeout(20):
            message = await anext(consumer.messages())
        assert (message.topic, message.body) == ("T", b"7")
        assert all(queue.topic == "T" for queue in consumer.queues)


async def test_an_instance_serves_several_groups_but_each_once(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(3)) as (running, _), AsyncExitStack() as stack:
        instance = await stack.enter_async_context(ClientInstance(running.namesrv))
        producer = await stack.enter_async_context(Producer("g", instance=instance))
        for group in ("c", "d"):
            consumer = PushConsumer(group, instance=instance, consume_from=FIRST)
            consumer.subscribe("T")
            await stack.enter_async_context(consumer)
            assert sorted(await take(consumer, 3)) == [0, 1, 2]
        await producer.send(Message("T", b"3"))
        again = PushConsumer("c", instance=instance)
        with raises(ConfigError, subject="c"):
            await again.open()
        with raises(ConfigError, subject="g"):
            await Producer("g", instance=instance).open()
        assert await take(consumer, 1) == [3]


@pytest.mark.parametrize(("name", "value"), [("concurrency", 0), ("pull_batch_size", 0), ("max_reconsume_times", -1)])
def test_an_invalid_option_is_refused(name: str, value: int) -> None:
    with raises(ConfigError, subject=name):
        PushConsumer("c", "127.0.0.1:1", **{name: value})


async def test_opening_without_a_name_server_fails_cleanly(tmp_path: Path) -> None:
    consumer = PushConsumer("c", "127.0.0.1:1")
    consumer.subscribe("T")
    with pytest.raises(RemotingConnectError):
        await consumer.open()
    assert not consumer.is_open
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message_model", "BROADCASTING"),
        ("consume_from", "CONSUME_FROM_FIRST_OFFSET"),
        ("limits", 1000),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(name: str, value: object) -> None:
    """A string for a message model would quietly share what all were to have."""
    with raises(ConfigError, subject=name):
        PushConsumer("c", "127.0.0.1:1", **{name: value})


async def test_an_unknown_filter_type_and_an_invalid_listener_are_refused() -> None:
    consumer = PushConsumer("c", "127.0.0.1:1")
    with pytest.raises(ConfigError):
        consumer.subscribe("T", "a.*", "REGEX")
    with pytest.raises(ConfigError):
        consumer.listen(None)  # type: ignore[arg-type]
