"""A consumer that receives by POP, and acknowledges message by message."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from rucola.client import BrokerError, ConfigError, Message, Producer, PullConsumer, SimpleConsumer
from rucola.client.consumer import decoding, pop_requests, simple_consumer
from rucola.message import properties
from rucola.protocol.codes import ResponseCode
from rucola.protocol.pop import parse_extra_info
from support.cluster import cluster
from support.errors import raises
from support.waiting import until


async def send(namesrv: str, count: int, topic: str = "T") -> None:
    async with Producer("p", namesrv) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number))


async def test_more_members_than_queues_share_the_messages_of_all_brokers(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        for name in ("a", "b"):
            broker = await running.start_broker(name)
            await running.peer(broker).alter_topic(queues=1)
        await send(running.namesrv, 60)
        seen: Counter[bytes] = Counter()

        async def consume(member: SimpleConsumer) -> None:
            while sum(seen.values()) < 60:
                messages = await member.receive("T", 2, wait_ms=100)
                await member.ack(messages)
                seen.update(message.body for message in messages)

        members = [SimpleConsumer("g", running.namesrv) for _ in range(5)]
        for member in members:
            await member.open()
        await asyncio.gather(*map(consume, members))
        assert seen == {b"%d" % number: 1 for number in range(60)}
        for member in members:
            await member.close()
        async with PullConsumer("g", running.namesrv) as consumer:
            for queue in await consumer.queues("T"):
                assert await consumer.committed(queue) == await consumer.max_offset(queue)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_given_back_is_received_again_until_it_is_acknowledged(tmp_path: Path, orderly: bool) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        await running.peer(broker).alter_topic(queues=1)
        await send(running.namesrv, 2)
        async with SimpleConsumer("g", running.namesrv, orderly=orderly) as consumer:
            first, second = await consumer.receive("T")
            await consumer.change_invisible(first, 120_000)
            await consumer.ack([first, second])
            await send(running.namesrv, 1)
            (held,) = await consumer.receive("T")
            await consumer.change_invisible(held, 0)
            (again,) = await consumer.receive("T", wait_ms=20_000)
            assert (again.topic, again.body, again.reconsume_times) == ("T", b"0", 1)
            await consumer.ack(again)
            assert await consumer.receive("T", wait_ms=0) == []


async def test_a_message_that_is_not_held_is_not_acknowledged(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        await running.peer(broker).alter_topic(queues=1)
        await send(running.namesrv, 1)
        async with SimpleConsumer("g", running.namesrv) as consumer, PullConsumer("g", running.namesrv) as puller:
            lost = await consumer.receive("T", attempt_id="x")
            again = await consumer.receive("T", attempt_id="x")
            with raises(BrokerError) as refused:
                await consumer.ack(lost)
            assert refused.value.code == ResponseCode.NO_MESSAGE
            await consumer.ack(again)
            (queue,) = await puller.queues("T")
            (pulled,) = (await puller.pull(queue, 0)).messages
            with raises(ConfigError):
                await consumer.ack(pulled)


async def test_a_new_group_begins_at_the_end_if_it_says_so(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        await running.peer(broker).alter_topic(queues=1)
        await send(running.namesrv, 1)
        async with SimpleConsumer("g", running.namesrv, begin_at_end=True) as consumer:
            waiting = asyncio.ensure_future(consumer.receive("T", wait_ms=20_000))

            async def is_held() -> bool:
                return await running.peer(broker).committed() == 1

            await until(is_held)
            await send(running.namesrv, 2)
            messages = await waiting + await consumer.receive("T", wait_ms=0)
            assert [message.body for message in messages] == [b"0", b"1"]


async def test_messages_of_several_topics_and_far_apart_are_acknowledged_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_requests, "_MAX_SPAN", 2)
    monkeypatch.setattr(simple_consumer, "MAX_ACKED", 3)
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        for topic in ("T", "U"):
            await running.create_topic(broker, topic, 1)
            await send(running.namesrv, 5, topic)
        async with SimpleConsumer("g", running.namesrv) as consumer:
            await consumer.ack(await consumer.receive("T") + await consumer.receive("U"))
        for topic in ("T", "U"):
            assert await running.peer(broker).committed(topic=topic) == 5


async def test_a_message_cannot_bring_a_handle_of_its_own(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        await running.peer(broker).alter_topic(queues=1)
        forged = {properties.POP_CK: "0 1 60000 0 0 broker-a 0 99"}
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("T", b"0", properties=forged))
        async with SimpleConsumer("g", running.namesrv) as consumer:
            (message,) = await consumer.receive("T")
            handle = parse_extra_info(message.properties[properties.POP_CK])
            assert (handle.start_offset, handle.queue_offset) == (0, 0)
            await consumer.ack(message)
        assert await running.peer(broker).committed() == 1


async def test_what_would_expand_beyond_the_limit_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "MAX_PULLED_SIZE", 150_000)
    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        await running.peer(broker).alter_topic(queues=1)
        async with Producer("p", running.namesrv) as producer:
            for number in range(3):
                await producer.send(Message("T", b"%d" % number * 100_000))
        async with SimpleConsumer("g", running.namesrv) as consumer:
            first = await consumer.receive("T")
            assert [message.body[:1] for message in first] == [b"0", b"1"]
            (third,) = await consumer.receive("T")
            assert (third.body, third.reconsume_times) == (b"2" * 100_000, 0)
            await consumer.ack([*first, third])
