"""A soak of business reliability: real processes, faults from a seed, and a judgement about every order.

    python -m support.effects_soak.run [--minutes 10] [--database postgresql] [--seed 1]    with tests/ on PYTHONPATH

Three senders commit orders with their messages, three relays send them, and two workers of each of two groups write one
effect for each (`roles`). Meanwhile a driver kills, pauses, restarts, wipes, cuts (`faults`). Then

    1. the faults end and the senders stop
    2. everything drains: no message is left NEW or SENT, and each alert is delivered
    3. the books are judged (`books`): each order has its effect in each group, or operators were told
    4. an operator repairs the consumers and resends what was left; it drains
    5. the books are judged again: now each order has its effect, except those that the operator voided
    6. the broker's store is checked

Exit code 1 and the findings if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from rucola.reliable import operations
from rucola.reliable.schema import ALERTING, CONFIRMED, NEW, SENT, VOID
from rucola.store.tools.check import check
from support.effects_soak.books import Books, Effect, Judgement, StubState, judge, read_ledgers
from support.effects_soak.faults import FaultDriver, schedule
from support.effects_soak.scene import GROUPS, TABLES, Scene, decode_body, effects, orders
from support.effects_soak.system import CONSUMERS, RELAYS, SENDERS, Options, System, system

PROGRESS_S = 10.0
POLL_S = 0.5
OPERATOR_S = 10.0
"""How often the operator resends what is left."""
COMPLAINTS = re.compile(r"a round of the relay failed|never retrieved|was destroyed but it is pending|\w+ failed$")


class EffectsSoakReport(msgspec.Struct, rename="camel"):
    """The result of a run. Counts of deliveries are of messages, by group."""

    database: str
    seed: int
    minutes: float
    seconds: float
    """Of the whole run, with start and drain."""
    faults: dict[str, int]
    kills: int
    deliveries: dict[str, int]
    duplicates_dropped: dict[str, int]
    failed: dict[str, int]
    alerts: int
    drained: Judgement | None
    """When everything had drained by itself."""
    repaired: Judgement | None
    """After the operator."""
    findings: list[str]

    def lines(self) -> list[str]:
        """Return the report for people."""
        last = self.repaired or self.drained
        lines = [
            f"{self.database}, seed {self.seed}: {self.seconds:.0f} s, of them {self.minutes * 60:.0f} with faults"
        ]

        def row(what: str, value: object) -> None:
            lines.append(f"  {what:<34}{value}")

        if last is not None:
            row("orders committed", f"{last.committed:,} ({last.uncertain:,} of them without an answer)")
            row("orders rolled back", f"{last.rolled_back:,}")
            row("effects", f"{last.effects:,} in {len(GROUPS)} groups")
        row("faults", f"{sum(self.faults.values()):,} ({self.kills:,} kills)")
        for group in GROUPS:
            row(
                f"{group}: deliveries",
                f"{self.deliveries.get(group, 0):,}, failed or held {self.failed.get(group, 0):,}, "
                f"duplicates dropped {self.duplicates_dropped.get(group, 0):,}",
            )
        if self.drained is not None:
            left = ", ".join(f"{count} {kind}" for kind, count in sorted(self.drained.left_to_operators.items()))
            row("left to operators, before repair", f"{left or 'none'}; {self.alerts} alerts")
        if last is not None:
            row("silently lost", last.silently_lost)
            row("done twice", last.done_twice)
            row("out of order", last.out_of_order)
        return [*lines, *(f"FINDING: {finding}" for finding in self.findings)]


class EffectsSoak:
    """One run on a system that is up."""

    def __init__(self, running: System, seed: int, *, is_quiet: bool) -> None:
        self._system = running
        self._scene = running.scene
        self._seed = seed
        self._out = sys.stderr if is_quiet else sys.stdout
        self._begin = time.monotonic()
        self._engines = {
            url: create_engine(url, poolclass=NullPool) for url in (self._scene.url, self._scene.stock_url)
        }
        self._driver = FaultDriver(running, self._say)
        self._resent: set[str] = set()
        self.findings: list[str] = []

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._begin:7.1f} s  {what}", file=self._out, flush=True)

    async def run(self, minutes: float, interval_s: float) -> EffectsSoakReport:
        """Run all phases."""
        await self._with_faults(minutes * 60, interval_s)
        self.findings += [f"{name} ended by itself" for name in self._system.ended()]
        self._say("no more faults; the senders stop")
        self.findings += await self._system.stop(SENDERS)
        drained = repaired = None
        if await self._drain():
            drained = await self._judge("drained")
            if await self._repair():
                repaired = await self._judge("repaired")
        self.findings += [f"{name} ended by itself" for name in self._system.ended() if name not in SENDERS]
        self.findings += await self._system.stop((*RELAYS, *CONSUMERS))
        if await self._system.messaging.end("broker"):
            self.findings.append("the broker did not end well; its log is broker.log")
        self.findings += [f"store: {problem}" for problem in check(self._system.messaging.store)]
        self.findings += self._complaints()
        ledgers = read_ledgers(self._scene.ledgers)
        faults = dict(sorted(self._driver.counts.items()))
        return EffectsSoakReport(
            self._system.options.database, self._seed, minutes, round(time.monotonic() - self._begin, 1),
            faults, sum(count for name, count in faults.items() if name.startswith("kill")),
            dict(ledgers.deliveries), dict(ledgers.dropped), dict(ledgers.failed), ledgers.alerts,
            drained, repaired, self.findings,
        )  # fmt: skip

    async def _with_faults(self, seconds: float, interval_s: float) -> None:
        events = schedule(self._seed, seconds, interval_s, self._system.options)
        faults = asyncio.create_task(self._driver.run(events))
        end = time.monotonic() + seconds
        try:
            while (left_s := end - time.monotonic()) > 0:
                await asyncio.wait([faults], timeout=min(left_s, PROGRESS_S))
                if faults.done():
                    await faults
                    await asyncio.sleep(min(PROGRESS_S, max(0.0, end - time.monotonic())))
                self._say(await asyncio.to_thread(self._progress))
            await faults
        finally:
            faults.cancel()

    # Waiting.

    async def _drain(self) -> bool:
        """Wait until nothing is left NEW or SENT, nor an alert to be delivered; a finding if that takes too long."""
        begin = said = time.monotonic()
        deadline = begin + 60 + 5 * self._scene.stuck_after_ms / 1000
        while (open_count := await asyncio.to_thread(self._open_count)) != 0:
            now = time.monotonic()
            if now > deadline:
                self.findings.append(f"after {now - begin:.0f} s {open_count} messages are still open or not reported")
                return False
            if now - said > PROGRESS_S:
                said = now
                self._say(f"draining: {await asyncio.to_thread(self._progress)}")
            await asyncio.sleep(POLL_S)
        self._say(f"drained in {time.monotonic() - begin:.0f} s")
        return True

    async def _repair(self) -> bool:
        """Repair the consumers and resend what is left, again and again, until every message is settled."""
        self._scene.healed.touch()
        deadline = time.monotonic() + 60 + 5 * self._scene.stuck_after_ms / 1000
        while (left := await asyncio.to_thread(self._resend)) != 0:
            if time.monotonic() > deadline:
                self.findings.append(f"{left} messages are still open after an operator resent them")
                return False
            self._say(f"an operator waits for {left} messages")
            for _ in range(int(OPERATOR_S / POLL_S)):
                await asyncio.sleep(POLL_S)
                if await asyncio.to_thread(self._unsettled_count) == 0:
                    break
        return True

    # The tables.

    def _progress(self) -> str:
        """Return a line about the run; it queries the database, which may be away."""
        stub = TABLES.stub
        try:
            with self._engines[self._scene.url].connect() as connection:
                counts = dict(connection.execute(select(stub.c.status, func.count()).group_by(stub.c.status)).all())
        except DBAPIError:
            return "the database does not answer"
        done = counts.get(CONFIRMED, 0)
        left = sum(counts.get(kind, 0) for kind in (*ALERTING, VOID))
        total = sum(counts.values())
        return f"orders {total:,}  confirmed {done:,}  waiting {total - done - left:,}  left to operators {left:,}"

    def _open_count(self) -> int | None:
        stub = TABLES.stub
        is_open = stub.c.status.in_([NEW, SENT]) | (stub.c.status.in_(ALERTING) & stub.c.due_at.is_not(None))
        return self._count(is_open)

    def _unsettled_count(self) -> int | None:
        return self._count(TABLES.stub.c.status.not_in([CONFIRMED, VOID]))

    def _count(self, condition: Any) -> int | None:
        """Return the number of such stubs, None if the database does not answer."""
        try:
            with self._engines[self._scene.url].connect() as connection:
                return connection.scalar(select(func.count()).select_from(TABLES.stub).where(condition))
        except DBAPIError as error:
            self._say(f"the database does not answer: {error.orig}")
            return None

    def _resend(self) -> int:
        """Resend what is left to operators; return how many messages are not settled."""
        stub = TABLES.stub
        with self._engines[self._scene.url].begin() as connection:
            rows = connection.execute(select(stub.c.message_id, stub.c.body).where(stub.c.status.in_(ALERTING))).all()
            self._resent |= {decode_body(row.body).order_id for row in rows}
            for begin in range(0, len(rows), 500):
                operations.resend(connection, TABLES, [row.message_id for row in rows[begin : begin + 500]])
        return self._unsettled_count() or 0

    async def _judge(self, when: str) -> Judgement:
        books = await asyncio.to_thread(read_books, self._engines, self._scene, self._resent)
        judgement = judge(books, GROUPS, in_order=self._scene.in_order)
        if when == "repaired":
            left = {kind: count for kind, count in judgement.left_to_operators.items() if kind != VOID}
            judgement.findings += [f"{count} messages are still {kind}" for kind, count in left.items()]
        self.findings += [f"{when}: {finding}" for finding in judgement.findings]
        return judgement

    def _complaints(self) -> list[str]:
        """Return lines of the logs that no fault explains."""
        found: Counter[str] = Counter()
        for path in sorted(self._scene.directory.glob("*.log")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found.update(f"{path.name}: {line[24:]}" for line in lines if COMPLAINTS.search(line))
        return [f"{line} ({count} times)" for line, count in found.items()]


def read_books(engines: dict[str, Engine], scene: Scene, resent: set[str]) -> Books:
    """Read the ledgers and the tables of both databases."""
    stub = TABLES.stub
    with engines[scene.url].connect() as connection:
        known = {row.id: (row.hash, row.shard_key) for row in connection.execute(select(orders))}
        stubs = {
            decode_body(row.body).order_id: StubState(row.message_id, row.status, row.due_at is not None)
            for row in connection.execute(select(stub.c.message_id, stub.c.status, stub.c.due_at, stub.c.body))
        }
    found = []
    for url in dict.fromkeys(map(scene.business_url, GROUPS)):
        with engines[url].connect() as connection:
            rows = connection.execute(select(effects).order_by(effects.c.seq))
            found += [Effect(row.order_id, row.consumer_group, row.hash) for row in rows]
    return Books(read_ledgers(scene.ledgers), known, stubs, found, resent)


async def soak(
    directory: Path, options: Options, seed: int, minutes: float, interval_s: float, *, is_quiet: bool
) -> EffectsSoakReport:
    """Start a system, run the soak and stop it."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # ends all processes
    async with system(directory, options) as running:
        return await EffectsSoak(running, seed, is_quiet=is_quiet).run(minutes, interval_s)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Orders are sent, relayed and consumed amid faults; each must have its effect exactly once.",
        epilog="example: make soak-reliable ARGS='--minutes 60 --database mariadb --seed 7'",
    )
    parser.add_argument("--minutes", type=float, default=10, help="how long faults happen (default: %(default)s)")
    parser.add_argument("--database", choices=["postgresql", "mariadb", "sqlite"], default="postgresql")
    parser.add_argument("--seed", type=int, default=1, help="draws the faults (default: %(default)s)")
    parser.add_argument("--fault-interval", type=float, default=3, metavar="S", help="mean (default: %(default)s)")
    parser.add_argument("--orders", type=float, default=10, help="by each sender in a second (default: %(default)s)")
    parser.add_argument("--without-redis", action="store_true", help="no claims in Redis before the database's")
    parser.add_argument("--quick", action="store_true", help="short leases; and no order, whose locks outlive a kill")
    parser.add_argument("--directory", type=Path, help="new directory in which logs, ledgers and the store are kept")
    parser.add_argument("--schedule", action="store_true", help="print the faults that the seed draws, and end")
    parser.add_argument("--json", action="store_true", help="print the report as JSON; progress goes to stderr")
    chosen = parser.parse_args(arguments)
    options = Options(chosen.database, with_redis=not chosen.without_redis, orders_per_s=chosen.orders)
    if chosen.quick:
        options = options._replace(in_order=False, lease_ms=1500, stuck_after_ms=10_000)
    if chosen.schedule:
        for event in schedule(chosen.seed, chosen.minutes * 60, chosen.fault_interval, options):
            print(f"{event.at_s:7.1f} s  {event}")
        return
    with ExitStack() as stack:
        root = chosen.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rucola-soak-")))
        report = asyncio.run(
            soak(root / "run", options, chosen.seed, chosen.minutes, chosen.fault_interval, is_quiet=chosen.json)
        )
    print(msgspec.json.format(msgspec.json.encode(report)).decode() if chosen.json else "\n".join(report.lines()))
    sys.exit(bool(report.findings))


if __name__ == "__main__":
    main()
