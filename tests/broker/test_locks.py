"""Locks on queues, with a clock that the test winds, and over the wire as C++ clients ask."""

from __future__ import annotations

from pathlib import Path

from rucola import fastjson, slices
from rucola.broker.queue_locks import LOCK_LIFE_MS, QueueLockTable
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.queue import MessageQueue
from support.broker_peer import broker_peer

Q0, Q1, Q2 = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(3))


def test_a_lock_belongs_to_one_member_of_a_group() -> None:
    locks = QueueLockTable()
    assert locks.lock("g", "a", [Q0, Q1], 0) == [Q0, Q1]
    assert locks.lock("g", "b", [Q0, Q2], 1) == [Q2]
    assert locks.lock("other", "b", [Q0], 1) == [Q0]
    assert locks.lock("g", "a", [Q0, Q2], 2) == [Q0]


def test_a_queue_that_is_named_twice_is_locked_once() -> None:
    assert QueueLockTable().lock("g", "a", [Q0, Q1, Q0], 0) == [Q0, Q1]


def test_only_the_holder_can_release_a_lock() -> None:
    locks = QueueLockTable()
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.unlock("g", "b", [Q0, Q1])
    assert locks.lock("g", "b", [Q0, Q1], 1) == []
    locks.unlock("g", "a", [Q0, Q2])
    assert locks.lock("g", "b", [Q0, Q1], 2) == [Q0]


def test_a_lock_that_is_not_renewed_can_be_taken() -> None:
    locks = QueueLockTable()
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.lock("g", "a", [Q1], 30_000)
    assert locks.lock("g", "b", [Q0, Q1], LOCK_LIFE_MS) == []
    assert locks.lock("g", "b", [Q0, Q1], LOCK_LIFE_MS + 1) == [Q0]
    assert locks.lock("g", "a", [Q0, Q1], LOCK_LIFE_MS + 2) == [Q1]


def test_expired_locks_are_removed() -> None:
    locks = QueueLockTable()
    locks.lock("g", "a", [Q0, Q1], 0)
    locks.lock("g", "a", [Q1], 1)
    slices.run(locks.expire_steps(LOCK_LIFE_MS + 1))
    assert len(locks) == 1
    assert locks.lock("g", "b", [Q1], LOCK_LIFE_MS + 1) == []


async def test_lock_requests_are_answered(tmp_path: Path) -> None:
    queue = '{"brokerName":"broker-a","queueId":1,"topic":"T"}'

    async with broker_peer(tmp_path) as peer:

        def body(client_id: str) -> bytes:
            return f'{{"clientId":"{client_id}","consumerGroup":"g","mqSet":[{queue}]}}\n'.encode()

        for client_id, expected in (("a", [1]), ("b", []), ("a", [1])):
            answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=body(client_id))
            assert answer.code == ResponseCode.SUCCESS
            held = fastjson.loads(answer.body)["lockOKMQSet"]
            assert [member["queueId"] for member in held] == expected
        assert (await peer.ask(RequestCode.UNLOCK_BATCH_MQ, body=body("a"))).code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=body("b"))
        assert len(fastjson.loads(answer.body)["lockOKMQSet"]) == 1
        wrong = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=b'{"clientId":"a"}')
        assert (wrong.code, "consumerGroup" in (wrong.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
