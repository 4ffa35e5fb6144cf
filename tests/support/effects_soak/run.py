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
import json
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, create_engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from rucola.reliable import operations
from rucola.reliable.schema import ALERTING, CONFIRMED, NEW, SENT, VOID
from rucola.store.tools.check import check
from support.effects_soak.books import Books, Effect, StubState, judge, read_ledgers
from support.effects_soak.faults import FaultDriver, schedule
from support.effects_soak.scene import TABLES, Options, OrderBody, effects, orders
from support.effects_soak.system import CONSUMERS, RELAYS, SENDERS, System, system

POLL_S = 0.5
OPERATOR_S = 10.0
"""How often the operator resends what is left."""
RESENT_AT_ONCE = 500
COMPLAINTS = re.compile(r"a round of the relay failed|never retrieved|was destroyed but it is pending|\w+ failed$")


class EffectsSoak:
    """One run on a system that is up. `report` has its result."""

    def __init__(self, running: System, *, is_quiet: bool) -> None:
        self._system = running
        self._scene = running.scene
        self._out = sys.stderr if is_quiet else sys.stdout
        self._begin = time.monotonic()
        self._engines = [create_engine(url, poolclass=NullPool) for url in (self._scene.url, self._scene.stock_url)]
        self._resent: set[str] = set()
        self.report: dict[str, Any] = {}
        self.findings: list[str] = []

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._begin:7.1f} s  {what}", file=self._out, flush=True)

    async def run(self, seed: int, seconds: float, interval_s: float) -> None:
        """Run all phases."""
        stub = TABLES.stub
        driver = FaultDriver(self._system, self._say)
        await driver.run(schedule(seed, seconds, interval_s, self._system.options))
        self._say("no more faults; the senders stop")
        self.findings += await self._system.stop(SENDERS)
        is_open = stub.c.status.in_([NEW, SENT]) | (stub.c.status.in_(ALERTING) & stub.c.due_at.is_not(None))
        is_drained = await self._wait_for(is_open)
        if is_drained:
            await asyncio.to_thread(self._judge, "drained")
            self._scene.healed.touch()
            if await self._wait_for(stub.c.status.not_in([CONFIRMED, VOID]), self._resend):
                await asyncio.to_thread(self._judge, "repaired")
        self.findings += await self._system.stop((*RELAYS, *CONSUMERS))
        if await self._system.broker.stop():
            self.findings.append("the broker did not end well; its log is broker.log")
        self.findings += [f"store: {problem}" for problem in check(self._system.store)]
        self.findings += self._complaints()
        self.report |= {"faults": dict(sorted(driver.counts.items())), "findings": self.findings}

    async def _wait_for(self, is_left: ColumnElement[bool], repair: Callable[[], None] = lambda: None) -> bool:
        """Wait until no such stub is left, repairing from time to time; a finding if that takes too long."""
        begin = next_repair_s = time.monotonic()
        while (left := await asyncio.to_thread(self._count, is_left)) != 0:
            now = time.monotonic()
            if now > begin + 60 + 5 * self._scene.options.stuck_after_ms / 1000:
                self.findings.append(f"after {now - begin:.0f} s {left} messages are still open or not reported")
                return False
            if now >= next_repair_s:
                self._say(f"{left} messages are open")
                next_repair_s = now + OPERATOR_S
                await asyncio.to_thread(repair)
            await asyncio.sleep(POLL_S)
        self._say(f"none is open after {time.monotonic() - begin:.0f} s")
        return True

    def _count(self, condition: ColumnElement[bool]) -> int | None:
        """Return the number of such stubs, None if the database does not answer."""
        try:
            with self._engines[0].connect() as connection:
                return connection.scalar(select(func.count()).select_from(TABLES.stub).where(condition))
        except DBAPIError as error:
            self._say(f"the database does not answer: {error.orig}")
            return None

    def _resend(self) -> None:
        """Resend what is left to operators."""
        stub = TABLES.stub
        with self._engines[0].begin() as connection:
            rows = connection.execute(select(stub.c.message_id, stub.c.body).where(stub.c.status.in_(ALERTING))).all()
            self._resent |= {_order_of(row.body) for row in rows}
            for begin in range(0, len(rows), RESENT_AT_ONCE):
                message_ids = [row.message_id for row in rows[begin : begin + RESENT_AT_ONCE]]
                operations.resend(connection, TABLES, message_ids)

    def _judge(self, when: str) -> None:
        judgement = judge(self._read_books(), in_order=self._scene.options.in_order)
        left = judgement.left_to_operators
        self.report[when] = judgement.counts | left
        self.findings += [f"{when}: {finding}" for finding in judgement.findings]
        if when == "repaired":
            self.findings += [f"{count} messages are still {kind}" for kind, count in left.items() if kind != VOID]

    def _read_books(self) -> Books:
        """Read the ledgers and the tables of both databases."""
        stub = TABLES.stub
        columns = stub.c.message_id, stub.c.status, stub.c.due_at, stub.c.body
        with self._engines[0].connect() as connection:
            known = {row.id: (row.hash, row.shard_key) for row in connection.execute(select(orders))}
            stubs = {
                _order_of(row.body): StubState(row.message_id, row.status, row.due_at is not None)
                for row in connection.execute(select(*columns))
            }
        found = []
        for engine in self._engines:
            with engine.connect() as connection:
                rows = connection.execute(select(effects).order_by(effects.c.seq))
                found += [Effect(row.order_id, row.consumer_group, row.hash) for row in rows]
        return Books(read_ledgers(self._scene.ledgers), known, stubs, found, self._resent)

    def _complaints(self) -> list[str]:
        """Return lines of the logs that no fault explains."""
        found: Counter[str] = Counter()
        for path in sorted(self._scene.directory.glob("*.log")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found.update(f"{path.name}: {line[24:]}" for line in lines if COMPLAINTS.search(line))
        return [f"{line} ({count} times)" for line, count in found.items()]


def _order_of(body: bytes) -> str:
    return msgspec.msgpack.decode(body, type=OrderBody).order_id


async def soak(directory: Path, options: Options, chosen: argparse.Namespace) -> dict[str, Any]:
    """Start a system, run the soak and stop it; return the report."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # ends all processes
    async with system(directory, options) as running:
        run = EffectsSoak(running, is_quiet=chosen.json)
        await run.run(chosen.seed, chosen.minutes * 60, chosen.fault_interval)
        return run.report


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Orders are sent, relayed and consumed amid faults; each must have its effect exactly once.",
        epilog="example: make soak-reliable ARGS='--minutes 60 --database mariadb --seed 7'",
    )
    parser.add_argument("--minutes", type=float, default=10, help="how long faults happen (default: %(default)s)")
    parser.add_argument("--database", choices=["postgresql", "mariadb", "sqlite"], default="postgresql")
    parser.add_argument("--seed", type=int, default=1, help="draws the faults (default: %(default)s)")
    parser.add_argument("--fault-interval", type=float, default=3, metavar="S", help="mean (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="short leases; and no order, whose locks outlive a kill")
    parser.add_argument("--directory", type=Path, help="new directory in which logs, ledgers and the store are kept")
    parser.add_argument("--json", action="store_true", help="print the report as JSON; progress goes to stderr")
    chosen = parser.parse_args()
    quick = {"in_order": False, "lease_ms": 1500, "stuck_after_ms": 10_000} if chosen.quick else {}
    options = Options(chosen.database, **quick)
    with ExitStack() as stack:
        root = chosen.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rucola-soak-")))
        report = asyncio.run(soak(root / "run", options, chosen))
    print(json.dumps(report, indent=2))
    sys.exit(bool(report["findings"]))


if __name__ == "__main__":
    main()
