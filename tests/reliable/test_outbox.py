"""The outbox: a stub is there if and only if the caller's transaction committed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from rucola.client import Message
from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.reliable.errors import ReliableError
from rucola.reliable.outbox import Outbox, lane_of, message_of
from rucola.reliable.schema import LANES
from support.databases import OutboxDatabase
from support.outbox import stubs


def test_session_commits_or_rolls_back_the_message_with_its_own_rows(db: OutboxDatabase) -> None:
    outbox = Outbox(["billing", "stock"], tables=db.tables)
    message = Message("Orders", b"pizza", tags="new", keys="order-1", properties={"colour": "red"}, flag=7)
    with Session(db.engine()) as session, session.begin():
        message_id = outbox.add(session, message, shard_key="order-1")
    with Session(db.engine()) as session:
        outbox.add(session, Message("Orders", b"never"))
        session.flush()
    (stub,) = stubs(db)
    assert stub.message_id == message_id == message.unique_key
    assert (stub.topic, stub.tags, stub.body, stub.flag, stub.status) == ("Orders", "new", b"pizza", 7, "NEW")
    assert stub.keys == f"order-1 {message_id}"
    assert json.loads(stub.properties) == {"colour": "red"}
    assert (stub.shard_key, stub.lane, stub.awaiting) == ("order-1", lane_of("order-1"), ",billing,stock,")
    assert stub.due_at == stub.created_at > 1_600_000_000_000
    assert message_of(stub) == message


def test_rolled_back_savepoint_discards_its_messages(db: OutboxDatabase) -> None:
    outbox = Outbox(tables=db.tables)
    with Session(db.engine()) as session, session.begin():
        outbox.add(session, Message("T", b"before"))
        savepoint = session.begin_nested()
        outbox.add(session, Message("T", b"inside"))
        savepoint.rollback()
        outbox.add(session, Message("T", b"after"))
    assert [stub.body for stub in stubs(db)] == [b"before", b"after"]


async def test_sessions_of_a_registry_are_those_of_the_moment(db: OutboxDatabase) -> None:
    outbox = Outbox(tables=db.tables)
    session = scoped_session(sessionmaker(db.engine()))
    outbox.add(session, Message("T", b"rolled back"))
    session.rollback()
    outbox.add(session, Message("T", b"scoped"))
    session.commit()
    session.remove()
    async_session = async_scoped_session(async_sessionmaker(db.async_engine()), asyncio.current_task)
    outbox.add(async_session, Message("T", b"async scoped"))
    await async_session.commit()
    await async_session.remove()
    assert [stub.body for stub in stubs(db)] == [b"scoped", b"async scoped"]


def test_session_with_binds_must_have_one_for_the_stubs(sqlite_db: OutboxDatabase) -> None:
    outbox = Outbox(tables=sqlite_db.tables)
    orders = Table("orders", MetaData(), Column("id", Integer))
    with Session(binds={orders: sqlite_db.engine()}) as session:
        with pytest.raises(ReliableError):
            outbox.add(session, Message("T", b"x"))
        session.commit()
    with Session(binds={orders: sqlite_db.engine(), outbox.tables.stub: sqlite_db.engine()}) as session:
        outbox.add(session, Message("T", b"x"))
        session.commit()
    assert len(stubs(sqlite_db)) == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"shard_key": 5}, InvalidMessage),
        ({"shard_key": b"k"}, InvalidMessage),
        ({"shard_key": ""}, InvalidMessage),
        ({"groups": "billing"}, ReliableError),
        ({"groups": ["a,b"]}, InvalidMessage),
        ({"groups": [5]}, ReliableError),
        ({"groups": [None, "g"]}, ReliableError),
    ],
)
def test_arguments_that_cannot_be_stored_are_named(
    sqlite_db: OutboxDatabase, options: dict[str, Any], error: type[Exception]
) -> None:
    outbox = Outbox(tables=sqlite_db.tables)
    with Session(sqlite_db.engine()) as session, pytest.raises(error):
        outbox.add(session, Message("T", b"x"), **options)
    if "groups" in options:
        with pytest.raises(error):
            Outbox(options["groups"])


async def test_async_session_and_connection_add_messages(db: OutboxDatabase) -> None:
    outbox, engine = Outbox(tables=db.tables), db.async_engine()
    async with AsyncSession(engine) as session, session.begin():
        outbox.add(session, Message("T", b"async"))
    async with AsyncSession(engine) as session:
        outbox.add(session, Message("T", b"never"))
    async with engine.begin() as connection:
        await connection.run_sync(outbox.add, Message("T", b"core"))
    assert [stub.body for stub in stubs(db)] == [b"async", b"core"]


@pytest.mark.parametrize("is_pooled", [False, True])
def test_dbapi_connection_adds_messages(db: OutboxDatabase, is_pooled: bool) -> None:
    """The driver's own connection, or that of `engine.raw_connection()`."""
    outbox = Outbox(["g"], tables=db.tables)
    pooled = db.engine().raw_connection()
    connection: Any = pooled if is_pooled else pooled.driver_connection
    at = {properties.TIMER_DELIVER_MS: "4000000000000"}
    for body, others in ((b"\x00\xff'%s\\", {"x": "1 % 2"}), (b"2", at)):
        outbox.add(connection, Message("T", body, keys="a b", properties=dict(others)), shard_key="k")
    connection.commit()
    outbox.add(connection, Message("T", b"never"))
    connection.rollback()
    pooled.close()
    first, second = stubs(db)
    assert (first.body, second.body) == (b"\x00\xff'%s\\", b"2")
    assert message_of(first).properties["x"] == "1 % 2"
    assert first.due_at == first.created_at > 1_600_000_000_000
    assert second.created_at + second.delay_ms == 4_000_000_000_000


def test_repeated_unique_key_fails_the_second_transaction(db: OutboxDatabase) -> None:
    outbox = Outbox(tables=db.tables)
    message = Message("T", b"once")
    with Session(db.engine()) as session, session.begin():
        outbox.add(session, message)
    with pytest.raises(IntegrityError), Session(db.engine()) as session, session.begin():
        outbox.add(session, message)
    assert len(stubs(db)) == 1


def test_commit_wakes_the_relay_and_a_rollback_does_not(sqlite_db: OutboxDatabase) -> None:
    outbox = Outbox(tables=sqlite_db.tables)
    woken: list[int] = []
    remove = outbox.on_commit(lambda: woken.append(len(stubs(sqlite_db))))
    with Session(sqlite_db.engine()) as session:
        outbox.add(session, Message("T", b"1"))
        outbox.add(session, Message("T", b"2"))
        session.rollback()
        assert woken == []
        outbox.add(session, Message("T", b"3"))
        session.commit()
        assert woken == [1]
        remove()
        outbox.add(session, Message("T", b"4"))
        session.commit()
        assert woken == [1], "its relay is closed"


@pytest.mark.parametrize(
    "message",
    [
        Message("a b", b"x"),
        Message("%RETRY%g", b"x"),
        Message("SCHEDULE_TOPIC_XXXX", b"x"),
        Message("T", b""),
        Message("T", b"x" * 101),
        Message("T", "text"),  # type: ignore[arg-type]
        Message("T", b"x", properties={"TRAN_MSG": "true"}),
        Message("T", b"x", properties={"UNIQ_KEY": "a b"}),
        Message("T", b"x", properties={"UNIQ_KEY": "x" * 65}),
        Message("T", b"x", properties={"": "1"}),
        *(
            Message("T", b"x", properties={name: value})
            for name in (properties.DELAY, properties.TIMER_DELIVER_MS, properties.TIMER_DELAY_SEC)
            for value in ("soon", "-1", "1" + "0" * 30)
        ),
    ],
    ids=range(19),
)  # fmt: skip
def test_message_that_no_broker_accepts_is_refused_before_the_commit(
    message: Message, sqlite_db: OutboxDatabase
) -> None:
    outbox = Outbox(tables=sqlite_db.tables, max_message_size=100)
    with Session(sqlite_db.engine()) as session, pytest.raises(InvalidMessage), session.begin():
        outbox.add(session, message)
    assert stubs(sqlite_db) == []


def test_unsupported_transaction_type_is_named(sqlite_db: OutboxDatabase) -> None:
    outbox = Outbox(tables=sqlite_db.tables)
    with pytest.raises(ReliableError):
        outbox.add(object(), Message("T", b"x"))  # type: ignore[arg-type]
    with pytest.raises(ReliableError):
        outbox.add(sqlite_db.async_engine().connect(), Message("T", b"x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [({}, 0), ({"DELAY": "3"}, 10_000), ({"TIMER_DELAY_MS": "70"}, 70), ({"TIMER_DELAY_SEC": "7"}, 7000)],
)
def test_delay_is_that_of_the_message(properties: dict[str, str], delay_ms: int, sqlite_db: OutboxDatabase) -> None:
    with Session(sqlite_db.engine()) as session, session.begin():
        Outbox(tables=sqlite_db.tables).add(session, Message("T", b"x", properties=properties))
    assert stubs(sqlite_db)[0].delay_ms == delay_ms


def test_lanes_are_all_used_and_a_key_has_one() -> None:
    assert {lane_of(f"order-{number}") for number in range(1000)} == set(range(LANES))
