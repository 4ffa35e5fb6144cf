"""Idempotent consumption: an effect once per message, whatever is delivered twice, fails, pauses or races."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, event, insert, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from rucola.client import ConsumeConcurrentlyStatus, MessageExt, ReconsumeLater
from rucola.client.consumer.listener import UnknownStatus
from rucola.reliable import migration, operations
from rucola.reliable.errors import LeaseLost, ReliableError, SchemaError
from rucola.reliable.idempotent import IdempotentFunction, UnknownMessage, idempotent
from rucola.reliable.receipts import confirm
from rucola.reliable.redis_claims import RedisClaims
from rucola.reliable.schema import Tables
from support.databases import DatabaseServer, OutboxDatabase
from support.outbox import add, change, count, delivery, stubs, transact, until

GROUP = "billing"


class Ledger:
    """The effects: a table of the business."""

    def __init__(self, db: OutboxDatabase) -> None:
        self.db = db
        self.engine = db.engine()
        self.table = Table(
            f"{db.tables.prefix}effect",
            MetaData(),
            Column("id", Integer, primary_key=True),
            Column("body", String(50)),
        )
        self.table.create(self.engine)

    def apply(self, message: MessageExt, session: Session) -> None:
        session.execute(insert(self.table).values(body=message.body.decode()))

    def effects(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(select(self.table.c.body).order_by(self.table.c.id)))

    def lease(self) -> int:
        with self.engine.connect() as connection:
            return connection.scalar(select(self.db.tables.receipt.c.lease_until)) or 0

    def listener(self, handler: Callable[..., Any] | None = None, **options: Any) -> IdempotentFunction:
        settings = {"tables": self.db.tables} | options
        return idempotent(self.engine, GROUP, **settings)(handler or self.apply)


@pytest.fixture
def ledger(db: OutboxDatabase) -> Ledger:
    return Ledger(db)


@pytest.fixture
def sqlite_ledger(sqlite_db: OutboxDatabase) -> Ledger:
    return Ledger(sqlite_db)


@pytest.fixture
def postgresql_ledger(postgresql_db: OutboxDatabase) -> Ledger:
    return Ledger(postgresql_db)


def status(ledger: Ledger) -> list[str]:
    return [stub.status for stub in stubs(ledger.db)]


def test_effect_done_and_confirmation_are_one_transaction(ledger: Ledger) -> None:
    (message_id,) = add(ledger.db, "T", [b"x"], groups=[GROUP])
    during: list[tuple[int, int, list[str]]] = []
    tables = ledger.db.tables

    def handler(message: MessageExt, session: Session) -> None:
        during.append((count(ledger.db, tables.receipt), count(ledger.db, tables.done), status(ledger)))
        ledger.apply(message, session)

    listener = ledger.listener(handler)
    listener(delivery(message_id))
    assert during == [(1, 0, ["NEW"])]
    assert ledger.effects() == ["x"]
    assert (count(ledger.db, ledger.db.tables.receipt), count(ledger.db, ledger.db.tables.done)) == (0, 1)
    (stub,) = stubs(ledger.db)
    assert (stub.status, stub.awaiting, stub.due_at) == ("CONFIRMED", ",", None)
    assert stub.confirmed_at >= stub.created_at
    listener(delivery(message_id, times=1))
    assert ledger.effects() == ["x"]
    assert (listener.counts.done, listener.counts.duplicates) == (1, 1)
    assert count(ledger.db, ledger.db.tables.receipt) == 0


async def test_async_listener_has_one_effect(ledger: Ledger) -> None:
    (message_id,) = add(ledger.db, "T", [b"x"], groups=[GROUP])

    @idempotent(ledger.db.async_engine(), GROUP, tables=ledger.db.tables)
    async def listener(message: MessageExt, session: AsyncSession) -> None:
        await session.execute(insert(ledger.table).values(body=message.body.decode()))

    assert inspect.iscoroutinefunction(listener)
    for times in range(3):
        await listener(delivery(message_id, times=times))
    assert (listener.counts.done, listener.counts.duplicates) == (1, 2)
    assert ledger.effects() == ["x"]
    assert status(ledger) == ["CONFIRMED"]


@pytest.mark.parametrize(
    ("result", "error"),
    [(None, ZeroDivisionError), (ConsumeConcurrentlyStatus.RECONSUME_LATER, ReconsumeLater), (False, UnknownStatus)],
)
def test_failed_listener_leaves_no_effect_and_frees_the_claim_but_keeps_the_receipt(
    ledger: Ledger, result: object, error: type[Exception]
) -> None:
    (message_id,) = add(ledger.db, "T", [b"x"], groups=[GROUP])
    fails = [True]

    def handler(message: MessageExt, session: Session) -> object:
        ledger.apply(message, session)
        session.flush()
        if not fails.pop():
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        if result is None:
            raise ZeroDivisionError
        return result

    listener = ledger.listener(handler)
    with pytest.raises(error):
        listener(delivery(message_id))
    assert ledger.effects() == []
    assert status(ledger) == ["NEW"]
    with ledger.engine.connect() as connection:
        (receipt,) = connection.execute(select(ledger.db.tables.receipt)).all()
    assert (receipt.owner, receipt.lease_until) == (None, 0)
    assert (receipt.broker, receipt.queue_id, receipt.queue_offset) == ("127.0.0.1:1", 0, 7)
    fails.append(False)
    listener(delivery(message_id, times=1))
    assert ledger.effects() == ["x"]


def test_duplicate_in_progress_is_retried_later_and_never_acknowledged(ledger: Ledger) -> None:
    if ledger.db.name == "sqlite":
        return  # its one writer is the worker in progress: the duplicate waits for it, see the concurrent test
    (message_id,) = add(ledger.db, "T", [b"x"], groups=[GROUP])

    def handler(message: MessageExt, session: Session) -> None:
        ledger.apply(message, session)
        session.flush()
        with pytest.raises(ReconsumeLater):
            listener(delivery(message_id))

    listener = ledger.listener(handler)
    listener(delivery(message_id))
    assert ledger.effects() == ["x"]
    assert (listener.counts.done, listener.counts.held) == (1, 1)


def test_worker_that_lost_its_claim_to_one_that_still_works_rolls_back(ledger: Ledger) -> None:
    (message_id,) = add(ledger.db, "T", [b"x"], groups=[GROUP])
    receipt = ledger.db.tables.receipt

    def slow(message: MessageExt, session: Session) -> None:
        with ledger.engine.begin() as connection:
            connection.execute(update(receipt).values(owner="other"))
        ledger.apply(message, session)

    with pytest.raises(LeaseLost):
        ledger.listener(slow)(delivery(message_id))
    assert ledger.effects() == []
    assert count(ledger.db, ledger.db.tables.done) == 0


def test_claim_is_renewed_while_the_listener_works(postgresql_ledger: Ledger) -> None:
    ledger = postgresql_ledger
    (message_id,) = add(ledger.db, "T", [b"x"], groups=[GROUP])

    def handler(message: MessageExt, session: Session) -> None:
        before = ledger.lease()
        while ledger.lease() == before:
            threading.Event().wait(0.01)
        ledger.apply(message, session)

    ledger.listener(handler, lease_ms=300)(delivery(message_id))
    assert ledger.effects() == ["x"]


def test_fifty_concurrent_duplicates_have_one_effect(ledger: Ledger) -> None:
    (message_id,) = add(ledger.db, "T", [b"x"], groups=[GROUP])
    listener = ledger.listener()

    def deliver(number: int) -> str:
        try:
            listener(delivery(message_id, times=number))
        except ReconsumeLater:
            return "later"
        except OperationalError:  # SQLite's lock timed out: the broker delivers again
            return "later"
        return "acknowledged"

    with ThreadPoolExecutor(25) as threads:
        outcomes = list(threads.map(deliver, range(50)))
    assert ledger.effects() == ["x"]
    assert "acknowledged" in outcomes
    assert listener.counts.done == 1
    assert status(ledger) == ["CONFIRMED"]
    assert count(ledger.db, ledger.db.tables.receipt) == 0


def test_void_message_is_dropped_even_during_its_listener(ledger: Ledger) -> None:
    stub = ledger.db.tables.stub
    first, second = add(ledger.db, "T", [b"1", b"2"], groups=[GROUP])

    def void(message_id: str) -> None:
        change(ledger.db, stub.c.message_id == message_id, status="VOID")

    def handler(message: MessageExt, session: Session) -> None:
        void(second)
        ledger.apply(message, session)

    listener = ledger.listener(handler)
    void(first)
    listener(delivery(first))
    listener(delivery(second))
    assert ledger.effects() == []
    assert count(ledger.db, ledger.db.tables.receipt) == count(ledger.db, ledger.db.tables.done) == 0
    assert status(ledger) == ["VOID", "VOID"]


def test_void_that_commits_while_the_worker_waits_for_its_lock_wins(postgresql_ledger: Ledger) -> None:
    ledger, stub = postgresql_ledger, postgresql_ledger.db.tables.stub
    (message_id,) = add(ledger.db, "T", [b"x"], groups=[GROUP])
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with ledger.engine.connect() as operator, ThreadPoolExecutor(1) as threads:
        operator.execute(update(stub).values(status="VOID"))
        worker = threads.submit(ledger.listener(), delivery(message_id))
        with ledger.engine.connect() as observer:
            while not observer.exec_driver_sql(waiting, (f"%{stub.name}%",)).scalar():
                observer.rollback()
        operator.commit()
        worker.result()
    assert ledger.effects() == []
    assert status(ledger) == ["VOID"]


def test_message_without_a_stub_is_processed_once_or_rejected(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    listener = ledger.listener()
    for number in range(3):
        listener(delivery(f"unknown-{number}"))
        listener(delivery(f"unknown-{number}"))
    assert len(ledger.effects()) == 3
    assert [record.message for record in caplog.records if "no stub" in record.message] != []
    assert len([record for record in caplog.records if "no stub" in record.message]) == 1, "no log storm"
    rejecting = ledger.listener(unknown=UnknownMessage.REJECT)
    with pytest.raises(ReliableError):
        rejecting(delivery("unknown-9"))
    assert len(ledger.effects()) == 3


def test_each_group_has_its_own_effect_and_the_last_one_settles_the_stub(ledger: Ledger) -> None:
    (message_id,) = add(ledger.db, "T", [b"x"], groups=["stock", "bill_ng", "billing"])
    other = idempotent(ledger.engine, "stock", tables=ledger.db.tables)(ledger.apply)
    other(delivery(message_id))
    assert stubs(ledger.db)[0].awaiting == ",bill_ng,billing,"
    ledger.listener()(delivery(message_id))
    assert stubs(ledger.db)[0].awaiting == ",bill_ng,", "a _ in a group's name is no wildcard"
    assert status(ledger) == ["NEW"]
    assert not transact(ledger.db, confirm, message_id, "billing")
    assert transact(ledger.db, confirm, message_id, "bill_ng")
    assert status(ledger) == ["CONFIRMED"]
    assert ledger.effects() == ["x", "x"]


@pytest.fixture
def senders(ledger: Ledger, make_sqlite: Callable[[str], OutboxDatabase]) -> OutboxDatabase:
    """A database with the stubs, other than that of the effects."""
    made = make_sqlite("sender.db")
    made.tables = ledger.db.tables
    transact(made, migration.init)
    return made


def test_stubs_in_another_database_are_confirmed_after_the_commit(ledger: Ledger, senders: OutboxDatabase) -> None:
    (message_id,) = add(senders, "T", [b"x"], groups=[GROUP])
    listener = ledger.listener(ledger=senders.engine())
    listener(delivery(message_id))
    assert ledger.effects() == ["x"]
    assert [stub.status for stub in stubs(senders)] == ["CONFIRMED"]
    # The confirmation is lost, as by a crash: the message is sent again, and its duplicate confirms it.
    change(senders, status="SENT", awaiting=f",{GROUP},")
    listener(delivery(message_id))
    assert ledger.effects() == ["x"]
    assert [stub.status for stub in stubs(senders)] == ["CONFIRMED"]


def test_confirmation_by_a_duplicate_in_between_is_no_reason_for_a_warning(
    ledger: Ledger, senders: OutboxDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    (message_id,) = add(senders, "T", [b"x"], groups=[GROUP])

    def confirmed_meanwhile(message: MessageExt, session: Session) -> None:
        transact(senders, confirm, message_id, GROUP)

    listener = ledger.listener(confirmed_meanwhile, ledger=senders.engine())
    listener(delivery(message_id))
    assert "had no stub" not in caplog.text
    listener(delivery("unknown"))
    assert "had no stub" in caplog.text


# Redis in front.


def with_redis(ledger: Ledger, server: DatabaseServer, **options: Any) -> IdempotentFunction:
    return ledger.listener(redis=RedisClaims(server.url, backoff_s=0), **options)


def test_key_of_another_worker_is_never_deleted(sqlite_ledger: Ledger, redis_server: DatabaseServer) -> None:
    client = redis.Redis.from_url(redis_server.url)

    def handler(message: MessageExt, session: Session) -> None:
        client.set("rucola:claim:billing:m1", "another worker's")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_redis(sqlite_ledger, redis_server, handler=handler)(delivery("m1"))
    assert client.get("rucola:claim:billing:m1") == b"another worker's"


def test_redis_spares_duplicates_every_query(postgresql_ledger: Ledger, redis_server: DatabaseServer) -> None:
    ledger = postgresql_ledger
    client = redis.Redis.from_url(redis_server.url)
    held: list[int] = []

    def handler(message: MessageExt, session: Session) -> None:
        ledger.apply(message, session)
        assert client.keys() == [f"rucola:claim:billing:{message_id}".encode()]
        before = len(statements)
        with pytest.raises(ReconsumeLater):
            listener(message)
        held.append(len(statements) - before)

    listener = with_redis(ledger, redis_server, handler=handler)
    (message_id,) = add(ledger.db, "T", [b"x"], groups=[GROUP])
    statements = count_round_trips(ledger.engine)
    listener(delivery(message_id))
    assert held == [0]
    assert 0 < client.pttl(f"rucola:claim:billing:{message_id}") <= 60_000
    before = len(statements)
    listener(delivery(message_id))
    assert len(statements) == before
    client.flushall()
    listener(delivery(message_id))
    assert len(statements) > before, "the database alone knows it for ever"
    assert client.get(f"rucola:claim:billing:{message_id}") == b"done"
    assert (listener.counts.done, listener.counts.held, listener.counts.duplicates) == (1, 1, 2)
    assert ledger.effects() == ["x"]


def test_redis_does_not_remember_void_and_failed_messages(sqlite_ledger: Ledger, redis_server: DatabaseServer) -> None:
    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    (message_id,) = add(sqlite_ledger.db, "T", [b"x"], groups=[GROUP])
    transact(sqlite_ledger.db, operations.void, [message_id])
    listener = sqlite_ledger.listener(redis=RedisClaims(client, backoff_s=0))
    listener(delivery(message_id))
    assert client.keys() == []
    transact(sqlite_ledger.db, operations.resend, [message_id])
    listener(delivery(message_id))
    listener(delivery(message_id))
    assert sqlite_ledger.effects() == ["x"]
    assert (listener.counts.done, listener.counts.duplicates) == (1, 2)


def flushed(server: DatabaseServer) -> None:
    redis.Redis.from_url(server.url).flushall()


def restarted(server: DatabaseServer) -> None:
    server.kill()
    server.start()


def paused(server: DatabaseServer) -> None:
    server.signal(signal.SIGSTOP)


@pytest.mark.parametrize("harm", [DatabaseServer.kill, flushed, restarted, paused], ids=lambda harm: harm.__name__)
def test_redis_outage_never_stops_consumption(
    harm: Callable[[DatabaseServer], None], postgresql_ledger: Ledger, redis_server: DatabaseServer
) -> None:
    """It is harmed while a worker holds the key: the database's claim still keeps a second worker away."""
    ledger = postgresql_ledger

    def handler(message: MessageExt, session: Session) -> None:
        ledger.apply(message, session)
        harm(redis_server)
        with pytest.raises(ReconsumeLater):
            listener(message)

    listener = with_redis(ledger, redis_server, handler=handler)
    listener(delivery("m1"))
    listener(delivery("m1"))
    assert ledger.effects() == ["x"]
    assert (listener.counts.done, listener.counts.held, listener.counts.duplicates) == (1, 1, 1)


async def test_redis_claims_work_on_asyncio(postgresql_ledger: Ledger, redis_server: DatabaseServer) -> None:
    ledger, engine = postgresql_ledger, postgresql_ledger.db.async_engine()
    gate = asyncio.Event()

    @idempotent(engine, GROUP, tables=ledger.db.tables, redis=RedisClaims(redis_server.url), lease_ms=6000)
    async def listener(message: MessageExt, session: AsyncSession) -> None:
        await gate.wait()
        await session.execute(insert(ledger.table).values(body=message.body.decode()))

    first = asyncio.create_task(listener(delivery("m1")))
    client = redis.Redis.from_url(redis_server.url)
    await until(lambda: bool(client.keys()))
    await until(lambda: ledger.lease() > 0)
    first_lease = ledger.lease()
    await until(lambda: ledger.lease() > first_lease + 6200)  # renewed for longer than a lease
    with pytest.raises(ReconsumeLater):
        await listener(delivery("m1"))
    gate.set()
    await first
    assert client.get("rucola:claim:billing:m1") == b"done"
    before = listener.counts.duplicates
    await listener(delivery("m1"))
    assert listener.counts.duplicates == before + 1
    assert ledger.effects() == ["x"]


# What is wrong is named.


def test_listener_and_engine_must_be_of_one_kind(sqlite_db: OutboxDatabase) -> None:
    async def handler(message: MessageExt, session: AsyncSession) -> None: ...

    with pytest.raises(ReliableError):
        idempotent(sqlite_db.engine(), GROUP)(handler)
    with pytest.raises(ReliableError):
        idempotent(sqlite_db.async_engine(), GROUP)(lambda message, session: None)


def test_missing_tables_are_named_at_the_first_message(empty_db: OutboxDatabase) -> None:
    listener = idempotent(empty_db.engine(), GROUP, tables=Tables("none_"))(lambda message, session: None)
    with pytest.raises(SchemaError):
        listener(delivery("m1"))


def count_round_trips(engine: Engine) -> list[str]:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    return statements


def test_overhead_on_postgresql_is_two_round_trips(postgresql_ledger: Ledger) -> None:
    ledger = postgresql_ledger
    first, second = add(ledger.db, "T", [b"1", b"2"], groups=[GROUP])
    listener = ledger.listener()
    listener(delivery(first))
    statements = count_round_trips(ledger.engine)
    listener(delivery(second))
    assert len([text for text in statements if "pg_catalog" not in text and "effect" not in text]) == 2
