"""Locks on queues, with a clock that the test winds, and over the wire as C++ clients ask."""

from __future__ import annotations

import errno
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from rucola import fastjson, slices
from rucola.broker.tables.queue_locks import CLIENT_TRUST_MS, LOCK_LIFE_MS, QueueLockTable
from rucola.domain.client import ConsumerData, HeartbeatData
from rucola.domain.queue import LockedQueues, MessageQueue
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.lock import LockBatchResponseBody
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Processor
from support.broker_peer import broker_peer
from support.cluster import Tally
from support.consumers import other_locks
from support.faults import refusing
from support.replication import caught_up, pair, send
from support.waiting import until

Q0, Q1, Q2 = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(3))


def lock_table(path: Path, now_ms: int = 0) -> QueueLockTable:
    """A table with the locks of the file in `path`, which has every change of it at once."""

    def write() -> None:
        table.snapshot_writer()()

    table = QueueLockTable(path / "queueLocks.json", write)
    table.load(now_ms)
    return table


def test_a_lock_belongs_to_one_member_of_a_group(tmp_path: Path) -> None:
    locks = lock_table(tmp_path)
    assert locks.lock("g", "a", [Q0, Q1], 0) == [Q0, Q1]
    assert locks.lock("g", "b", [Q0, Q2], 1) == [Q2]
    assert locks.lock("other", "b", [Q0], 1) == [Q0]
    assert locks.lock("g", "a", [Q0, Q2], 2) == [Q0]


def test_a_queue_that_is_named_twice_is_locked_once(tmp_path: Path) -> None:
    assert lock_table(tmp_path).lock("g", "a", [Q0, Q1, Q0], 0) == [Q0, Q1]


def test_only_the_holder_can_release_a_lock(tmp_path: Path) -> None:
    locks = lock_table(tmp_path)
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.unlock("g", "b", [Q0, Q1])
    assert locks.lock("g", "b", [Q0, Q1], 1) == []
    locks.unlock("g", "a", [Q0, Q2])
    assert locks.lock("g", "b", [Q0, Q1], 2) == [Q0]


def test_a_lock_that_is_not_renewed_can_be_taken(tmp_path: Path) -> None:
    locks = lock_table(tmp_path)
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.lock("g", "a", [Q1], 30_000)
    assert locks.lock("g", "b", [Q0, Q1], LOCK_LIFE_MS) == []
    assert locks.lock("g", "b", [Q0, Q1], LOCK_LIFE_MS + 1) == [Q0]
    assert locks.lock("g", "a", [Q0, Q1], LOCK_LIFE_MS + 2) == [Q1]


def test_expired_locks_are_removed(tmp_path: Path) -> None:
    locks = lock_table(tmp_path)
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.lock("g", "a", [Q1], 1)
    slices.run(locks.expire_steps(LOCK_LIFE_MS + 1))
    assert len(locks) == 1
    assert locks.lock("g", "b", [Q1], LOCK_LIFE_MS + 1) == []


async def test_lock_requests_are_answered(tmp_path: Path) -> None:
    body = b'{"clientId":"a","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":1,"topic":"T"}]}\n'
    async with broker_peer(tmp_path) as peer:
        (held,) = fastjson.loads((await peer.ask(RequestCode.LOCK_BATCH_MQ, body=body)).body)["lockOKMQSet"]
        assert held["queueId"] == 1
        wrong = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=b'{"clientId":"a"}')
        assert (wrong.code, "consumerGroup" in (wrong.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_a_release_names_the_client_that_was_refused_last(tmp_path: Path) -> None:
    locks = lock_table(tmp_path)
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.lock("g", "b", [Q0, Q1, Q2], 1)
    locks.lock("g", "c", [Q1], 2)
    assert locks.unlock("g", "b", [Q0]) == set()
    assert locks.unlock("g", "a", [Q0, Q1, Q0]) == {"b", "c"}
    locks.lock("g", "a", [Q0, Q1], 3)
    assert locks.unlock("g", "a", [Q0, Q1]) == set()


async def test_the_client_that_was_refused_a_lock_is_notified_of_its_release(tmp_path: Path) -> None:
    """Otherwise a member that asked before the holder let go would begin at its next rebalance, 20 s later."""
    async with broker_peer(tmp_path) as peer, AsyncExitStack() as stack:
        notified: dict[str, Tally[str]] = {}
        clients: dict[str, RemotingClient] = {}

        async def ask(client_id: str, code: RequestCode, body: msgspec.Struct) -> RemotingCommand:
            return await clients[client_id].invoke_ok(
                peer.broker.address, RemotingCommand.request(code, body=encode_body(body))
            )

        def note(told: Tally[str]) -> Processor:
            return lambda _, command: told.add(command.ext_fields["consumerGroup"])

        async def join(client_id: str) -> None:
            told = notified[client_id] = Tally()
            client = clients[client_id] = RemotingClient({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: note(told)})
            stack.push_async_callback(client.close)
            members = HeartbeatData(client_id=client_id, consumer_data_set=[ConsumerData(group_name="g")])
            await ask(client_id, RequestCode.HEART_BEAT, members)

        async def held(client_id: str) -> list[MessageQueue]:
            request = LockedQueues(client_id=client_id, consumer_group="g", mq_set=[Q0, Q1])
            answer = await ask(client_id, RequestCode.LOCK_BATCH_MQ, request)
            return decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set

        for client_id in ("a", "b", "c"):
            await join(client_id)
        for number, told in enumerate(notified.values()):
            await told.reach(3 - number)  # of members that joined
        assert (await held("a"), await held("b")) == ([Q0, Q1], [])
        release = LockedQueues(client_id="a", consumer_group="g", mq_set=[Q0, Q1])
        await ask("a", RequestCode.UNLOCK_BATCH_MQ, release)
        assert await notified["b"].reach(3) == ["g"] * 3
        assert await held("b") == [Q0, Q1]
        assert [len(told.items) for told in notified.values()] == [3, 3, 1]


@pytest.mark.parametrize("number_of_restarts", [1, 2])
def test_after_a_restart_a_lock_is_granted_to_nobody_else_while_its_holder_may_consume(
    tmp_path: Path, number_of_restarts: int
) -> None:
    locks = lock_table(tmp_path)
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.lock("g", "b", [Q2], 0)
    locks.unlock("g", "b", [Q2])
    now_ms = 1_000_000
    for _ in range(number_of_restarts):
        locks = lock_table(tmp_path, now_ms)
    assert locks.lock("other", "b", [Q0], now_ms) == [Q0]
    assert locks.lock("g", "b", [Q0, Q1, Q2], now_ms + CLIENT_TRUST_MS) == [Q2]
    assert locks.lock("g", "a", [Q0], now_ms + CLIENT_TRUST_MS) == [Q0]
    assert locks.lock("g", "b", [Q0, Q1], now_ms + CLIENT_TRUST_MS + 1) == [Q1]


def test_no_lock_is_granted_while_unknown_holders_may_consume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock_table(tmp_path).lock("g", "a", [Q0], 0)
    for path in tmp_path.iterdir():
        path.write_text("{broken")
    locks = lock_table(tmp_path, 1_000_000)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert locks.lock("g", "b", [Q0], 1_000_000 + CLIENT_TRUST_MS - 1) == []
    assert locks.lock("g", "b", [Q0], 1_000_000 + CLIENT_TRUST_MS) == [Q0]


def test_only_changes_of_holders_are_written(tmp_path: Path) -> None:
    writes = 0

    def count() -> None:
        nonlocal writes
        writes += 1

    locks = QueueLockTable(tmp_path / "queueLocks.json", count)
    locks.load(0)
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.lock("g", "a", [Q0, Q1], 1)
    locks.lock("g", "b", [Q0], 2)
    locks.unlock("g", "b", [Q0])
    assert writes == 1
    locks.unlock("g", "a", [Q0])
    locks.lock("g", "b", [Q1], LOCK_LIFE_MS + 2)
    assert writes == 3
    slices.run(locks.expire_steps(2 * LOCK_LIFE_MS + 3))
    assert writes == 4


async def test_no_lock_is_granted_while_its_holder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config" / "queueLocks.json"
    request = encode_body(LockedQueues(client_id="a", consumer_group="g", mq_set=[Q0]))
    async with broker_peer(tmp_path) as peer:
        with refusing(monkeypatch, "fsync", errno.ENOSPC):
            codes = [(await peer.ask(RequestCode.LOCK_BATCH_MQ, body=request)).code for _ in range(3)]
        assert codes == [ResponseCode.SYSTEM_ERROR] * 3
        assert not file.exists()
        held = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=request)
        assert decode_body(LockBatchResponseBody, held.body).lock_ok_mq_set == [Q0]
        restarted = QueueLockTable(file, lambda: None)
        restarted.load(0)
        assert restarted.lock("g", "b", [Q0], 0) == []


async def test_a_promoted_slave_knows_the_holders(tmp_path: Path) -> None:
    async with pair(tmp_path) as (running, master, slave):
        await send(running, 1)
        await caught_up(running, master, slave)
        held = await other_locks(running, master.address, "first", RequestCode.LOCK_BATCH_MQ)
        assert len(held) == 4
        copy = tmp_path / "slave" / "config" / "queueLocks.json"
        await until(lambda: copy.exists() and b"first" in copy.read_bytes())
        await slave.role.become_master(2, None)
        assert await other_locks(running, slave.address, "second", RequestCode.LOCK_BATCH_MQ) == []
        assert await other_locks(running, slave.address, "first", RequestCode.LOCK_BATCH_MQ) == held
        await master.role.become_slave(2, 1, "")
        await caught_up(running, slave, master)
