"""Idempotent consumption beside the bare handler, and the tables under load: selection among a million stubs, size."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, event, insert, text
from sqlalchemy.orm import Session

from figures import Aim, Figure
from floors import Options, in_turns
from outbox import BODY, GROUP, BenchmarkDatabase, add, forget_statements, messages, statement_counts
from rucola.message import MessageExt, properties
from rucola.reliable import idempotent, lane_leases, operations, stub_claims
from rucola.reliable.database import Database
from rucola.reliable.schema import LANES
from rucola.reliable.stub_checks import receipts_of
from rucola.reliable.stub_claims import Outcome

CONSUMED: Final = 1000
STUBS: Final = 1_000_000
DUE: Final = 1000
PASSED_THROUGH: Final = 400_000
FULL_PASSED_THROUGH: Final = 10_000_000
WORKING_SET: Final = 100_000
BATCH: Final = 1000
ALL_LANES: Final = frozenset(range(LANES))

_invoices = Table(
    "bench_invoice", MetaData(), Column("id", Integer, primary_key=True, autoincrement=True), Column("t", String(100))
)


def measure_consumption(database: BenchmarkDatabase, options: Options) -> list[Figure]:
    """Time and round trips of an idempotent listener, beside its handler in a bare transaction."""
    database.clear()
    _invoices.create(database.engine, checkfirst=True)
    count = options.count(CONSUMED)
    rounds = options.rounds
    deliveries = [_delivery(f"bench-{number}") for number in range(count * (rounds + 2))]
    _add_stubs(database, [delivery.msg_id for delivery in deliveries])

    def handle(message: MessageExt, session: Session) -> None:
        session.execute(insert(_invoices).values(t=message.msg_id))

    listener = idempotent(database.engine, GROUP, tables=database.tables)(handle)
    left = iter(deliveries)

    def idempotently() -> None:
        for _ in range(count):
            listener(next(left))

    def bare() -> None:
        for number in range(count):
            with Session(database.engine) as session, session.begin():
                handle(deliveries[number], session)

    bare_s, idempotent_s = in_turns([bare, idempotently], rounds)
    trips = []
    for act in (bare, idempotently):
        with database.engine.connect() as connection:
            forget_statements(connection)
        act()
        trips.append(statement_counts(database)[0] / count)
    if listener.counts.done != len(deliveries):
        raise RuntimeError(f"{listener.counts.done} of {len(deliveries)} messages were processed")
    return [
        Figure(
            "idempotent_consumption",
            idempotent_s / count * 1e6,
            "µs/message",
            floor=bare_s / count * 1e6,
            floor_is="the same handler in a bare transaction",
            more={"messages": count},
        ),
        Figure(
            "idempotent_round_trips",
            trips[1] - trips[0],
            "more round trips",
            aims=[Aim("value", 2.05)],  # includes one query of the statement statistics
            more={"of_the_bare_transaction": trips[0]},
        ),
    ]


def _delivery(message_id: str) -> MessageExt:
    return MessageExt(
        "Bench", 0, 7, 0, 0, BODY, {properties.UNIQ_KEY: message_id}, 0, 0, 0, 1, 0, "", 0, "127.0.0.1:1", 0, 0,
        bytes(8),
    )  # fmt: skip


def _add_stubs(database: BenchmarkDatabase, message_ids: list[str]) -> None:
    with database.engine.begin() as connection:
        some = list(messages("Bench", len(message_ids)))
        for (_, message), message_id in zip(some, message_ids, strict=True):
            message.unique_key = message_id
        add(connection, database, some)


def measure_selection(database: BenchmarkDatabase, options: Options) -> list[Figure]:
    """Select a thousand due SENT stubs among a million, with their receipts: the cost of a resend before any send."""
    database.clear()
    count = STUBS // options.divisor
    _fill(database, count)
    name = database.engine.dialect.name.replace("mysql", "MariaDB").replace("postgresql", "PostgreSQL")
    runner = Database(database.engine)
    runner.run_sync(lane_leases.renew, database.tables, "bench", 3_600_000)
    selected, claimed = [], []
    for _ in range(options.rounds + 2):
        with _timed_selects(database.engine) as times, database.engine.connect() as connection:
            begin = time.perf_counter()
            batch = stub_claims.claim_batch(
                connection, database.tables, "bench", ALL_LANES, limit=DUE, lease_ms=60_000, max_sends=16
            )
            claimed.append((time.perf_counter() - begin) * 1000)
            selection_ms = times[0]
            if len(batch.to_check) != DUE:
                raise RuntimeError(f"{len(batch.to_check)} of {DUE} due stubs were selected")
            begin = time.perf_counter()
            receipts_of(connection, database.tables, batch.to_check)
            selected.append(selection_ms + (time.perf_counter() - begin) * 1000)
            connection.rollback()
    return [
        Figure(
            f"resend_selection_{name}",
            statistics.median(selected),
            "ms",
            aims=[Aim("value", 50)],
            more={"stubs": count, "selected": DUE, "ms_with_claim": statistics.median(claimed)},
        )
    ]


class _timed_selects:  # noqa: N801 (a context manager)
    """Collects the milliseconds of each statement of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._times: list[float] = []

    def __enter__(self) -> list[float]:
        event.listen(self._engine, "before_cursor_execute", self._begin)
        event.listen(self._engine, "after_cursor_execute", self._end)
        return self._times

    def __exit__(self, *error: object) -> None:
        event.remove(self._engine, "before_cursor_execute", self._begin)
        event.remove(self._engine, "after_cursor_execute", self._end)

    def _begin(self, *arguments: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, *arguments: Any) -> None:
        self._times.append((time.perf_counter() - self._began) * 1000)


def _fill(database: BenchmarkDatabase, count: int) -> None:
    """Insert SENT stubs of one group, a thousand of which are due, and receipts of every second one."""
    is_postgresql = database.engine.dialect.name == "postgresql"
    n, source = ("n", f"generate_series(1, {count}) n") if is_postgresql else ("seq", f"seq_1_to_{count}")
    message_id = f"'m' || {n}" if is_postgresql else f"CONCAT('m', {n})"
    body = "repeat('x', 200)::bytea" if is_postgresql else "REPEAT('x', 200)"
    with database.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO rucola_stub (message_id, topic, properties, body, lane, status, awaiting, sends, broker, "
                f"queue_id, queue_offset, due_at, created_at) SELECT {message_id}, 'T', '{{}}', {body}, {n} % 16, "
                f"'SENT', ',{GROUP},', 1, 'b', {n} % 8, {n}, "
                f"CASE WHEN {n} % {count // DUE} = 0 THEN {n} ELSE 4000000000000 + {n} END, 1 FROM {source}"
            )
        )
        connection.execute(
            text(
                "INSERT INTO rucola_receipt (message_id, consumer_group, received_at) "
                f"SELECT {message_id}, '{GROUP}', 1 FROM {source} WHERE {n} % 2 = 0"
            )
        )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in ("rucola_stub", "rucola_receipt"):
            connection.execute(text(f"{'VACUUM ANALYZE' if is_postgresql else 'ANALYZE TABLE'} {table}"))


def measure_size(database: BenchmarkDatabase, options: Options) -> list[Figure]:
    """Size of the tables while messages pass through a working set, with the database's own autovacuum.

    Rows change as in production: inserted, claimed and recorded by a relay's statements; receipt, `done` row and
    confirmation of each; purged when the working set is full. Receipts and confirmations are written a thousand at a
    time, so that the autovacuum has less time for each row than in production.
    """
    database.clear()
    count = FULL_PASSED_THROUGH if options.is_full else options.count(PASSED_THROUGH)
    working_set = min(WORKING_SET, count // 4)
    runner = Database(database.engine)
    runner.run_sync(lane_leases.renew, database.tables, "bench", 24 * 3_600_000)
    sizes: list[int] = []
    begin = time.perf_counter()
    for done in range(0, count, BATCH):
        _pass_through(database, runner, done)
        if done + BATCH == working_set:
            sizes.append(_size(database))
        if done + BATCH > working_set:
            runner.run_sync(operations.purge, database.tables, 0)
            if done % (working_set // 4) == 0:
                sizes.append(_size(database))
    wall_s = time.perf_counter() - begin
    return [
        Figure(
            "table_size_after_load",
            sizes[-1] / 1e6,
            "MB",
            floor=sizes[0] / 1e6,
            floor_is="the same tables when the working set was first full",
            aims=[Aim("ratio", 2)],
            more={
                "messages": count, "working_set": working_set, "most_MB": max(sizes) / 1e6, "messages/s": count / wall_s
            },
        )
    ]  # fmt: skip


def _pass_through(database: BenchmarkDatabase, runner: Database, first: int) -> None:
    """Add, relay and confirm a thousand messages."""
    tables = database.tables
    with database.engine.begin() as connection:
        add(connection, database, list(messages("Bench", BATCH)))
    batch = runner.run_sync(
        stub_claims.claim_batch, tables, "bench", ALL_LANES, limit=BATCH, lease_ms=60_000, max_sends=16
    )
    outcomes = [
        Outcome(row.seq, row.status, "SENT", "broker-a", 0, first + number, 60_000)
        for number, row in enumerate(batch.to_send)
    ]
    if runner.run_sync(stub_claims.record, tables, "bench", outcomes) != BATCH:
        raise RuntimeError(f"not all of {BATCH} messages were relayed")
    message_ids = [row.message_id for row in batch.to_send]
    rows = [{"message_id": message_id, "consumer_group": GROUP} for message_id in message_ids]
    now_ms = time.time_ns() // 1_000_000
    with database.engine.begin() as connection:
        connection.execute(insert(tables.receipt), [row | {"received_at": now_ms} for row in rows])
    with database.engine.begin() as connection:
        connection.execute(insert(tables.done), [row | {"done_at": now_ms} for row in rows])
        connection.execute(tables.receipt.delete().where(tables.receipt.c.message_id.in_(message_ids)))
        operations.confirm(connection, tables, message_ids)


def _size(database: BenchmarkDatabase) -> int:
    """Return the bytes of the tables with their indexes."""
    names = ("stub", "receipt", "done")
    return sum(database.scalar(f"SELECT pg_total_relation_size('rucola_{name}')") for name in names)
