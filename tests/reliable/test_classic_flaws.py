"""Flaws of the classic design of stub, message log and Redis key, where no other test shows that they are absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, String, Table, insert, select, text
from sqlalchemy.exc import InvalidRequestError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from rucola.client import Message, MessageExt, MessageQueue, PullConsumer, PushConsumer
from rucola.client.consumer.options import MessageModel
from rucola.errors import ConfigError
from rucola.reliable import Outbox, ReliableError, operations
from rucola.reliable.idempotent import idempotent
from rucola.reliable.redis_claims import RedisClaims
from rucola.testing.rocketmq import RocketMQ
from support.databases import DatabaseServer, OutboxDatabase
from support.outbox import FAST_POLICY, add, delivery, relay, statuses, stubs, transact, until

GROUP = "billing"


def test_key_is_released_if_the_database_fails_after_it_was_taken(
    sqlite_db: OutboxDatabase, redis_server: DatabaseServer
) -> None:
    import redis

    claims = RedisClaims(redis_server.url, backoff_s=0)
    listener = idempotent(sqlite_db.engine(), GROUP, tables=sqlite_db.tables, redis=claims)(
        lambda message, session: None
    )
    listener(delivery("first"))
    with sqlite_db.engine().begin() as connection:
        connection.execute(text(f"DROP TABLE {sqlite_db.tables.receipt.name}"))
    with pytest.raises(OperationalError, match="no such table"):
        listener(delivery("second"))
    keys = redis.Redis.from_url(redis_server.url).keys()
    assert [key for key in keys if b"second" in key] == []  # that the first is done is remembered for a while


async def test_offset_of_one_queue_says_nothing_about_another(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ
) -> None:
    topic, group = shared_rocketmq.unique("T"), shared_rocketmq.unique("g")
    shared_rocketmq.create_topic(topic, 2)
    ids = add(sqlite_db, topic, [b"%d" % number for number in range(10)], groups=[group])
    async with PullConsumer(group, shared_rocketmq.namesrv) as consumer:
        async with relay(sqlite_db, shared_rocketmq):
            await until(lambda: statuses(sqlite_db) == {"SENT": 10})
        sent = stubs(sqlite_db)
        passed = {stub.message_id for stub in sent if stub.queue_id == sent[0].queue_id}
        if len(passed) == len(ids):  # one request, one queue: the other one is empty and ends at 0
            waiting = MessageQueue(topic, sent[0].broker, 1 - sent[0].queue_id)
            shared_rocketmq.send(topic, b"other", queue_id=waiting.queue_id)
        await consumer.queues(topic)
        for queue_id in (0, 1):
            queue = MessageQueue(topic, sent[0].broker, queue_id)
            end = await consumer.max_offset(queue)
            await consumer.commit(queue, end if queue_id != sent[0].queue_id else 0)
        async with relay(sqlite_db, shared_rocketmq, policy=FAST_POLICY) as running:
            first_due = {stub.seq: stub.due_at for stub in sent if stub.message_id in passed}
            running.wake()
            await until(
                lambda: all(stub.due_at > first_due[stub.seq] for stub in stubs(sqlite_db) if stub.seq in first_due)
            )
    assert {stub.sends for stub in stubs(sqlite_db) if stub.message_id in passed} == {1}


def test_receipt_of_a_retry_has_no_position(db: OutboxDatabase) -> None:
    """A retry comes from the retry topic, whose offsets are not those of the topic."""

    @idempotent(db.engine(), GROUP, tables=db.tables)
    def listener(message: MessageExt, session: Session) -> None:
        raise ZeroDivisionError

    for message_id, times in (("first", 0), ("retry", 3)):
        with pytest.raises(ZeroDivisionError):
            listener(delivery(message_id, times=times))
    receipt = db.tables.receipt
    with db.engine().connect() as connection:
        found = connection.execute(select(receipt.c.message_id, receipt.c.queue_offset).order_by(receipt.c.message_id))
        assert found.all() == [("first", 7), ("retry", None)]


async def test_message_that_is_sent_again_is_the_same(sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ) -> None:
    topic, group = shared_rocketmq.unique("T"), shared_rocketmq.unique("g")
    shared_rocketmq.create_topic(topic, 1)
    message = Message(topic, bytes(range(256)), tags="a", keys="k1 k2", properties={"colour": "rouge"}, flag=3)
    with Session(sqlite_db.engine()) as session, session.begin():
        message_id = Outbox([group], tables=sqlite_db.tables).add(session, message, shard_key="key")
    async with relay(sqlite_db, shared_rocketmq) as running:
        await until(lambda: statuses(sqlite_db) == {"SENT": 1})
        assert transact(sqlite_db, operations.resend, [message_id]) == 1
        running.wake()
        await until(lambda: statuses(sqlite_db) == {"SENT": 1})
    first, second = shared_rocketmq.messages(topic)
    assert first.msg_id == second.msg_id == message_id
    for name in ("body", "properties", "flag", "tags", "keys", "queue_id"):
        assert getattr(first, name) == getattr(second, name)


@pytest.mark.parametrize("is_async", [False, True])
async def test_listener_is_refused_by_broadcasting_and_foreign_consumers(
    sqlite_db: OutboxDatabase, is_async: bool, shared_rocketmq: RocketMQ
) -> None:
    """With broadcasting a failed message is lost; in another group, the effects of one would count for the other."""

    async def handle_async(message: MessageExt, session: Any) -> None: ...
    def handle(message: MessageExt, session: Any) -> None: ...

    engine = sqlite_db.async_engine() if is_async else sqlite_db.engine()
    listener = idempotent(engine, GROUP, tables=sqlite_db.tables)(handle_async if is_async else handle)
    assert listener.clustering_group == GROUP
    broadcasting = PushConsumer(GROUP, shared_rocketmq.namesrv, message_model=MessageModel.BROADCASTING)
    with pytest.raises(ConfigError):
        broadcasting.listen(listener)
    with pytest.raises(ConfigError):
        PushConsumer("stock", shared_rocketmq.namesrv).listen(listener)
    PushConsumer(GROUP, shared_rocketmq.namesrv).listen(listener)


@pytest.mark.parametrize("is_async", [False, True])
async def test_listener_cannot_commit_its_effect_alone(db: OutboxDatabase, is_async: bool) -> None:
    """A crash after such a commit would leave the effect without its `done` row, and the next delivery repeat it."""
    effect = Table(f"{db.tables.prefix}effect", MetaData(), Column("body", String(10)))
    effect.create(db.engine())
    row = insert(effect).values(body="x")

    def commits(session: Session) -> None:
        session.execute(row)
        session.commit()

    def begins(session: Session) -> None:
        with session.begin():
            session.execute(row)

    def in_a_savepoint(session: Session) -> None:
        with session.begin_nested():
            session.execute(row)
        nested = session.begin_nested()
        session.execute(row)
        nested.rollback()

    async def deliver(work: Callable[[Session], None]) -> None:
        async def handle_async(message: MessageExt, session: AsyncSession) -> None:
            await session.run_sync(work)

        if is_async:
            listen = idempotent(db.async_engine(), GROUP, tables=db.tables)(handle_async)
            await listen(delivery("m"))
        else:
            idempotent(db.engine(), GROUP, tables=db.tables)(lambda message, session: work(session))(delivery("m"))

    def effects() -> int:
        with db.engine().connect() as connection:
            return len(connection.execute(select(effect)).all())

    with pytest.raises(ReliableError):
        await deliver(commits)
    with pytest.raises(InvalidRequestError):
        await deliver(begins)
    assert effects() == 0
    await deliver(in_a_savepoint)
    assert effects() == 1
    await deliver(in_a_savepoint)
    assert effects() == 1
