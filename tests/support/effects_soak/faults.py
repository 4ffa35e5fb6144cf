"""Faults of an effects soak: a schedule drawn from a seed, and a driver that carries it out.

    kill           SIGKILL; started again on the same port or data, or as a new process
    pause          SIGSTOP, longer than a lease, then SIGCONT
    restart        of the broker by SIGTERM, of the database without a clean shutdown, of Redis without its keys
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
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from redis.asyncio import Redis
from sqlalchemy import Connection, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from rucola.reliable import operations
from rucola.reliable.schema import NEW, SENT
from support.effects_soak.books import VOIDED, Ledger
from support.effects_soak.scene import TABLES
from support.effects_soak.system import CONSUMERS, RELAYS, SENDERS, Options, System

VOIDED_AT_ONCE = 2
DELAY_MS = 150
SQLITE_TIMEOUT_S = 5.0
"""How long sqlite3 waits for a lock by default."""


class Fault(NamedTuple):
    """A kind of fault: `count` cards in the deck, its targets, and how long it lasts."""

    name: str
    count: int
    targets: tuple[str, ...]
    seconds: tuple[float, float] = (0.1, 0.1)


class FaultEvent(NamedTuple):
    """One fault of a schedule."""

    at_s: float
    name: str
    target: str
    seconds: float

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds > 0.1 else ""
        return f"{self.name} {self.target}{lasting}"


def deck(options: Options) -> list[Fault]:
    """Return the faults that a run with these options can have."""
    lease_s = options.lease_ms / 1000
    beyond_lease = (1.2 * lease_s, 2.5 * lease_s)
    outage = (0.2, 1.5 * lease_s)
    faults = [
        Fault("kill", 3, SENDERS), Fault("kill", 4, RELAYS), Fault("kill", 4, CONSUMERS),
        Fault("kill", 2, ("broker",), outage), Fault("kill", 1, ("namesrv",), outage),
        Fault("pause", 1, SENDERS, beyond_lease), Fault("pause", 2, RELAYS, beyond_lease),
        Fault("pause", 3, CONSUMERS, beyond_lease), Fault("pause", 1, ("broker",), outage),
        Fault("restart", 1, ("broker",), outage), Fault("wipe", 1, ("broker",), outage),
        Fault("cut", 1, ("network",)), Fault("reset", 1, ("network",)), Fault("half_open", 1, ("network",)),
        Fault("freeze", 1, ("network",), outage), Fault("refuse", 1, ("network",), outage),
        Fault("delay", 1, ("network",), (lease_s, 2 * lease_s)), Fault("void", 1, ("operator",)),
    ]  # fmt: skip
    if options.with_redis:
        faults += [
            Fault("restart", 1, ("redis",), outage), Fault("flush", 1, ("redis",)),
            Fault("pause", 1, ("redis",), outage),
        ]  # fmt: skip
    if options.database == "sqlite":
        faults += [Fault("lock", 2, ("database",), (1.2 * SQLITE_TIMEOUT_S, 1.5 * SQLITE_TIMEOUT_S))]
    else:
        faults += [
            Fault("restart", 1, ("database",), outage), Fault("connections", 3, ("database",)),
            Fault("pause", 1, ("database",), outage),
        ]  # fmt: skip
    return faults


def schedule(seed: int, seconds: float, interval_s: float, options: Options) -> Iterator[FaultEvent]:
    """Yield the faults of a run, the same for the same arguments; the last ends before `seconds`, if it lasts."""
    chosen = random.Random(seed)
    at_s = 0.0
    while True:
        cards = [fault for fault in deck(options) for _ in range(fault.count)]
        chosen.shuffle(cards)
        for fault in cards:
            at_s += chosen.uniform(0.5, 1.5) * interval_s
            event = FaultEvent(at_s, fault.name, chosen.choice(fault.targets), chosen.uniform(*fault.seconds))
            if at_s + event.seconds > seconds:
                return
            yield event


class FaultDriver:
    """Carries out a schedule. Faults of different targets overlap, those of one target follow each other."""

    def __init__(self, system: System, say: Callable[[str], None]) -> None:
        self._system = system
        self._messaging = system.messaging
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
            await getattr(self, f"_{event.name}")(event.target, event.seconds)
            self.counts[f"{event.name} {event.target.partition('-')[0]}"] += 1

    async def _kill(self, target: str, seconds: float) -> None:
        if target in self._system.processes:
            await self._system.processes[target].kill()
            self._system.processes[target].start()
        else:
            await self._messaging.end(target, signal.SIGKILL)
            await asyncio.sleep(seconds)
            await self._messaging.start(target)

    async def _pause(self, target: str, seconds: float) -> None:
        servers = {"database": self._system.database, "redis": self._system.redis}
        send: Callable[[signal.Signals], None]
        if target in self._system.processes:
            send = self._system.processes[target].send_signal
        elif (server := servers.get(target)) is not None:
            send = server.signal
        else:
            send = lambda number: self._messaging.send_signal(target, number)  # noqa: E731
        send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            send(signal.SIGCONT)

    async def _restart(self, target: str, seconds: float) -> None:
        server = {"database": self._system.database, "redis": self._system.redis}.get(target)
        if server is not None:
            if self._system.options.database == "postgresql" and target == "database":
                server.signal(signal.SIGQUIT)  # an immediate shutdown, which waits for no transaction
                await asyncio.to_thread(server.process.wait)
            else:
                await asyncio.to_thread(server.kill)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(server.start)
        else:
            await self._messaging.end(target)
            await asyncio.sleep(seconds)
            await self._messaging.start(target)

    async def _wipe(self, target: str, seconds: float) -> None:
        await self._messaging.end(target, signal.SIGKILL)
        self._messaging.wipe()
        await asyncio.sleep(seconds)
        await self._messaging.start(target)
        await self._messaging.create_topic()

    async def _flush(self, target: str, seconds: float) -> None:
        assert self._system.scene.redis_url is not None
        async with Redis.from_url(self._system.scene.redis_url) as client:
            await client.flushall()

    async def _connections(self, target: str, seconds: float) -> None:
        await self._in_database(_end_connections)

    async def _lock(self, target: str, seconds: float) -> None:
        def lock(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
            time.sleep(seconds)

        await self._in_database(lock)

    async def _cut(self, target: str, seconds: float) -> None:
        self._messaging.proxy.cut()

    async def _reset(self, target: str, seconds: float) -> None:
        self._messaging.proxy.reset()

    async def _half_open(self, target: str, seconds: float) -> None:
        self._messaging.proxy.half_open()

    async def _freeze(self, target: str, seconds: float) -> None:
        self._messaging.proxy.freeze()
        await asyncio.sleep(seconds)
        self._messaging.proxy.thaw()

    async def _refuse(self, target: str, seconds: float) -> None:
        self._messaging.proxy.refuse()
        await asyncio.sleep(seconds)
        await self._messaging.proxy.accept()

    async def _delay(self, target: str, seconds: float) -> None:
        self._messaging.proxy.delay_ms = DELAY_MS
        await asyncio.sleep(seconds)
        self._messaging.proxy.delay_ms = 0

    async def _void(self, target: str, seconds: float) -> None:
        def void(connection: Connection) -> None:
            stub = TABLES.stub
            found = select(stub.c.message_id).where(stub.c.status.in_([NEW, SENT])).order_by(stub.c.seq.desc())
            message_ids = list(connection.scalars(found.limit(VOIDED_AT_ONCE)))
            for message_id in message_ids:  # noted before: the commit may be applied and report an error
                self._operator.note(VOIDED, message_id)
            operations.void(connection, TABLES, message_ids)
            connection.commit()

        await self._in_database(void)

    async def _in_database(self, work: Callable[[Connection], None]) -> None:
        """Run `work` on a connection of its own, unless the database is away."""
        engine = create_engine(self._system.scene.url, poolclass=NullPool)

        def run() -> None:
            with engine.connect() as connection:
                work(connection)

        try:
            await asyncio.to_thread(run)
        except DBAPIError as error:
            self._say(f"the database did not answer: {str(error.orig).splitlines()[0]}")


def _end_connections(connection: Connection) -> None:
    """End half of the connections to a server, by its own command."""
    if connection.dialect.name == "postgresql":
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid % 2 = 0"
            )
        )
        return
    ids = connection.scalars(
        text("SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND id % 2 = 0 AND user <> ''")
    ).all()
    for number in ids:
        try:
            connection.execute(text(f"KILL {int(number)}"))
        except DBAPIError:
            continue  # it has ended by itself
