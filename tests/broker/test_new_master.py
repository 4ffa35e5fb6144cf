"""What a new master takes over: delayed messages, open transactions, locks of queues in order, and POP."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola.broker.broker import Broker, wall_clock_ms
from rucola.client import LocalTransactionState, Message, MessageExt, Producer, PullConsumer, TransactionProducer
from rucola.message.recall import RecallHandle
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.send import RecallMessageRequestHeader
from rucola.store.config import BrokerRole
from support.cluster import HOST, Cluster, Tally
from support.consumers import consumer_of, send
from support.pop import ack, ack_all, change, changed, pop, receive
from support.replication import follows, pair
from support.waiting import until

pytestmark = pytest.mark.slow

SYNC = {"broker_role": BrokerRole.SYNC_MASTER, "message_delay_level": "1s 6s"}
SLAVE = {"message_delay_level": "1s 6s"}
EAGER = {"transaction_time_out": 500, "transaction_check_interval": 50}
"""A broker asks soon for the outcome of a transaction."""

Promote = Callable[[], Awaitable[None]]


@asynccontextmanager
async def promotion(path: Path) -> AsyncIterator[tuple[Cluster, Broker, Broker, Promote]]:
    """A pair, and a function that stops the master once its slave has everything, and promotes the slave.

    At the end the old master follows, and both logs are equal.
    """
    async with pair(path, SYNC, SLAVE, **EAGER) as (running, first, second):

        async def promote() -> None:
            await until(lambda: second.role.position() == first.role.position())
            await first.stop()
            await second.role.become_master(2, None)

        yield running, first, second, promote
        await first.start()
        await first.role.become_slave(2, 1, f"{HOST}:{second.config.ha_listen_port}")
        await until(lambda: first.role.position() == second.role.position())


async def stored(running: Cluster) -> Counter[bytes]:
    """The bodies of all visible messages of T."""
    found: Counter[bytes] = Counter()
    async with PullConsumer("check", running.namesrv) as consumer:
        for queue in await consumer.queues("T"):
            offset = 0
            while messages := (await consumer.pull(queue, offset)).messages:
                found.update(message.body for message in messages)
                offset = messages[-1].queue_offset + 1
    return found


async def test_it_delivers_delayed_messages_once(tmp_path: Path) -> None:
    """Those that the old master has scheduled, and no more those that it had delivered at the end."""
    async with promotion(tmp_path) as (running, _, second, promote):
        async with Producer("p", running.namesrv) as producer:
            for number in range(10):
                await producer.send(Message("T", b"soon %d" % number, properties={"DELAY": "1"}))
                await producer.send(Message("T", b"late %d" % number, properties={"DELAY": "2"}))
        soon = {b"soon %d" % number: 1 for number in range(10)}
        late = {b"late %d" % number: 1 for number in range(10)}

        async def all_soon() -> bool:
            return await stored(running) == soon

        async def all_late() -> bool:
            return (await stored(running)).keys() == soon.keys() | late.keys()

        await until(all_soon)
        await promote()
        assert second.store_config.broker_role is BrokerRole.SYNC_MASTER
        await until(all_late)
        assert await stored(running) == soon | late


async def test_it_delivers_no_recalled_message(tmp_path: Path) -> None:
    async with promotion(tmp_path) as (running, first, second, promote):
        old = running.peer(first)
        await follows(first, second)
        due_ms = wall_clock_ms() + 6000
        for key in ("recalled", "kept"):
            properties = f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01{key}\x02"
            assert (await old.send(key.encode(), properties=properties)).code == ResponseCode.SUCCESS
        handle = RecallHandle("T", first.config.broker_name, due_ms, "recalled")
        recall = RecallMessageRequestHeader(topic="T", recall_handle=str(handle))
        assert (await old.ask(RequestCode.RECALL_MESSAGE, recall)).code == ResponseCode.SUCCESS
        await promote()

        async def is_kept() -> bool:
            return b"kept" in await stored(running)

        await until(is_kept)
        assert await stored(running) == {b"kept": 1}


async def test_it_asks_for_the_outcome_of_open_transactions(tmp_path: Path) -> None:
    """It commits or rolls back what is open, and leaves what has ended."""
    asked: Tally[bytes] = Tally()
    is_known = False

    def outcome(message: MessageExt) -> LocalTransactionState:
        asked.add(message.body)
        if not is_known:
            return LocalTransactionState.UNKNOW
        is_commit = message.body.startswith(b"commit")
        return LocalTransactionState.COMMIT_MESSAGE if is_commit else LocalTransactionState.ROLLBACK_MESSAGE

    async with promotion(tmp_path) as (running, _, _, promote):
        async with TransactionProducer("p", running.namesrv, check=outcome) as producer:

            async def begin(body: bytes, state: LocalTransactionState) -> None:
                await producer.send_in_transaction(Message("T", body), lambda message: state)

            for number in range(3):
                await begin(b"ended %d" % number, LocalTransactionState.COMMIT_MESSAGE)
                await begin(b"given up %d" % number, LocalTransactionState.ROLLBACK_MESSAGE)
                await begin(b"commit %d" % number, LocalTransactionState.UNKNOW)
                await begin(b"roll back %d" % number, LocalTransactionState.UNKNOW)
            await promote()
            is_known, before = True, len(asked.items)
            await producer.send(Message("T", b"plain"))  # an idle client looks for another master every 30 s only
            is_open = {b"%b %d" % (name, number) for name in (b"commit", b"roll back") for number in range(3)}
            expected = dict.fromkeys(
                [b"plain", *(b"%b %d" % (name, number) for name in (b"commit", b"ended") for number in range(3))], 1
            )

            async def has_ended() -> bool:
                return await stored(running) == expected

            await until(has_ended)
            await asked.reach(lambda items: set(items[before:]) == is_open)
        assert set(asked.items) == is_open


async def test_it_grants_the_locks_of_queues_consumed_in_order(tmp_path: Path) -> None:
    """Two members go on with all queues: nothing is skipped, and no message overtakes another one of its queue."""
    seen: Tally[tuple[int, int]] = Tally()

    def listen(message: MessageExt) -> None:
        seen.add((message.queue_id, message.queue_offset))

    def is_complete(count: int) -> Callable[[list[tuple[int, int]]], bool]:
        return lambda items: len(set(items)) == count

    async with promotion(tmp_path) as (running, _, _, promote):
        await send(running, range(100))
        members = [consumer_of(running, orderly=True) for _ in range(2)]
        for member in members:
            member.listen(listen)
        async with members[0], members[1]:
            await seen.reach(is_complete(100))
            await promote()
            await send(running, range(100, 200))
            await until(lambda: is_complete(200)(seen.items), 40)
        for queue_id in range(4):
            first_times = list(dict.fromkeys(offset for queue, offset in seen.items if queue == queue_id))
            assert first_times == sorted(first_times) == list(range(len(first_times)))


async def test_it_knows_who_holds_what_by_pop(tmp_path: Path) -> None:
    """An acknowledgement that was answered counts, a held message is nobody else's, and a stale handle stays stale."""
    async with promotion(tmp_path) as (running, first, second, promote):
        old, new = running.peer(first), running.peer(second)
        await follows(first, second)
        for body in (b"acked", b"held", b"changed", b"retried"):
            assert (await old.send(body)).code == ResponseCode.SUCCESS
        acked, held, before, retried = await receive(old)
        assert (await pop(new)).code == ResponseCode.SERVICE_NOT_AVAILABLE, "a slave"
        assert (await ack(old, acked)).code == ResponseCode.SUCCESS
        after = changed(before, await change(old, before, 120_000))
        await change(old, retried, 0)
        (retried,) = await receive(old, poll_time=20_000)
        await promote()
        assert await new.committed() == 1
        assert await receive(new) == []
        alone = ResponseCode.SLAVE_NOT_AVAILABLE
        assert (await ack(new, acked)).code == alone, "it counts, and no slave has it"
        assert (await ack(new, before)).code == ResponseCode.NO_MESSAGE
        assert (await ack_all(new, [held, after, retried])).code == alone
        assert await new.committed() == 4
        assert await new.committed(topic="%RETRY%g_T") == 1
