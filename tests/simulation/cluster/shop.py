"""A shop: orders with messages in an outbox, relays that send them, and a listener that makes an invoice of each.

All of it is the program's own, on SQLite. A database is a file that its clients reach without a network, and that loses
nothing. Each call in a thread of aiosqlite happens at once, some milliseconds later; one that finds the database locked
is repeated for a while. The databases have a clock, which faults set.

Needs the extra `reliable`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import aiosqlite.core
import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, event, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from rucola.client import Message, MessageExt, PushConsumer, ReconsumeLater
from rucola.client.consumer.options import ConsumeFromWhere
from rucola.message.properties import TIMER_DELAY_MS
from rucola.reliable import Alert, Alerts, Outbox, Policy, Relay, Tables, idempotent, migration
from rucola.reliable.schema import ALERTING, CONFIRMED
from simulation.cluster.plan import ORDERS
from simulation.network import BEGIN_NS, _machine

if TYPE_CHECKING:
    from simulation.cluster.clients import Program
    from simulation.cluster.run import Run

GROUP: Final = "g-billing"
CLOCK: Final = "database"
"""The machine whose clock the databases have."""
LEASE_MS: Final = 9000
POLICY: Final = Policy(
    batch=8,
    max_sends=40,
    confirm_timeout_ms=6000,
    retry_ms=500,
    max_retry_ms=4000,
    max_check_ms=8000,
    lease_ms=LEASE_MS,
    poll_ms=1000,
)
JULIAN_1970: Final = 2440587.5
CUSTOMERS: Final = 4
BUSY_PAUSE_S: Final = 0.01
"""Between two attempts of a call to get a lock."""

SHOP: Final = MetaData()
ORDER: Final = Table(
    "shop_order",
    SHOP,
    Column("number", Integer, primary_key=True),
    Column("body", String(40), nullable=False),
    Column("customer", String(40)),
)
BILLING: Final = MetaData()
INVOICE: Final = Table(
    "invoice", BILLING, Column("number", Integer, primary_key=True), Column("body", String(40), nullable=False)
)


class _Thread:
    """The thread of a connection: there is none, see `_Calls`."""

    def __init__(self, target: Callable[..., Any], args: Any = ()) -> None: ...

    def start(self) -> None: ...


class Shop:
    """The databases of a run, and what its clients know of them."""

    group = GROUP

    def __init__(self, run: Run, patch: pytest.MonkeyPatch) -> None:
        self.run = run
        patch.setattr(aiosqlite.core, "Thread", _Thread)
        patch.setattr(aiosqlite.core, "SimpleQueue", lambda: _Calls(self))
        seed = run.plan.seed
        chance = Random(f"{seed}/shop")
        self.is_orderly = chance.random() < 0.5
        self._has_ledger = chance.random() < 0.3
        """Whether invoices are in another database than orders."""
        self._thread_s = chance.choice((0.0002, 0.002, 0.01))
        self._threads = Random(f"{seed}/database threads")
        self.busy_s = chance.choice((0.0, 0.5, 5.0))
        """How long a call waits for a lock."""
        self.root = run.world.root / "databases"
        self.root.mkdir()
        self.tables = Tables()
        self._connections: defaultdict[str, list[sqlite3.Connection]] = defaultdict(list)
        """By process."""
        self.alerted: Counter[str] = Counter()
        """How many messages of each status alerts were about; they name only some."""
        self._locks: dict[str, sqlite3.Connection] = {}
        for name in {"orders": 1, self.invoices: 1}:
            engine = self._watched(create_engine(f"sqlite:///{self._path(name)}"))
            with engine.begin() as connection:
                connection.exec_driver_sql(f"PRAGMA journal_mode={chance.choice(('DELETE', 'WAL'))}")
            with engine.begin() as connection:
                migration.init(connection, self.tables)
                SHOP.create_all(connection)
                BILLING.create_all(connection)
            engine.dispose()

    @property
    def invoices(self) -> str:
        """The database with the invoices."""
        return "invoices" if self._has_ledger else "orders"

    def _path(self, name: str) -> Path:
        return self.root / f"{name}.db"

    # Connections.

    def thread_time(self) -> float:
        return self._threads.expovariate(1 / self._thread_s)

    @asynccontextmanager
    async def engine(self, name: str) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{self._path(name)}", connect_args={"timeout": 0})
        self._watched(engine.sync_engine)
        try:
            yield engine
        finally:
            await engine.dispose()

    def sync_engine(self, name: str) -> Engine:
        return self._watched(create_engine(f"sqlite:///{self._path(name)}", connect_args={"timeout": 0}))

    def _watched(self, engine: Engine) -> Engine:
        @event.listens_for(engine, "connect")
        def connected(connection: Any, record: object) -> None:
            raw = connection if isinstance(connection, sqlite3.Connection) else connection.driver_connection._conn
            raw.create_function("julianday", 1, self._julianday)
            raw.execute("PRAGMA synchronous=OFF")
            self._connections[_machine.get()].append(raw)

        return engine

    def _julianday(self, when: str) -> float:
        assert when == "now"
        return JULIAN_1970 + (BEGIN_NS / 1e9 + self.run.loop.now_s + self.run.loop.clock_offsets[CLOCK]) / 86_400

    def ended(self, process: str) -> None:
        """Close what an ended process has open, as the system does: what it has not committed is rolled back."""
        for connection in self._connections.pop(process, ()):
            with suppress(sqlite3.ProgrammingError):  # it is closed already
                connection.rollback()
                connection.close()

    async def lock(self, length_s: float) -> None:
        """Let another program hold the lock of each database, as soon as it gets it."""
        held = []
        for path in sorted(self.root.glob("*.db")):
            held.append(connection := sqlite3.connect(path, timeout=0, isolation_level=None))
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    break
                except sqlite3.OperationalError:
                    await asyncio.sleep(0.05)
        await asyncio.sleep(length_s)
        for connection in held:
            connection.close()

    # Clients.

    def programs(self, program: Program) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        return {
            "outbox": lambda: self._order(program),
            "relay": lambda: self._relay(program),
            "billing": lambda: self._bill(program),
        }

    async def _order(self, program: Program) -> None:
        """Commit orders with their messages, or roll them back."""
        outbox, chance = Outbox([GROUP], tables=self.tables), program.chance
        async with self.engine("orders") as engine:
            while program._is_sending():
                await program._pause()
                customer = chance.choice((None, f"customer-{chance.randrange(CUSTOMERS)}"))
                delay_s = 0.0 if customer else chance.choice((0.0, 0.0, 1.0, 5.0))
                sent = program._new(ORDERS, is_retried=True, delay_s=delay_s, decision="unknown")
                sent.broker = CLOCK
                message = Message(ORDERS, sent.body.encode())
                if delay_s:
                    message.properties[TIMER_DELAY_MS] = str(round(delay_s * 1000))
                try:
                    async with AsyncSession(engine) as session:
                        await session.execute(insert(ORDER).values(body=sent.body, customer=customer))
                        message.unique_key = sent.body.replace(":", "-")
                        outbox.add(session, message, shard_key=customer)
                        if chance.random() < 0.5:
                            await session.flush()
                            await asyncio.sleep(chance.choice((0.0, 0.001, 0.02)))
                        if chance.random() < 0.25:
                            sent.decision = "rollback"
                            await session.rollback()
                            program.say(f"rolls {sent.body} back")
                            continue
                        await session.commit()
                    program.say(f"commits {sent.body}")
                    program.run.count("send outbox ok")
                except DBAPIError as error:
                    program.run.count("send outbox DBAPIError")
                    program.say(f"does not know what became of {sent.body}: {error.orig}")
            await program.leaving.wait()

    async def _relay(self, program: Program) -> None:
        def alert(alert: Alert) -> None:
            program.say(f"alerts: {alert.title()}: {alert.detail}")
            self.alerted[alert.kind] += alert.count

        engine = self.sync_engine("orders")
        alerts = Alerts([alert], interval_ms=2000)
        async with Relay(
            engine, self.run.world.namesrv, tables=self.tables, policy=POLICY, alerts=alerts
        ) as program.using:
            await program.leaving.wait()
        engine.dispose()

    async def _bill(self, program: Program) -> None:
        chance = program.chance
        async with self.engine("orders") as orders, self.engine(self.invoices) as invoices:

            @idempotent(
                invoices if self._has_ledger else orders,
                GROUP,
                ledger=orders if self._has_ledger else None,
                tables=self.tables,
                lease_ms=LEASE_MS,
            )
            async def bill(message: MessageExt, session: AsyncSession) -> None:
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.choice((0.02, 0.5)))
                await session.execute(insert(INVOICE).values(body=message.body.decode()))
                await asyncio.sleep(chance.choice((0.0, 0.001, 0.01)))
                if chance.random() < 0.05:
                    program.say(f"fails with {message.body.decode()}")
                    raise ReconsumeLater

            async def listen(message: MessageExt) -> None:
                delivery = program._delivery(message, program._broker_of(message))
                self.run.history.begin(delivery, in_order=self.is_orderly)
                is_consumed = False
                try:
                    await bill(message)
                    is_consumed = True
                finally:
                    self.run.history.end(delivery, program.now_s(), is_consumed=is_consumed)
                    self.run.count(f"consume billing {'ok' if is_consumed else 'fails'}")
                    program.say(f"{'bills' if is_consumed else 'does not bill'} {delivery.body}")

            consumer = PushConsumer(
                GROUP,
                self.run.world.namesrv,
                orderly=self.is_orderly,
                consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            )
            consumer.subscribe(ORDERS)
            consumer.listen(listen)
            async with consumer:
                program.using = consumer
                await program.leaving.wait()

    # What must be true.

    def _rows(self, name: str, query: Any) -> list[Any]:
        connection = sqlite3.connect(self._path(name), timeout=0)
        try:
            return connection.execute(str(query.compile(compile_kwargs={"literal_binds": True}))).fetchall()
        finally:
            connection.close()

    def _stubs(self) -> list[tuple[str, str, int | None]]:
        """The message and status of each stub, and when a relay handles it next."""
        stub = self.tables.stub
        return self._rows("orders", select(stub.c.message_id, stub.c.status, stub.c.due_at))

    def waiting(self) -> list[str]:
        """What is not settled yet: neither confirmed, nor reported to an operator."""
        return [f"the stub of {name} is {status}" for name, status, due_at in self._stubs() if due_at is not None]

    def check(self) -> list[str]:
        """Each order is billed once, or an alert names it; nothing else is billed, or sent."""
        broken = []
        orders = self._rows("orders", select(ORDER.c.body, ORDER.c.customer).order_by(ORDER.c.number))
        invoices = [body for (body,) in self._rows(self.invoices, select(INVOICE.c.body).order_by(INVOICE.c.number))]
        stubs = {message_id: status for message_id, status, _ in self._stubs()}
        committed, counts = dict(orders), Counter(invoices)
        for sent in self.run.history.sent.values():
            if sent.topic != ORDERS:
                continue
            body, stub = sent.body, stubs.get(sent.body.replace(":", "-"))
            sent.decision = "commit" if body in committed else "rollback"
            if (stub is None) == (body in committed):
                what = "committed without" if stub is None else "rolled back, and has"
                broken.append(f"outbox: {body} was {what} a stub")
            if counts[body] > 1:
                broken.append(f"invoices: {body} is billed {counts[body]} times")
            if counts[body] and body not in committed:
                broken.append(f"invoices: {body} is billed, and was rolled back")
            if body in committed and not counts[body] and stub not in ALERTING:
                broken.append(f"invoices: {body} is not billed, and its stub is {stub}")
        for status, count in Counter(stubs.values()).items():
            if status not in (CONFIRMED, *ALERTING):
                broken.append(f"outbox: {count} stubs are {status} for ever")
            elif status in ALERTING and not any(
                self.run.history.may_lose(f"broker-{number}") for number in range(self.run.plan.groups)
            ):
                broken.append(f"outbox: {count} stubs are {status}, and nothing can be lost")
            elif status in ALERTING and self.alerted[status] < count:
                broken.append(f"outbox: {count} stubs are {status}, and alerts were about {self.alerted[status]}")
        if self.is_orderly:
            for customer in sorted(set(committed.values()) - {None}):
                expected = [body for body, each in orders if each == customer and counts[body]]
                got = [body for body in invoices if committed.get(body) == customer]
                if got != expected:
                    first = next(pair for pair in zip(got, expected, strict=True) if pair[0] != pair[1])
                    broken.append(f"invoices: of {customer}, {first[0]} is billed before {first[1]}")
        return broken


class _Calls:
    """The calls of a connection of aiosqlite, in place of its queue: each happens on the loop, after the one before."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._loop = shop.run.loop
        self._waiting: deque[tuple[asyncio.Future[Any] | None, Callable[[], Any]]] = deque()
        self._busy_until = 0.0

    def put_nowait(self, call: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._next()

    def _next(self) -> None:
        self._busy_until = self._loop.time() + self._shop.busy_s
        self._loop.call_later(self._shop.thread_time(), self._run)

    def _run(self) -> None:
        future, function = self._waiting[0]
        result, error = None, None
        try:
            result = function()
        except Exception as raised:
            if getattr(raised, "sqlite_errorname", "") == "SQLITE_BUSY" and self._loop.time() < self._busy_until:
                self._loop.call_later(BUSY_PAUSE_S, self._run)
                return
            error = raised
        if future is not None and not future.done():
            future.set_result(result) if error is None else future.set_exception(error)
        self._waiting.popleft()
        if self._waiting:
            self._next()
