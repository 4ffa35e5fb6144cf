"""Faults of an effects soak: a schedule drawn from a seed, and a driver that carries it out.

    kill           SIGKILL; started again on the same port or data, or as a new process
    pause          SIGSTOP, longer than a lease, then SIGCONT
    restart        of the broker by SIGTERM
    wipe           the broker's store is removed while it is down
    flush          Redis forgets all keys
    connections    the database ends half of its connections
    lock           SQLite's file is locked for longer than its writers wait
    cut, reset, half_open, freeze, refuse, delay
                   between all clients and the broker (`support.proxy`)
    void           an operator voids two messages

The schedule is dealt from a shuffled deck, so that each kind of fault comes once before any comes again.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from redis.asyncio import Redis
from sqlalchemy import Connection, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from rucola.reliable import operations
from rucola.reliable.schema import NEW, SENT
from support.effects_soak.books import Ledger
from support.effects_soak.scene import TABLES, Options
from support.effects_soak.system import CONSUMERS, RELAYS, SENDERS, System

VOIDED_AT_ONCE = 2
DELAY_MS = 150
SQLITE_TIMEOUT_S = 5.0
"""How long sqlite3 waits for a lock by default."""
CONNECTIONS = {
    "postgresql": "SELECT 'SELECT pg_terminate_backend(' || pid || ')' FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid % 2 = 0",
    "mysql": "SELECT CONCAT('KILL ', id) FROM information_schema.processlist "
    "WHERE id <> connection_id() AND id % 2 = 0 AND user <> ''",
}
"""Queries for the statements that end half of the connections."""


class FaultEvent(NamedTuple):
    """One fault of a schedule."""

    at_s: float
    name: str
    target: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name} {self.target} for {self.seconds:.1f} s"


def deck(options: Options) -> list[tuple[str, int, tuple[str, ...], tuple[float, float]]]:
    """Return the faults that a run can have: name, number of cards, targets, and how long it lasts."""
    lease_s = options.lease_ms / 1000
    no_time, outage, beyond_lease = (0.0, 0.0), (0.2, 1.5 * lease_s), (1.2 * lease_s, 2.5 * lease_s)
    locked = (1.2 * SQLITE_TIMEOUT_S, 1.5 * SQLITE_TIMEOUT_S)
    of_database = [
        ("kill", 1, ("database",), outage), ("connections", 3, ("database",), no_time),
        ("pause", 1, ("database",), outage),
    ]  # fmt: skip
    return [
        ("kill", 3, SENDERS, no_time), ("kill", 4, RELAYS, no_time), ("kill", 4, CONSUMERS, no_time),
        ("kill", 2, ("broker",), outage), ("kill", 1, ("namesrv",), outage), ("kill", 1, ("redis",), outage),
        ("pause", 1, SENDERS, beyond_lease), ("pause", 2, RELAYS, beyond_lease), ("pause", 3, CONSUMERS, beyond_lease),
        ("pause", 1, ("broker",), outage), ("pause", 1, ("redis",), outage),
        ("restart", 1, ("broker",), outage), ("wipe", 1, ("broker",), outage), ("flush", 1, ("redis",), no_time),
        *((name, 1, ("network",), no_time) for name in ("cut", "reset", "half_open")),
        *((name, 1, ("network",), outage) for name in ("freeze", "refuse")),
        ("delay", 1, ("network",), (lease_s, 2 * lease_s)), ("void", 1, ("operator",), no_time),
        *([("lock", 2, ("database",), locked)] if options.database == "sqlite" else of_database),
    ]  # fmt: skip


def schedule(seed: int, seconds: float, interval_s: float, options: Options) -> Iterator[FaultEvent]:
    """Yield the faults of a run, the same for the same arguments; the last ends before `seconds`, if it lasts."""
    chosen = random.Random(seed)
    at_s = 0.0
    while True:
        cards = [(name, targets, lasts) for name, count, targets, lasts in deck(options) for _ in range(count)]
        chosen.shuffle(cards)
        for name, targets, lasts in cards:
            at_s += chosen.uniform(0.5, 1.5) * interval_s
            event = FaultEvent(at_s, name, chosen.choice(targets), chosen.uniform(*lasts))
            if at_s + event.seconds > seconds:
                return
            yield event


class FaultDriver:
    """Carries out a schedule. Faults of different targets overlap, those of one target follow each other."""

    def __init__(self, system: System, say: Callable[[str], None]) -> None:
        self._system = system
        self._say = say
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._operator = Ledger(system.scene.ledgers / "operator.ledger")
        self.counts: Counter[str] = Counter()
        """Faults by kind and kind of target, for example "kill relay"."""

    async def run(self, events: Iterator[FaultEvent]) -> None:
        """Carry out all faults; return when the last has ended."""
        begin = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for event in events:
                await asyncio.sleep(max(0.0, begin + event.at_s - asyncio.get_running_loop().time()))
                group.create_task(self._carry_out(event))

    async def _carry_out(self, event: FaultEvent) -> None:
        async with self._locks[event.target]:
            self._say(str(event))
            process, proxy = self._system.processes.get(event.target), self._system.proxy
            match event.name:
                case "kill" | "restart" | "wipe":
                    assert process is not None
                    await (process.stop() if event.name == "restart" else process.kill())
                    if event.name == "wipe":
                        shutil.rmtree(self._system.store)
                    await asyncio.sleep(event.seconds)
                    await process.start()
                    if event.name == "wipe":
                        await self._system.create_topic()
                case "pause":
                    assert process is not None
                    process.signal(signal.SIGSTOP)
                    try:
                        await asyncio.sleep(event.seconds)
                    finally:
                        process.signal(signal.SIGCONT)
                case "flush":
                    async with Redis.from_url(self._system.scene.redis_url) as client:
                        await client.flushall()
                case "cut" | "reset" | "half_open":
                    getattr(proxy, event.name)()
                case "freeze":
                    proxy.freeze()
                    await asyncio.sleep(event.seconds)
                    proxy.thaw()
                case "refuse":
                    proxy.refuse()
                    await asyncio.sleep(event.seconds)
                    await proxy.accept()
                case "delay":
                    proxy.delay_ms = DELAY_MS
                    await asyncio.sleep(event.seconds)
                    proxy.delay_ms = 0
                case _:
                    await asyncio.to_thread(self._in_database, event)
            self.counts[f"{event.name} {event.target.partition('-')[0]}"] += 1

    def _in_database(self, event: FaultEvent) -> None:
        """Carry out a fault on a connection of its own, unless the database is away."""
        try:
            with create_engine(self._system.scene.url, poolclass=NullPool).connect() as connection:
                match event.name:
                    case "void":
                        self._void(connection)
                    case "lock":
                        connection.exec_driver_sql("BEGIN EXCLUSIVE")
                        time.sleep(event.seconds)
                    case _:
                        for statement in connection.scalars(text(CONNECTIONS[connection.dialect.name])).all():
                            with suppress(DBAPIError):  # it has ended by itself
                                connection.execute(text(statement))
        except DBAPIError as error:
            self._say(f"the database did not answer: {str(error.orig).splitlines()[0]}")

    def _void(self, connection: Connection) -> None:
        stub = TABLES.stub
        found = select(stub.c.message_id).where(stub.c.status.in_([NEW, SENT])).order_by(stub.c.seq.desc())
        message_ids = list(connection.scalars(found.limit(VOIDED_AT_ONCE)))
        for message_id in message_ids:  # noted before: the commit may be applied and report an error
            self._operator.note("voided", message_id)
        operations.void(connection, TABLES, message_ids)
        connection.commit()
