"""Consuming in order: one message of a queue at a time, everywhere in the group, and none overtakes another."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola.client import MessageExt, MessageModel, MessageQueue, PullConsumer, PushConsumer, ReconsumeLater
from rucola.client import SuspendCurrentQueueAMoment as Suspend
from rucola.client.consumer import assignment, queue_locks
from rucola.client.instance import ClientInstance
from rucola.protocol.codes import RequestCode, ResponseCode
from support.cluster import Tally, cluster
from support.consumers import (
    LockingBroker,
    cluster_with_topic,
    committed,
    consumer_of,
    other_locks,
    record_of,
    send,
    take,
)
from support.waiting import until


class InOrder:
    """A listener that writes down what it gets, and notices two calls at a time for one queue."""

    def __init__(self) -> None:
        self.seen: Tally[tuple[MessageQueue, int]] = Tally()
        self.at_work: set[MessageQueue] = set()
        self.together: list[MessageQueue] = []

    async def __call__(self, message: MessageExt) -> None:
        queue = MessageQueue(message.topic, "broker-a", message.queue_id)
        if queue in self.at_work:
            self.together.append(queue)
        self.at_work.add(queue)
        await asyncio.sleep(0)
        self.at_work.discard(queue)
        self.seen.add((queue, message.queue_offset))

    async def listen(self, message: MessageExt) -> None:
        await self(message)

    def by_queue(self) -> dict[MessageQueue, list[int]]:
        offsets = defaultdict(list)
        for queue, offset in self.seen.items:
            offsets[queue].append(offset)
        return offsets


async def test_queues_are_consumed_in_parallel_and_each_in_order(tmp_path: Path) -> None:
    listener = InOrder()
    async with cluster_with_topic(tmp_path, range(200)) as (running, broker):
        consumer = consumer_of(running, orderly=True)
        consumer.listen(listener.listen)
        async with consumer:
            await listener.seen.reach(200)
            held = consumer.operations.process_queues()
            assert all(info.locked and info.last_lock_timestamp > 0 for info in held.values())
            assert consumer.operations.settings()["PROP_CONSUMEORDERLY"] == "true"
            assert await other_locks(running, broker.address, "other", RequestCode.LOCK_BATCH_MQ) == []
        assert await committed(running) == 200
        assert len(await other_locks(running, broker.address, "other", RequestCode.LOCK_BATCH_MQ)) == 4
    assert listener.together == []
    assert len(listener.by_queue()) == 4
    assert all(offsets == sorted(set(offsets)) for offsets in listener.by_queue().values())


async def test_a_failure_suspends_only_its_queue_and_the_message_is_retried_first(tmp_path: Path) -> None:
    seen: Tally[tuple[int, int, int]] = Tally()

    async def listen(message: MessageExt) -> None:
        seen.add((message.queue_id, message.queue_offset, message.reconsume_times))
        if message.queue_id == 1 and message.queue_offset == 2 and message.reconsume_times < 3:
            raise [ValueError("not yet"), Suspend(1), ReconsumeLater()][message.reconsume_times]

    async with cluster_with_topic(tmp_path, queues=2) as (running, _):
        await send(running, range(20))
        consumer = consumer_of(running, orderly=True, suspend_current_queue_ms=10, concurrency=2)
        consumer.listen(listen)
        async with consumer:
            await seen.reach(23)
        assert await committed(running) == 20
    of_queue = {queue_id: [item[1:] for item in seen.items if item[0] == queue_id] for queue_id in (0, 1)}
    assert of_queue[0] == [(offset, 0) for offset in range(10)]
    assert of_queue[1] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (2, 1),
        (2, 2),
        (2, 3),
        *((offset, 0) for offset in range(3, 10)),
    ]


async def test_a_message_with_too_many_retries_is_dead_lettered_and_the_rest_follow(tmp_path: Path) -> None:
    seen: Tally[bytes] = Tally()

    async def listen(message: MessageExt) -> None:
        seen.add(message.body)
        if message.body == b"1":
            raise ValueError("never")

    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        consumer = consumer_of(running, orderly=True, suspend_current_queue_ms=10, max_reconsume_times=2)
        consumer.listen(listen)
        async with consumer:
            assert await seen.reach(5) == [b"0", b"1", b"1", b"1", b"2"]
        assert await committed(running) == 3
        async with PullConsumer("reader", running.namesrv) as reader:
            (queue,) = await reader.queues("%DLQ%c")
            (dead,) = (await reader.pull(queue, 0)).messages
        assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"1", "T")


async def test_by_default_an_ordered_message_is_retried_without_limit(tmp_path: Path) -> None:
    tries: Tally[int] = Tally()

    async def listen(message: MessageExt) -> None:
        tries.add(message.reconsume_times)
        raise ValueError("never")

    async with cluster_with_topic(tmp_path, range(2), queues=1) as (running, _):
        consumer = consumer_of(running, orderly=True, suspend_current_queue_ms=10)
        consumer.listen(listen)
        async with consumer:
            assert (await tries.reach(20))[:20] == list(range(20))
        assert await committed(running) == 0


async def test_an_ordered_batch_is_retried_without_its_completed_messages(tmp_path: Path) -> None:
    batches: Tally[list[int]] = Tally()

    async def listen(messages: list[MessageExt]) -> None:
        batches.add([message.queue_offset for message in messages])
        if len(batches.items) == 1:
            raise ReconsumeLater(ack_index=1)

    async with cluster_with_topic(tmp_path, range(10), queues=1) as (running, _):
        consumer = consumer_of(running, orderly=True, suspend_current_queue_ms=10)
        consumer.listen_to_batches(listen, 4)
        async with consumer:
            await batches.reach(lambda batches: bool(batches) and batches[-1][-1] == 9)
        assert await committed(running) == 10
    assert batches.items[:2] == [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert [offset for batch in batches.items[1:] for offset in batch] == list(range(2, 10))


async def test_an_ordered_iteration_gets_unacknowledged_messages_again(tmp_path: Path) -> None:
    async with cluster_with_topic(tmp_path, range(3), queues=1) as (running, _):
        async with consumer_of(running, orderly=True, suspend_current_queue_ms=10) as consumer:
            async for message in consumer:
                assert message.body == b"0"
                break
            bodies = []
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 1:
                    await consumer.reconsume_later(message)
                if len(bodies) == 4:
                    consumer.ack(message)
                    break
            assert bodies == [b"0", b"0", b"1", b"2"]
        assert await committed(running) == 3


@pytest.mark.slow
async def test_a_queue_moves_to_another_member_only_when_nothing_is_in_flight(tmp_path: Path) -> None:
    """The first member is held up in every queue while the second comes; what it has in hand ends before the rest."""

    begun: Tally[tuple[str, int, int]] = Tally()
    ended: Tally[tuple[str, int, int]] = Tally()
    may_end = asyncio.Event()

    def listener(member: str) -> object:
        async def listen(message: MessageExt) -> None:
            begun.add((member, message.queue_id, message.queue_offset))
            await may_end.wait()
            ended.add((member, message.queue_id, message.queue_offset))

        return listen

    async with cluster_with_topic(tmp_path, range(40)) as (running, _):
        first, second = (consumer_of(running, orderly=True) for _ in range(2))
        first.listen(listener("first"))  # type: ignore[arg-type]
        second.listen(listener("second"))  # type: ignore[arg-type]
        async with first:
            await begun.reach(4)
            async with second:
                async with asyncio.timeout(20):
                    while len(first.queues) != 2:
                        await first.rebalanced()
                await second.rebalanced()
                assert not second.queues
                assert {member for member, _, _ in begun.items} == {"first"}
                may_end.set()
                await ended.reach(40)
        assert await committed(running) == 40
    for queue_id in range(4):
        offsets = [offset for _, queue, offset in ended.items if queue == queue_id]
        assert offsets == list(range(10))
    assert {member for member, _, _ in ended.items} == {"first", "second"}


async def test_order_is_kept_while_members_join_and_leave(tmp_path: Path) -> None:
    """Nothing overtakes and, as all of them leave properly, nothing even comes twice."""

    listener = InOrder()
    async with cluster_with_topic(tmp_path, range(100)) as (running, _):
        members = [consumer_of(running, orderly=True) for _ in range(4)]
        for member in members:
            member.listen(listener.listen)
        await members[0].open()
        for turn, member in enumerate(members[1:], 1):
            await listener.seen.reach(100 * turn - 50)
            await member.open()
            await send(running, range(100 * turn, 100 * turn + 100))
            if turn > 1:
                await members[turn - 2].close()
        await listener.seen.reach(400)
        for member in members:
            await member.close()
        assert await committed(running) == 400
    assert listener.together == []
    assert all(offsets == list(range(100)) for offsets in listener.by_queue().values())


class Held:
    """An ordered consumer whose first delivery has not ended, and the broker that gives it its lock."""

    def __init__(self, broker: LockingBroker, consumer: PushConsumer) -> None:
        self.broker = broker
        self.consumer = consumer
        self.seen: Tally[int] = Tally()
        self.may_end = asyncio.Event()
        consumer.listen(self.listen)

    async def listen(self, message: MessageExt) -> None:
        self.seen.add(message.queue_offset)
        await self.may_end.wait()

    async def stops(self) -> None:
        """Wait until the lock is gone, end the delivery, and see that nothing follows while the consumer asks again."""
        await until(lambda: not any(info.locked for info in self.consumer.operations.process_queues().values()))
        self.may_end.set()
        await self.broker.asked.reach(len(self.broker.asked.items) + 2)  # by whoever wants to go on
        assert self.seen.items == [0]


@asynccontextmanager
async def held(path: Path, count: int) -> AsyncIterator[Held]:
    async with cluster(path) as running:
        broker = LockingBroker([record_of(i, b"%d" % i) for i in range(count)])
        await broker.start(running)
        holding = Held(broker, consumer_of(running, orderly=True))
        async with holding.consumer:
            await holding.seen.reach(1)
            broker.gives = False
            yield holding


async def test_a_lost_lock_stops_its_queue_until_it_is_held_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other holder commits meanwhile: what that one has consumed does not come again."""
    monkeypatch.setattr(queue_locks, "LOCK_INTERVAL_MS", 5)
    monkeypatch.setattr(assignment, "RELOCK_PAUSE_MS", 5)

    async with held(tmp_path, 6) as holding:
        await holding.stops()
        holding.broker.committed = 4
        holding.broker.gives = True
        assert await holding.seen.reach(3) == [0, 4, 5]
    assert holding.broker.committed == 6
    assert holding.broker.unlocked
    assert "was lost to another member" in caplog.text


async def test_a_queue_stops_when_its_connection_closes_until_it_is_locked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that restarted may know no holders any more, and grant the queue to another member."""
    monkeypatch.setattr(assignment, "RELOCK_PAUSE_MS", 5)

    async with held(tmp_path, 3) as holding:
        holding.broker.connections[-1].close()
        await holding.stops()
        holding.broker.gives = True
        assert await holding.seen.reach(3) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True], ids=["broker knows the holders", "broker forgets the holders"])
async def test_no_two_members_have_one_queue_across_restarts_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """The first member to reconnect is alone in its group, and is allocated the queues of all others."""
    may_reconnect = asyncio.Event()
    may_reconnect.set()

    def delay_heartbeats(instance: ClientInstance) -> None:
        send_heartbeats = instance.send_heartbeats

        async def delayed(*arguments: Any, **options: Any) -> frozenset[str]:
            await may_reconnect.wait()
            return await send_heartbeats(*arguments, **options)

        monkeypatch.setattr(instance, "send_heartbeats", delayed)

    in_flight: defaultdict[int, set[str]] = defaultdict(set)
    together: list[tuple[int, set[str]]] = []
    begun: Tally[tuple[str, int, int]] = Tally()
    may_end = asyncio.Event()

    def listener(member: str) -> object:
        async def listen(message: MessageExt) -> None:
            in_flight[message.queue_id].add(member)
            if len(in_flight[message.queue_id]) > 1:
                together.append((message.queue_id, set(in_flight[message.queue_id])))
            begun.add((member, message.queue_id, message.queue_offset))
            await may_end.wait()
            in_flight[message.queue_id].discard(member)

        return listen

    async with cluster_with_topic(tmp_path, queues=6) as (running, broker):
        members = [consumer_of(running, orderly=True) for _ in range(3)]
        for number, member in enumerate(members):
            member.listen(listener(str(number)))  # type: ignore[arg-type]
        async with AsyncExitStack() as stack:
            for member in members:
                await stack.enter_async_context(member)
            for member in members[1:]:
                delay_heartbeats(member.instance)
            for turn in range(2):
                await until(lambda: all(len(member.queues) == 2 for member in members))
                may_end.clear()
                await send(running, range(30 * turn, 30 * turn + 30))
                await begun.reach(30 * turn + 6)
                await broker.stop()
                may_reconnect.clear()
                if forgets:
                    (tmp_path / "broker-a/config/queueLocks.json").unlink()
                broker = await running.start_broker(port=broker.config.listen_port)
                await members[0].rebalanced()
                await members[0].rebalanced()  # it has not got the locks of the others
                assert len(begun.items) == 30 * turn + 6
                may_reconnect.set()
                may_end.set()
                await begun.reach(30 * turn + 30)
        assert await committed(running) == 60
    assert together == []
    for queue_id in range(6):
        assert [offset for _, queue, offset in begun.items if queue == queue_id] == list(range(10))


async def test_a_held_lock_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "LOCK_INTERVAL_MS", 5)

    async with cluster(tmp_path) as running:
        broker = LockingBroker([record_of(0, b"0")])
        await broker.start(running)
        async with consumer_of(running, orderly=True) as consumer:
            assert await take(consumer, 1) == [0]
            asked = await broker.asked.reach(len(broker.asked.items) + 4)
            assert set(asked[-1]) == consumer.queues
        assert broker.unlocked


async def test_locks_are_kept_until_they_expire_while_the_broker_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with cluster(tmp_path) as running:
        broker = LockingBroker([record_of(0, b"0")])
        await broker.start(running)
        async with consumer_of(running, orderly=True) as consumer:
            assert await take(consumer, 1) == [0]
            locks = consumer._locks
            assert locks is not None
            (queue,) = consumer.queues
            broker.processors[RequestCode.LOCK_BATCH_MQ] = lambda _, command: command.response(
                ResponseCode.SYSTEM_ERROR, remark="as told"
            )
            await locks.lock([queue])
            assert locks.holds(queue)
            monkeypatch.setattr(queue_locks, "LOCK_LIFE_MS", 0)
            assert not locks.holds(queue)
    assert "group c: request of locks at broker broker-a failed, retrying" in caplog.text


async def test_ordered_broadcasting_needs_no_lock(tmp_path: Path) -> None:
    listener = InOrder()
    async with cluster_with_topic(tmp_path, range(40)) as (running, broker):
        assert len(await other_locks(running, broker.address, "other", RequestCode.LOCK_BATCH_MQ)) == 4
        consumer = consumer_of(
            running, orderly=True, message_model=MessageModel.BROADCASTING, offsets_root=tmp_path / "offsets"
        )
        consumer.listen(listener.listen)
        async with consumer:
            await listener.seen.reach(40)
    assert listener.together == []
    assert all(offsets == list(range(10)) for offsets in listener.by_queue().values())
