"""Faults of a database server: deadlocks, serialization failures, and commits that are applied but report an error.

All of them are real: two transactions that lock the same rows in opposite order, isolation levels that refuse, and a
proxy that forwards a COMMIT and drops the response.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from rucola.client import Message, MessageExt, ReconsumeLater
from rucola.message import properties
from rucola.reliable import Tables, migration, operations
from rucola.reliable.database import Database
from rucola.reliable.idempotent import IdempotentFunction, idempotent
from rucola.reliable.outbox import Outbox
from rucola.reliable.policy import Policy
from rucola.reliable.relay import FIRST_PAUSE_S, Relay
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase, server_user, serving, start_postgresql
from support.outbox import add, consumer_of, count, delivery, relay, statuses, stubs, transact, until
from support.ports import HOST
from support.proxy import Proxy

pytestmark = pytest.mark.slow

DEADLINE_S = 60
GROUP = "billing"
LEASE_MS = 1000


@pytest.fixture(params=["postgresql", "mariadb"])
def server_db(request: pytest.FixtureRequest, new_db: Callable[[str, str], OutboxDatabase]) -> OutboxDatabase:
    return new_db(request.param, "")


@pytest.fixture
def accounts(server_db: OutboxDatabase) -> Table:
    """Two accounts, a and b; each delivery books on both."""
    table = accounts_of(server_db)
    table.create(server_db.engine())
    with server_db.engine().begin() as connection:
        connection.execute(insert(table), [{"id": name, "balance": 0} for name in "ab"])
    return table


def accounts_of(db: OutboxDatabase) -> Table:
    name = f"{db.tables.prefix}account"
    return Table(name, MetaData(), Column("id", String(10), primary_key=True), Column("balance", Integer))


def balances(db: OutboxDatabase) -> list[int]:
    with db.engine().connect() as connection:
        return list(connection.scalars(select(accounts_of(db).c.balance).order_by(accounts_of(db).c.id)))


def deliver(listener: IdempotentFunction, message_id: str, body: bytes = b"ab") -> int:
    """Deliver as a broker does, until the message is acknowledged; return the number of failed deliveries."""
    failures = 0
    end = time.monotonic() + DEADLINE_S  # another delivery may hold the message for long on a busy machine
    while time.monotonic() < end:
        try:
            listener(delivery(message_id, body, failures))
        except (DBAPIError, ReconsumeLater):
            failures += 1
            continue
        return failures
    raise AssertionError(f"message {message_id} was never acknowledged, after {failures} deliveries")


def is_settled(db: OutboxDatabase, number: int) -> bool:
    """Whether all messages are confirmed, each with one `done` row and without a receipt."""
    rows = count(db, db.tables.done), count(db, db.tables.receipt)
    return statuses(db) == {"CONFIRMED": number} and rows == (number, 0)


# Deadlocks.


def test_deadlock_of_two_listeners_is_retried_with_one_effect_each(server_db: OutboxDatabase, accounts: Table) -> None:
    first, second = add(server_db, "T", [b"ab", b"ba"], groups=[GROUP])
    both_hold_a_row = threading.Barrier(2)

    def book(message: MessageExt, session: Session) -> None:
        for number, name in enumerate(message.body.decode()):
            session.execute(update(accounts).where(accounts.c.id == name).values(balance=accounts.c.balance + 1))
            if number == 0 and message.reconsume_times == 0:
                both_hold_a_row.wait(20)

    listener = idempotent(server_db.engine(), GROUP, tables=server_db.tables)(book)
    with ThreadPoolExecutor(2) as threads:
        failures = list(threads.map(deliver, [listener] * 2, [first, second], [b"ab", b"ba"]))
    assert sum(failures) >= 1, "no deadlock"
    assert balances(server_db) == [2, 2]
    assert is_settled(server_db, 2)


LOCK_WAITS = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    # Not innodb_trx, which the server refreshes only if it was not read for 0.1 s.
    "mysql": "SELECT variable_value + 0 FROM information_schema.global_status "
    "WHERE variable_name = 'Innodb_row_lock_current_waits'",
}


class HeldDatabase(Database):
    """Waits for an event before single statements, of which a relay's record is one."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.may_continue = asyncio.Event()

    async def run_one(self, work: Any, *arguments: Any, **options: Any) -> Any:
        await self.may_continue.wait()
        return await super().run_one(work, *arguments, **options)


async def test_deadlock_of_a_relay_and_an_operator_costs_a_retry(
    server_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator locks the second stub, the relay records both in order, then the operator wants the first one."""
    stub = server_db.tables.stub
    first, second = add(server_db, topic, [b"1", b"2"], shard_key="k")
    database = HeldDatabase(server_db.engine())

    def note(connection: Connection, message_id: str) -> None:
        connection.execute(update(stub).where(stub.c.message_id == message_id).values(error="seen"))

    def is_relay_waiting() -> bool:
        with server_db.engine().connect() as connection:
            return bool(connection.scalar(text(LOCK_WAITS[server_db.name])))

    victims: list[str] = []
    policy = Policy(lease_ms=LEASE_MS, poll_ms=20, jitter=0)
    async with Relay(database, shared_rocketmq.namesrv, tables=server_db.tables, policy=policy):
        await until(lambda: len(shared_rocketmq.messages(topic)) == 2)
        with server_db.engine().connect() as operator:
            await asyncio.to_thread(note, operator, second)
            database.may_continue.set()
            await until(is_relay_waiting)
            try:
                await asyncio.to_thread(note, operator, first)
                operator.commit()
            except OperationalError:
                victims.append("operator")
                operator.rollback()
        await until(lambda: statuses(server_db) == {"CONFIRMED": 2})
    victims += ["relay" for record in caplog.records if "the database failed" in record.message]
    assert len(victims) == 1
    # The relay keeps the outcomes that it could not record, so that nothing is sent a second time.
    assert [message.body for message in shared_rocketmq.messages(topic)] == [b"1", b"2"]


# Serialization failures.


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_deliveries_at_a_strict_isolation_level_have_one_effect_each(
    server_db: OutboxDatabase, accounts: Table, isolation: str
) -> None:
    """Eight workers read and write the same balance, and each message is delivered twice at the same time.

    Two of them read the same balance before either writes it, so one of the two is refused.
    """
    engine = create_engine(server_db.url, isolation_level=isolation, max_overflow=20)
    if server_db.name == "mysql":

        @event.listens_for(engine, "connect")
        def refuse_stale_snapshots(connection: Any, record: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_snapshot_isolation = ON, innodb_lock_wait_timeout = 5")

    ids = add(server_db, "T", [b"ab"] * 12, groups=[GROUP])
    reads, two_have_read = itertools.count(1), threading.Barrier(2)

    @idempotent(engine, GROUP, tables=server_db.tables)
    def book(message: MessageExt, session: Session) -> None:
        balance = session.scalar(select(accounts.c.balance).where(accounts.c.id == "a")) or 0
        other = session.scalar(select(func.sum(accounts.c.balance)).where(accounts.c.id == "b")) or 0
        assert balance == other
        if next(reads) <= two_have_read.parties:
            two_have_read.wait(DEADLINE_S)
        session.execute(update(accounts).values(balance=balance + 1))

    with ThreadPoolExecutor(8) as threads:
        failures = sum(threads.map(deliver, [book] * 24, ids * 2))
    engine.dispose()
    assert failures > 0, "nothing was refused"
    assert balances(server_db) == [12, 12]
    assert is_settled(server_db, 12)


async def test_relay_on_an_engine_with_a_strict_isolation_level_sends_each_message(
    server_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    """Two relays, senders and confirmations write the same tables at SERIALIZABLE."""
    engine = create_engine(server_db.url, isolation_level="SERIALIZABLE", max_overflow=20)
    policy = Policy(lease_ms=LEASE_MS, poll_ms=20, batch=8)
    listener = idempotent(engine, GROUP, tables=server_db.tables)(lambda message, session: None)
    outbox = Outbox([GROUP], tables=server_db.tables)

    def send_and_confirm(number: int) -> None:
        while True:
            try:
                with Session(engine) as session, session.begin():
                    message_id = outbox.add(session, Message(topic, b"%d" % number))
                break
            except OperationalError:
                continue
        deliver(listener, message_id)

    async with (
        Relay(engine, shared_rocketmq.namesrv, tables=server_db.tables, policy=policy),
        Relay(engine, shared_rocketmq.namesrv, tables=server_db.tables, policy=policy),
    ):
        await asyncio.gather(*(asyncio.to_thread(send_and_confirm, number) for number in range(40)))
        await until(lambda: is_settled(server_db, 40))
    engine.dispose()


# A commit that is applied but reports an error.


COMMIT = {"postgresql": b"COMMIT", "mysql": b"\x03COMMIT"}
"""As the drivers send it; without its code, SQLAlchemy's SET AUTOCOMMIT matches, too."""


@asynccontextmanager
async def through_proxy(db: OutboxDatabase) -> AsyncIterator[tuple[Proxy, OutboxDatabase]]:
    """The same database, behind a proxy that can drop a response."""
    url = make_url(db.url)
    async with Proxy(f"{HOST}:{url.port}") as proxy:
        port = int(proxy.address.rpartition(":")[2])
        behind = OutboxDatabase(url.set(port=port).render_as_string(hide_password=False), db.tables)
        try:
            yield proxy, behind
        finally:
            await asyncio.to_thread(behind.close)


async def test_outbox_transaction_whose_commit_reports_an_error_is_sent_once(
    server_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    """The sender sees an error; if it repeats the transaction with the same unique key, the second one is refused."""
    message = Message(topic, b"x", properties={properties.UNIQ_KEY: "order-1"})

    def send(db: OutboxDatabase) -> None:
        with Session(db.engine()) as session, session.begin():
            Outbox(tables=db.tables).add(session, message)

    async with through_proxy(server_db) as (proxy, behind):
        proxy.lose(COMMIT[server_db.name])
        with pytest.raises(OperationalError):
            await asyncio.to_thread(send, behind)
        assert proxy.lost == 1
        with pytest.raises(IntegrityError):
            await asyncio.to_thread(send, behind)
    async with relay(server_db, shared_rocketmq):
        await until(lambda: statuses(server_db) == {"CONFIRMED": 1})
    assert [found.msg_id for found in shared_rocketmq.messages(topic)] == ["order-1"]


@pytest.mark.parametrize("statement", ["lanes", "claim", "record"])
async def test_relays_statement_whose_response_is_lost_loses_no_message(
    statement: str, server_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    """Lanes and claims end with their lease; outcomes are there, so that nothing is sent a second time."""
    record = b"jsonb_to_recordset" if server_db.name == "postgresql" else b"JSON_TABLE"
    policy = Policy(lease_ms=LEASE_MS, poll_ms=20, jitter=0)
    async with through_proxy(server_db) as (proxy, behind):
        if statement == "lanes":
            await asyncio.to_thread(add, server_db, topic, [b"x"])
            proxy.lose(b"UPDATE " + server_db.tables.lane.name.encode())
        async with Relay(behind.engine(), shared_rocketmq.namesrv, tables=server_db.tables, policy=policy):
            if statement != "lanes":
                await until(lambda: count(server_db, server_db.tables.relay) == 1)
                proxy.lose(b"sends=(" if statement == "claim" else record)
                await asyncio.to_thread(add, server_db, topic, [b"x"])
            await until(lambda: statuses(server_db) == {"CONFIRMED": 1})
        assert proxy.lost == 1
    (stub,) = stubs(server_db)
    assert len(shared_rocketmq.messages(topic)) == 1
    assert stub.sends <= 2


@pytest.mark.parametrize("kind", ["blocking", "with a ledger", "async"])
async def test_consumers_commit_that_reports_an_error_is_acknowledged(
    kind: str, server_db: OutboxDatabase, accounts: Table, caplog: pytest.LogCaptureFixture
) -> None:
    (message_id,) = add(server_db, "T", [b"x"], groups=[GROUP])
    booking = update(accounts).values(balance=accounts.c.balance + 1)

    def book(message: MessageExt, session: Session) -> None:
        session.execute(booking)
        proxy.lose(COMMIT[server_db.name])

    async def book_async(message: MessageExt, session: AsyncSession) -> None:
        await session.execute(booking)
        proxy.lose(COMMIT[server_db.name])

    async with through_proxy(server_db) as (proxy, behind):
        with caplog.at_level(logging.WARNING):  # acknowledged at once
            if kind == "async":
                await idempotent(behind.async_engine(), GROUP, tables=server_db.tables)(book_async)(
                    delivery(message_id)
                )
            else:
                options = {"ledger": server_db.engine()} if kind == "with a ledger" else {}
                listener = idempotent(behind.engine(), GROUP, tables=server_db.tables, **options)(book)
                await asyncio.to_thread(listener, delivery(message_id))
        assert proxy.lost == 1
    assert "failed, but the message is done" in caplog.text
    assert balances(server_db) == [1, 1]
    assert is_settled(server_db, 1)


async def test_claim_whose_response_is_lost_delays_the_message_by_a_lease(
    server_db: OutboxDatabase, accounts: Table
) -> None:
    (message_id,) = add(server_db, "T", [b"x"], groups=[GROUP])

    def book(message: MessageExt, session: Session) -> None:
        session.execute(update(accounts).values(balance=accounts.c.balance + 1))

    async with through_proxy(server_db) as (proxy, behind):
        listener = idempotent(behind.engine(), GROUP, tables=server_db.tables)(book)
        proxy.lose(b"INSERT INTO " + server_db.tables.receipt.name.encode())
        with pytest.raises(OperationalError):
            await asyncio.to_thread(listener, delivery(message_id))
        assert proxy.lost == 1
        with pytest.raises(ReconsumeLater):
            await asyncio.to_thread(listener, delivery(message_id))

        with server_db.engine().begin() as connection:  # the lease ends
            connection.execute(update(server_db.tables.receipt).values(lease_until=1))
        await asyncio.to_thread(listener, delivery(message_id))
    assert balances(server_db) == [1, 1]
    assert is_settled(server_db, 1)


# Many rows, many failures.


def test_purge_of_many_rows_is_bounded_by_rows(server_db: OutboxDatabase) -> None:
    """Each call deletes a thousand rows of each table, so that none holds locks for long, and live rows are kept."""
    tables, number = server_db.tables, 2500
    live = add(server_db, "T", [b"x"], groups=[GROUP])
    add(server_db, "T", [b"x"] * number)
    old = [{"message_id": f"m{each}", "consumer_group": GROUP} for each in range(number)]
    old += [{"message_id": live[0], "consumer_group": GROUP}]
    with server_db.engine().begin() as connection:
        settled = update(tables.stub).where(tables.stub.c.message_id != live[0])
        connection.execute(settled.values(status="CONFIRMED", due_at=None, confirmed_at=1))
        connection.execute(insert(tables.done), [row | {"done_at": 1} for row in old])
        connection.execute(insert(tables.receipt), [row | {"received_at": 1} for row in old])
    database, removed = Database(server_db.engine()), []
    while not removed or removed[-1]:
        removed.append(database.run_sync(operations.purge, tables, operations.PURGE_AFTER_MS))
    assert removed == [3000, 3000, 1500, 0]
    assert [count(server_db, table) for table in (tables.stub, tables.done, tables.receipt)] == [1, 1, 1]


async def test_relay_that_starts_before_its_database_waits_for_it(
    server_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    add(server_db, topic, [b"x"])
    async with through_proxy(server_db) as (proxy, behind):
        proxy.refuse()
        opened = Relay(behind.engine(), shared_rocketmq.namesrv, tables=server_db.tables)
        opening = asyncio.create_task(opened.open())
        await until(lambda: "the database failed" in caplog.text)
        assert not opening.done()
        await proxy.accept()
        await opening
        await until(lambda: statuses(server_db) == {"CONFIRMED": 1})
        await opened.close()


async def test_relay_does_not_wait_for_a_database_that_refuses_it(
    server_db: OutboxDatabase, shared_rocketmq: RocketMQ
) -> None:
    url = server_db.engine().url
    for refused in (url.set(database="missing"), url.set(username="nobody", password="wrong")):
        with pytest.raises(DBAPIError):
            async with Relay(refused, shared_rocketmq.namesrv, tables=server_db.tables):
                pass


async def test_outage_of_the_database_makes_the_relay_pause_longer_and_log_two_lines(
    server_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The relay pauses longer after each failure, however often it is woken, and continues afterwards."""
    attempts_s: list[float] = []
    async with through_proxy(server_db) as (proxy, behind):
        event.listen(behind.engine(), "do_connect", lambda *_: attempts_s.append(time.monotonic()))
        with caplog.at_level(logging.INFO, "rucola.reliable"):
            async with Relay(behind.engine(), shared_rocketmq.namesrv, tables=server_db.tables) as running:
                await until(lambda: count(server_db, server_db.tables.relay) == 1)
                attempts_s.clear()
                proxy.refuse()
                await asyncio.to_thread(add, server_db, topic, [b"x"] * 1000)

                def are_attempted(number: int) -> bool:
                    running.wake()
                    return len(attempts_s) >= number

                await until(lambda: are_attempted(3))
                await proxy.accept()
                await until(lambda: statuses(server_db) == {"CONFIRMED": 1000})
                proxy.refuse()  # closing works without a database
    # The first failure may be that of an open connection, which is no attempt; the third attempt may succeed.
    first, second, third = attempts_s[:3]
    assert second - first >= FIRST_PAUSE_S
    assert third - second >= 2 * FIRST_PAUSE_S
    begin, end = (record.message for record in caplog.records if record.message.startswith("the database"))
    assert begin.startswith("the database failed, retrying: ")
    assert re.fullmatch(r"the database: works again after \d+ s, [2-9] failures", end)


# The end of a server.


QUICK_RETRIES = " ".join(["1s"] * 18)


@pytest.fixture
def own_db() -> Iterator[OutboxDatabase]:
    """A PostgreSQL that this test may kill."""
    with serving("postgresql", server_user("postgres"), start_postgresql) as own:
        db = OutboxDatabase(own.url, Tables(), own)
        transact(db, migration.init)
        yield db
        db.close()


@pytest.mark.rocketmq(messageDelayLevel=QUICK_RETRIES)
async def test_relay_and_consumer_survive_a_database_crash(own_db: OutboxDatabase, rocketmq: RocketMQ) -> None:
    db = own_db
    invoices = Table("invoice", MetaData(), Column("text", String(20)))
    invoices.create(db.engine())
    rocketmq.create_topic("T", 1)

    @idempotent(db.async_engine(), "billing", tables=db.tables, lease_ms=1000)
    async def bill(message: MessageExt, session: AsyncSession) -> None:
        await session.execute(insert(invoices).values(text=message.body.decode()))
        if message.body == b"5" and db.server is not None and not crashed:
            crashed.append(True)
            # With the transaction open. In a thread: the server waits for the startup packets of new connections, which
            # this event loop sends.
            await asyncio.to_thread(db.server.crash)

    crashed: list[bool] = []

    consumer = consumer_of(rocketmq.namesrv, "billing", "T", bill)
    policy = Policy(lease_ms=1000, poll_ms=50)
    async with relay(db, rocketmq, policy=policy), consumer:
        add(db, "T", [b"%d" % number for number in range(10)], groups=["billing"])
        await until(lambda: bool(crashed) and db.server is not None and db.server.process.poll() is not None)
        assert db.server is not None
        db.server.start()
        db.engine().dispose()  # the crash has ended its connections
        await until(lambda: {stub.status for stub in stubs(db)} == {"CONFIRMED"})
    with db.engine().connect() as connection:
        texts = list(connection.scalars(select(invoices.c.text)))
    assert sorted(texts) == [str(number) for number in range(10)]
