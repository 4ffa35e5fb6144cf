"""A broker is emptied, and topics and groups move to another one, with a ledger of what was sent and consumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.admin.drain import MovedGroup
from rucola.broker.broker import Broker
from rucola.client import (
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from rucola.client import instance as instance_module
from rucola.client.consumer import push_consumer
from rucola.client.producer.queue_selectors import select_by_hash
from rucola.domain.group import SubscriptionGroupConfig
from rucola.domain.pending import DueCounts
from rucola.domain.topic import PERM_READ, PERM_WRITE
from rucola.errors import BrokerError, ConfigError
from rucola.message.properties import DELAY, TIMER_DELIVER_MS
from rucola.protocol.codes import ResponseCode
from rucola.store.tools.check import check
from support.cluster import Cluster, Tally, cluster
from support.errors import raises
from support.waiting import until

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
LATE_MS = 2_000_000_000_000


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_module, "ROUTE_INTERVAL_MS", 100)
    monkeypatch.setattr(push_consumer, "PERSIST_INTERVAL_MS", 10)


@asynccontextmanager
async def two_brokers(
    path: Path, levels: str = "1s 1s 1h"
) -> AsyncIterator[tuple[Cluster, Broker, Broker, AdminClient]]:
    """Their stores are checked at the end."""
    async with cluster(path) as running:
        one, other = [
            await running.start_broker(name, store={"message_delay_level": levels}) for name in ("broker-a", "broker-b")
        ]
        async with AdminClient(running.namesrv) as admin, asyncio.timeout(60):
            yield running, one, other, admin
    for store in running.stores:
        assert check(store) == []


def consumer_of(running: Cluster, received: Tally[bytes], **options: object) -> PushConsumer:
    consumer = PushConsumer("g", running.namesrv, consume_from=FIRST, **options)  # type: ignore[arg-type]
    consumer.subscribe("T")

    async def listen(message: MessageExt) -> None:
        received.add(message.body)

    consumer.listen(listen)
    return consumer


async def test_what_waits_is_counted_by_kind_and_due_time(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (running, broker, _, admin):
        await running.create_topic(broker, "T", queues=2)
        producer = TransactionProducer("p", running.namesrv, check=lambda _: LocalTransactionState.UNKNOW)
        async with producer:
            for number in range(3):
                await producer.send(Message("T", b"%d" % number))
            for _ in range(2):
                await producer.send(Message("T", b"x", properties={DELAY: "3"}))
            await producer.send(Message("T", b"x", properties={TIMER_DELIVER_MS: str(LATE_MS)}))
            for state in (LocalTransactionState.UNKNOW, LocalTransactionState.ROLLBACK_MESSAGE):
                await producer.send_in_transaction(Message("T", b"x"), lambda *_, state=state: state)
            await until(lambda: broker.parts is not None)

            async def half() -> bool:
                return (await admin.brokers.pending(broker.address)).half.total == 1

            await until(half)
            found = await admin.brokers.pending(broker.address)
        assert (found.delayed.counts, found.timed) == ([0, 0, 2, 0, 0], DueCounts([0, 0, 0, 0, 1], LATE_MS))
        assert (found.half.counts, found.unread) == ([0, 1, 0, 0, 0], {"T": 3})
        assert (found.backlogs, found.total) == ([], 4)


async def test_a_broker_is_drained_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    sent: set[bytes] = set()
    late = {DELAY: "1"}
    received: Tally[bytes] = Tally()
    async with two_brokers(tmp_path) as (running, broker, other, admin):
        for one in (broker, other):
            await running.create_topic(one, "T")
        consumer = consumer_of(running, received)
        async with Producer("p", running.namesrv) as producer:

            async def send() -> None:
                for number in range(1_000_000):
                    await producer.send(Message("T", b"%d" % number, properties=late if number % 10 == 0 else {}))
                    sent.add(b"%d" % number)

            sending = asyncio.create_task(send())
            await until(lambda: len(sent) > 100)
            async with consumer:
                states = [state async for state in admin.drain.drain("broker-a", interval_s=0.05, route_s=1.0)]
                assert not states[0].is_drained
                assert any(state.pending.delayed.total for state in states)
                assert states[-1].is_drained
                end = (await admin.brokers.runtime_stats(broker.address))["commitLogMaxOffset"]
                before = len(sent)
                await until(lambda: len(sent) > before + 50)
                assert (await admin.brokers.runtime_stats(broker.address))["commitLogMaxOffset"] == end
                await broker.stop()  # for ever
                before = len(sent)
                await until(lambda: len(sent) > before + 50)
                sending.cancel()
                await received.reach(lambda items: set(items) >= sent)


async def test_a_drain_waits_for_what_only_an_operator_can_end(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (running, broker, _, admin):
        for topic in ("T", "%DLQ%g"):
            await running.create_topic(broker, topic, queues=1)
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("T", b"1"))
            await producer.send(Message("%DLQ%g", b"2"))
        states = admin.drain.drain("broker-a", interval_s=0.01, route_s=0.0)
        first = await anext(states)
        assert (first.pending.dead_letters, first.pending.unread, first.remaining_s) == ({"g": 1}, {"T": 1}, None)
        await admin.offsets.commit(broker.address, "TOOLS_REDRIVE", MessageQueue("%DLQ%g", "broker-a", 0), 1)
        last = [state async for state in states][-1]
        assert last.is_drained
        assert last.pending.unread == {"T": 1}
        with raises(ConfigError):
            await anext(admin.drain.drain("broker-z"))
        assert await admin.drain.only_on("broker-a") == ["T"]


async def test_a_moved_topic_keeps_the_order_of_each_key(tmp_path: Path) -> None:
    """The group is slow, and stopped for a while: the new queues wait for it."""
    sent: list[int] = []
    received: Tally[bytes] = Tally()
    async with two_brokers(tmp_path) as (running, broker, _, admin):
        await running.create_topic(broker, "T", queues=2)
        async with Producer("p", running.namesrv) as producer:

            async def send() -> None:
                for number in range(1_000_000):
                    # A send to a chosen queue is refused until the producer has the new route.
                    while True:
                        try:
                            await producer.send(Message("T", b"%d" % number), select_by_hash(number % 2))
                        except BrokerError as error:
                            if error.code != ResponseCode.NO_PERMISSION:
                                raise
                        else:
                            break
                    sent.append(number)

            sending = asyncio.create_task(send())
            async with consumer_of(running, received, orderly=True):
                await received.reach(20)
            moving = admin.drain.move_topic("T", "broker-a", "broker-b", interval_s=0.05, route_s=0.5)
            assert await anext(moving) >= 0
            before = len(sent)
            await until(lambda: len(sent) > before + 100)
            with raises(ConfigError, subject="g"):  # T waits there
                await admin.groups.create_or_update(broker.address, (await admin.groups.configs(broker.address))["g"])
                await running.create_topic(broker, "U")
                await admin.offsets.commit(broker.address, "g", MessageQueue("U", "broker-a", 0), 0)
                await admin.drain.move_group("g", "broker-a", "broker-b")
            async with consumer_of(running, received, orderly=True):
                assert [waiting async for waiting in moving][-1] == 0
                before = len(sent)
                await until(lambda: len(sent) > before + 20)
                sending.cancel()
                await received.reach(lambda items: {int(body) for body in items} >= set(sent))
    for key in (0, 1):
        mine = [int(body) for body in received.items if int(body) % 2 == key]
        assert list(dict.fromkeys(mine)) == sorted(set(mine))


async def test_a_moved_group_keeps_settings_offsets_and_order_while_it_consumes(tmp_path: Path) -> None:
    """Its topic first. Each tenth message fails once, so that some wait as retries on both brokers."""
    settings = SubscriptionGroupConfig(group_name="g", retry_max_times=7, retry_queue_nums=2)
    received, failed = Tally[MessageExt](), set[bytes]()
    async with two_brokers(tmp_path, "1s 1s 1s") as (running, broker, other, admin):
        await running.create_topic(broker, "T", queues=1)
        await admin.groups.create_or_update(broker.address, settings)

        async def listen(message: MessageExt) -> None:
            if int(message.body) % 10 == 0 and message.body not in failed:
                failed.add(message.body)
                raise RuntimeError("once")
            received.add(message)

        def consumer() -> PushConsumer:
            made = PushConsumer("g", running.namesrv, consume_from=FIRST)
            made.subscribe("T")
            made.listen(listen)
            return made

        async def is_moved() -> bool:
            moved = await admin.drain.move_group("g", "broker-a", "broker-b")
            assert moved.clients == 1
            return moved.is_complete

        async with Producer("p", running.namesrv) as producer:
            async with consumer():
                for number in range(20):
                    await producer.send(Message("T", b"%d" % number))
                with raises(ConfigError, subject="g"):
                    await admin.drain.move_group("g", "broker-a", "broker-b")
                async for _ in admin.drain.move_topic("T", "broker-a", "broker-b", interval_s=0.01, route_s=0.5):
                    pass
                await until(is_moved)
                for number in range(20, 40):
                    await producer.send(Message("T", b"%d" % number))
                await received.reach(lambda items: len({message.body for message in items}) == 40)
                for address in (broker.address, other.address):  # a heartbeat would create it again, without settings
                    assert (await admin.groups.configs(address))["g"] == settings
            assert await admin.drain.move_group("g", "broker-a", "broker-b") == MovedGroup([], 0, 0, 0)
            assert "g" not in await admin.groups.configs(broker.address)
            assert [state async for state in admin.drain.drain("broker-a", interval_s=0.01, route_s=0.0)][-1].is_drained
            await broker.stop()  # for ever
            async with consumer():
                await producer.send(Message("T", b"40"))
                await received.reach(lambda items: items[-1].body == b"40")
    # Each message, and those that did not fail in their order; a restart or a move may deliver some again.
    bodies = list(dict.fromkeys(int(message.body) for message in received.items))
    assert sorted(bodies) == list(range(41))
    assert [body for body in bodies if body % 10] == [number for number in range(40) if number % 10]


async def test_a_move_that_is_continued_skips_no_message(tmp_path: Path) -> None:
    """What arrives at the destination in between is behind the offsets that its groups got."""
    queue = MessageQueue("T", "broker-a", 0)
    async with two_brokers(tmp_path) as (running, broker, other, admin):
        await running.create_topic(broker, "T", queues=1)
        for group in ("g", "h"):
            await admin.offsets.commit(broker.address, group, queue, 0)
        moving = admin.drain.move_topic("T", "broker-a", "broker-b", interval_s=0.01, route_s=0.0)
        await anext(moving)
        await moving.aclose()
        # As if it had ended before the source was closed.
        config = (await admin.topics.configs(broker.address))["T"]
        config.perm = PERM_READ | PERM_WRITE
        await admin.topics.create_or_update(broker.address, config)
        async with Producer("p", running.namesrv) as producer:
            results = [await producer.send(Message("T", b"%d" % number)) for number in range(20)]
        assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}
        moving = admin.drain.move_topic("T", "broker-a", "broker-b", interval_s=0.01, route_s=0.0)
        await anext(moving)
        await moving.aclose()
        committed = [(one.group, one.offset) for one in await admin.offsets.all(other.address) if one.topic == "T"]
        assert sorted(committed) == [("g", 0), ("h", 0)]
        assert (await admin.topics.configs(broker.address))["T"].perm == PERM_READ


async def test_a_topic_that_both_have_is_drained_without_a_change_of_the_other(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (running, broker, other, admin):
        await running.create_topic(broker, "T", queues=1)
        await running.create_topic(other, "T", queues=4)
        with raises(ConfigError, subject="T"):
            await anext(admin.drain.move_topic("T", "broker-a", "broker-b"))
        config = (await admin.topics.configs(broker.address))["T"]
        config.perm = PERM_READ
        await admin.topics.create_or_update(broker.address, config)
        assert [n async for n in admin.drain.move_topic("T", "broker-a", "broker-b", interval_s=0.01, route_s=0.0)] == [
            0
        ]
        left = (await admin.topics.configs(other.address))["T"]
        assert (left.read_queue_nums, left.write_queue_nums, left.perm) == (4, 4, PERM_READ | PERM_WRITE)


async def test_retries_and_messages_that_a_group_has_not_begun_with_are_waited_for(tmp_path: Path) -> None:
    """Groups without an offset: one that is connected, and those of retries, by POP as well."""
    async with two_brokers(tmp_path) as (running, broker, _, admin):
        for topic in ("T", "%RETRY%g", "%RETRY%g_T"):
            await running.create_topic(broker, topic, queues=1)
        await admin.groups.create_or_update(broker.address, SubscriptionGroupConfig(group_name="g"))
        async with Producer("p", running.namesrv) as producer:
            for topic in ("T", "%RETRY%g", "%RETRY%g_T"):
                await producer.send(Message(topic, b"x"))
        await admin.groups.delete(broker.address, "g_T")  # the send has created it
        found = await admin.brokers.pending(broker.address)
        assert {(one.group, one.topic) for one in found.backlogs} == {("g", "%RETRY%g"), ("g", "%RETRY%g_T")}
        assert found.unread == {"T": 1}
        consumer = PushConsumer("h", running.namesrv, consume_from=FIRST)
        consumer.subscribe("T")
        async with consumer:
            found = await admin.brokers.pending(broker.address)
            assert ("h", "T") in {(one.group, one.topic) for one in found.backlogs}
