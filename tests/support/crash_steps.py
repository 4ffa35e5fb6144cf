"""Processes that kill or pause themselves at a named step: a sender, a relay and a consumer of one order.

They are forked from a warm process (multiprocessing's forkserver), since forty of them start. The steps are named after
what happens there. A process that is to end there sends itself SIGKILL, one that is to pause there SIGSTOP, before
anything else can run.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    Engine,
    MetaData,
    Select,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.orm import Session

from rucola.client import Message, MessageExt, Producer, PushConsumer
from rucola.client.consumer.options import ConsumeFromWhere
from rucola.reliable import Outbox, Policy, RedisClaims, Relay, Tables, idempotent
from rucola.reliable.database import Database
from support.outbox import until

GROUP = "billing"
LEASE_MS = 1000
PAUSE = "pause "

SENDER_STEPS = ("begun", "added", "committing", "committed")
RELAY_STEPS = (
    "claim_batch.before",
    "claim_batch.during",
    "claim_batch.after",
    "send.before",
    "send.after",
    "record.before",
    "record.after",
)
CONSUMER_STEPS = (
    "received", "key.before", "key.after", "claim.before", "claim.after", "business", "committing", "committed",
    "finish.before", "finish.after", "acknowledging",
)  # fmt: skip


class Scene(NamedTuple):
    """Where the processes of one order meet."""

    url: str
    prefix: str
    namesrv: str
    topic: str
    redis_url: str
    copy: str = ""
    """Consumers of another copy are of another group at the broker, and get their own delivery of the message."""
    skew_s: int = 0
    """How far the clock of the process is ahead of the machine's."""

    @property
    def tables(self) -> Tables:
        return Tables(self.prefix)

    def engine(self) -> Engine:
        return create_engine(self.url)

    def orders(self) -> Table:
        return Table(f"{self.prefix}order", MetaData(), Column("id", String(20), primary_key=True))

    def invoices(self) -> Table:
        return Table(f"{self.prefix}invoice", MetaData(), Column("order_id", String(20)))

    def count(self, table: Table) -> int:
        return int(self._scalar(select(func.count()).select_from(table)) or 0)

    def status(self) -> str | None:
        status: str | None = self._scalar(select(self.tables.stub.c.status))
        return status

    def created_ms(self) -> int:
        return int(self._scalar(select(self.tables.stub.c.created_at)))

    def _scalar(self, query: Select[Any]) -> Any:
        # Without a transaction, which a server would end while the process is paused.
        with self.engine().execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            return connection.scalar(query)


class Steps:
    """Ends the process at one of the steps, or pauses it there the first time if `at` is "pause STEP"; "" is none."""

    def __init__(self, at: str) -> None:
        self._at = at.removeprefix(PAUSE)
        self._signal = signal.SIGSTOP if at.startswith(PAUSE) else signal.SIGKILL
        self._querying = threading.Lock()
        """Held by a query beside the steps. A pause in it would keep SQLite's read lock, which stops all writers."""

    def reach(self, step: str) -> None:
        if step == self._at:
            self._at = ""
            with self._querying:
                # To this thread, which then stops before the lock is released. The kernel gives a signal of os.kill to
                # the main thread, and this one would go on for a moment.
                signal.pthread_kill(threading.get_ident(), self._signal)

    def status(self, scene: Scene) -> str | None:
        """Return the status of the scene's stub; the process does not pause meanwhile."""
        with self._querying:
            return scene.status()

    def around(self, owner: Any, method: str, name: str | None = None) -> None:
        """Reach NAME.before and NAME.after around a method, NAME.during between a transaction's work and its commit."""
        whole = getattr(owner, method)

        async def stepped(*arguments: Any, **options: Any) -> Any:
            step = name or arguments[1].__name__
            self.reach(f"{step}.before")
            if name is None:
                arguments = (arguments[0], during(arguments[1]), *arguments[2:])
            result = await whole(*arguments, **options)
            self.reach(f"{step}.after")
            return result

        def during(work: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(work)
            def worked(*arguments: Any, **options: Any) -> Any:
                result = work(*arguments, **options)
                self.reach(f"{work.__name__}.during")
                return result

            return worked

        setattr(owner, method, stepped)


def send_order(scene: Scene, kill_at: str) -> None:
    """Add an order and its message, unless they are there."""
    steps = Steps(kill_at)
    if scene.count(scene.orders()):
        return
    outbox = Outbox([GROUP], tables=scene.tables)
    with Session(scene.engine()) as session:
        session.execute(insert(scene.orders()).values(id="order-1"))
        steps.reach("begun")
        outbox.add(session, Message(scene.topic, b"order-1"), shard_key="order-1")
        session.flush()
        steps.reach("added")
        event.listen(session, "before_commit", lambda session: steps.reach("committing"))
        session.commit()
        steps.reach("committed")


def relay_order(scene: Scene, kill_at: str) -> None:
    """Relay until the message is sent."""
    steps = Steps(kill_at)
    steps.around(Database, "run")
    steps.around(Database, "run_one")
    steps.around(Producer, "send", "send")

    async def main() -> None:
        policy = Policy(lease_ms=LEASE_MS, poll_ms=50, confirm_timeout_ms=60_000)
        async with Relay(scene.url, scene.namesrv, tables=scene.tables, policy=policy):
            await until(lambda: steps.status(scene) not in (None, "NEW"), 60)

    asyncio.run(main())


def consume_order(scene: Scene, kill_at: str) -> None:
    """Consume until the message is confirmed."""
    steps = Steps(kill_at)
    steps.around(Database, "run_one")
    steps.around(RedisClaims, "take", "key")
    steps.around(RedisClaims, "finish", "finish")

    @idempotent(scene.engine(), GROUP, tables=scene.tables, redis=RedisClaims(scene.redis_url), lease_ms=LEASE_MS)
    def bill(message: MessageExt, session: Session) -> None:
        event.listen(session, "before_commit", lambda session: steps.reach("committing"))
        event.listen(session, "after_commit", lambda session: steps.reach("committed"))
        session.execute(insert(scene.invoices()).values(order_id=message.body.decode()))
        steps.reach("business")

    def listener(message: MessageExt) -> None:
        steps.reach("received")
        bill(message)
        steps.reach("acknowledging")

    async def main() -> None:
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        # The group at the broker; the stub awaits the name in the tables of the business.
        group = f"{GROUP}-{scene.prefix}{scene.copy}"
        consumer = PushConsumer(group, scene.namesrv, consume_from=first)
        consumer.subscribe(scene.topic)
        consumer.listen(listener)
        async with consumer:
            await until(lambda: steps.status(scene) == "CONFIRMED", 60)

    asyncio.run(main())


class Processes:
    """Runs roles in processes of their own."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._lock = threading.Lock()

    def run(self, role: Callable[[Scene, str], None], scene: Scene, kill_at: str = "") -> None:
        """Run a role to its end. Its exit must be by SIGKILL if a step was named: then the step was reached."""
        process = self._start(role, scene, kill_at)
        self._join(process, -signal.SIGKILL if kill_at else 0)

    def run_while_paused(
        self, role: Callable[[Scene, str], None], scene: Scene, pause_at: str, work: Callable[[], None]
    ) -> None:
        """Run a role that pauses at a step; `work` meanwhile, then continue the role to its end."""
        process = self._start(role, scene, PAUSE + pause_at)
        try:
            _wait_until_paused(process)
            work()
        finally:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGCONT)
        self._join(process, 0)

    def _start(self, role: Callable[[Scene, str], None], scene: Scene, at: str) -> Any:
        process = self._context.Process(target=_in_own_time, args=(role, scene, at))
        with self._lock:
            process.start()
            # Each start polls all children, which takes the exit code away from the thread that joins one.
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
        return process

    @staticmethod
    def _join(process: Any, expected: int) -> None:
        process.join(90)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
        assert code == expected, f"the process ended with {code}, not {expected}"


def _wait_until_paused(process: Any) -> None:
    stat = Path(f"/proc/{process.pid}/stat")
    deadline = time.monotonic() + 60
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        assert process.is_alive(), "it ended before the step"
        assert time.monotonic() < deadline, "it never reached the step"
        time.sleep(0.01)


def _in_own_time(role: Callable[[Scene, str], None], scene: Scene, at: str) -> None:
    """Run a role in this new process, by a clock that is `skew_s` ahead."""
    if scene.skew_s:
        real_s, real_ns = time.time, time.time_ns
        time.time = lambda: real_s() + scene.skew_s
        time.time_ns = lambda: real_ns() + scene.skew_s * 1_000_000_000
    role(scene, at)


@contextmanager
def importable() -> Any:
    """The warm process finds this module as the tests do."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def create_business_tables(scene: Scene) -> None:
    engine = scene.engine()
    for table in (scene.orders(), scene.invoices()):
        assert not inspect(engine).has_table(table.name)
        table.create(engine)
    engine.dispose()
