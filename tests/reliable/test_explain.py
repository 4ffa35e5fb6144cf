"""The plans of every hot statement at 200,000 stubs: none reads a whole table, whatever the planner knows of it.

The statements are those that relay, listeners, commands and metrics execute here, as the driver receives them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session

from rucola.cli.main import main
from rucola.client import Message, MessageQueue, Producer, ReconsumeLater
from rucola.message import MessageExt
from rucola.reliable import KeyedResend, Outbox, Policy, Relay, idempotent
from rucola.reliable.idempotent import DeliveryCounts
from rucola.reliable.metrics import ReliableCollector
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.outbox import delivery, until

ROWS = 200_000
SMALL = ("lane", "ledger", "relay", "version")
"""Tables with a handful of rows."""
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")

# One stub in a hundred is unsettled. Of the 1,000 unsettled ones in 100,000, 10 are NEW and due, 10 SENT and due
# without a position, one is MANUAL with an alert to raise, and the others are SENT and not due, as in a backlog.
KIND = "CASE WHEN {n} % 100 <> 0 THEN {settled} WHEN {n} % 10000 = 0 THEN {new} WHEN {n} % 10000 = 5000 THEN {lost} "
KIND += "WHEN {n} % 100000 = 100 THEN {manual} ELSE {waits} END"
STUBS = """
INSERT INTO {p}stub (message_id, topic, properties, body, shard_key, lane, status, awaiting, sends, broker, queue_id,
                     queue_offset, due_at, created_at, confirmed_at)
SELECT {id}, '{topic}', '{{}}', 'x', CASE WHEN {n} % 200 = 0 THEN {key} END, {n} % 16, {status}, {awaiting}, {sends},
       {broker}, 0, {offset}, {due_at}, {now} - 10000, {confirmed_at}
FROM {source}
"""
RECEIPTS = (
    "INSERT INTO {p}receipt (message_id, consumer_group, received_at) SELECT {id}, 'g', {at} FROM {source_of_settled}"
)
DONE = "INSERT INTO {p}done (message_id, consumer_group, done_at) SELECT {id}, 'g', {at} FROM {source_of_settled}"

WORDS = {
    "postgresql": {
        "n": "n",
        "id": "'m' || n",
        "key": "'k' || (n / 1000)",
        "now": "CAST(EXTRACT(EPOCH FROM now()) * 1000 AS BIGINT)",
        "source": "generate_series({begin}, {end}::bigint) n",
    },
    "mysql": {
        "n": "seq",
        "id": "CONCAT('m', seq)",
        "key": "CONCAT('k', seq DIV 1000)",
        "now": "CAST(UNIX_TIMESTAMP() * 1000 AS SIGNED)",
        "source": "seq_{begin}_to_{end}",
    },
}


def fill(connection: Connection, db: OutboxDatabase, queue: MessageQueue, begin: int, end: int) -> None:
    """Insert rows with the numbers `begin` to `end`. The oldest 2000 settled ones may be purged."""
    words = {**WORDS[db.name], "p": db.tables.prefix, "topic": queue.topic}
    words["source"] = words["source"].format(begin=begin, end=end)

    def by_kind(settled: str, new: str, lost: str, manual: str, waits: str) -> str:
        return KIND.format(n=words["n"], settled=settled, new=new, lost=lost, manual=manual, waits=waits)

    n, now, broker = words["n"], words["now"], f"'{queue.broker_name}'"
    at = f"CASE WHEN {n} <= 2000 THEN {n} ELSE {now} - {n} END"
    words |= {
        "at": at,
        "status": by_kind("'CONFIRMED'", "'NEW'", "'SENT'", "'MANUAL'", "'SENT'"),
        "awaiting": by_kind("','", "',g,'", "',g,'", "',g,'", "',g,'"),
        "sends": by_kind("1", "0", "1", "9", "1"),
        "broker": by_kind(broker, "NULL", broker, "NULL", broker),
        "offset": by_kind(n, "NULL", "NULL", "NULL", n),
        "due_at": by_kind("NULL", "1", "2", "3", f"{now} + 3600000 + {n}"),
        "confirmed_at": by_kind(at, "NULL", "NULL", "NULL", "NULL"),
    }
    words["source_of_settled"] = f"{words['source']} WHERE {n} % 100 <> 0"
    for statement in (STUBS, RECEIPTS, DONE):
        connection.exec_driver_sql(statement.format(**words).replace("%", "%%"))


@contextmanager
def collected(prefix: str) -> Iterator[list[tuple[str, Any]]]:
    """Collect what any engine executes on the tables of this prefix."""
    statements: dict[str, Any] = {}

    def keep(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.lstrip().split()[0] in VERBS and prefix in statement:
            statements.setdefault(statement, parameters)

    found: list[tuple[str, Any]] = []
    event.listen(Engine, "before_cursor_execute", keep)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", keep)
    found += statements.items()


async def run_relay(db: OutboxDatabase, namesrv: str) -> None:
    """Send NEW stubs, send lost ones again, report MANUAL ones, and postpone those whose key is blocked."""
    policy = Policy(batch=50, keyed_resend=KeyedResend.SEND, confirm_timeout_ms=3_600_000)
    stub = db.tables.stub.name

    def count(condition: str) -> int:
        with db.engine().connect() as connection:
            # A comment, so that the statement is not collected.
            query = f"/* test */ SELECT count(*) FROM {stub} WHERE {condition}"
            counted: int = connection.exec_driver_sql(query).scalar_one()
            return counted

    assert count("due_at < 10") == 42
    async with Relay(db.engine(), namesrv, tables=db.tables, policy=policy):
        await until(lambda: count("due_at < 10") == 0, 60)
        await until(lambda: count("status = 'NEW' OR sends = 2") == 20)
    assert count("status = 'SENT' AND sends = 2") == 20


def run_listener(db: OutboxDatabase) -> None:
    """Deliver messages, one of them twice, one that another worker holds, and one whose listener fails."""
    held: list[bool] = []

    @idempotent(db.engine(), "g", tables=db.tables)
    def listener(message: MessageExt, session: Session) -> None:
        if message.body == b"fails":
            raise ZeroDivisionError
        if message.body == b"slow":
            with pytest.raises(ReconsumeLater):
                listener(delivery("slow", b"x"))
            held.append(True)

    for number in (15_000, 25_000, 35_000):
        listener(delivery(f"m{number}", b"x"))
    listener(delivery("m15000", b"x"))
    listener(delivery("slow", b"slow"))
    with pytest.raises(ZeroDivisionError):
        listener(delivery("m45000", b"fails"))
    assert listener.counts == DeliveryCounts(done=4, duplicates=1, held=1, failed=1)
    assert held


COMMANDS = (
    "list",
    "list --status STUCK --status DEAD",
    "list --status MANUAL --topic T",
    "list --group g --limit 5",
    "list --shard-key k7",
    "list --older-than 3600",
    "list --status NEW -t T -g g --shard-key k7 --older-than 3600",
    "show m100",
    "show m101",
    "resend m50000 m60000 --yes",
    "resend --status MANUAL --dry-run",
    "confirm m100 --yes",
    "confirm m300 --for-group g --yes",
    "void m500 --yes",
    "void --status MANUAL -t T -g g --dry-run",
    "purge --yes",
)


def run_commands(db: OutboxDatabase) -> None:
    """Run the commands of operators, except those that count whole tables: `stats`, and `purge` without --yes."""
    for command in COMMANDS:
        name, *arguments = command.split()
        options = ["-d", db.url, "--prefix", db.tables.prefix, *arguments]
        done = CliRunner().invoke(main, ["reliable", name, *options])
        assert done.exit_code == 0, done.output
    list(ReliableCollector(db.engine(), tables=db.tables).collect())


def whole_scans(engine: Engine, statement: str, parameters: Any) -> list[str]:
    """Return the tables that a statement reads as a whole."""
    is_postgresql = engine.dialect.name == "postgresql"
    explain = "EXPLAIN (FORMAT JSON)" if is_postgresql else "EXPLAIN FORMAT=JSON"
    with engine.connect() as connection:
        answer: Any = connection.exec_driver_sql(f"{explain} {statement}", parameters).scalar()
    return [
        name
        for node in nodes(answer if is_postgresql else json.loads(answer))
        if (name := (whole_scan_of_postgresql if is_postgresql else whole_scan_of_mariadb)(node)) is not None
    ]


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, list):
        for part in tree:
            yield from nodes(part)
    elif isinstance(tree, dict):
        yield tree
        for part in tree.values():
            yield from nodes(part)


def whole_scan_of_postgresql(node: dict[str, Any]) -> str | None:
    kind, index = node.get("Node Type", ""), node.get("Index Name", "")
    if kind == "Seq Scan":
        return str(node["Relation Name"])
    # An index scan without a condition reads the whole index, unless it is one of the partial indexes, which contain
    # only unsettled stubs.
    if kind.endswith(("Index Scan", "Index Only Scan")) and "Index Cond" not in node:
        return None if index.endswith(("_due", "_status", "_order")) else str(index)
    return None


def whole_scan_of_mariadb(node: dict[str, Any]) -> str | None:
    # An index that is read in order until a LIMIT has few rows in its estimate.
    if node.get("access_type") in ("ALL", "index") and node.get("rows", 0) > ROWS // 100:
        return str(node["table_name"])
    return None


def analyze(connection: Connection, db: OutboxDatabase) -> None:
    for name in ("stub", "receipt", "done"):
        words = "ANALYZE" if db.name == "postgresql" else "ANALYZE TABLE"
        connection.exec_driver_sql(f"{words} {db.tables.prefix}{name}")


def forget_statistics(connection: Connection, db: OutboxDatabase) -> None:
    """Make PostgreSQL plan as if the tables had never been analysed."""
    for name in ("stub", "receipt", "done"):
        table = f"'{db.tables.prefix}{name}'::regclass"
        indexes = f"SELECT indexrelid FROM pg_index WHERE indrelid = {table}"
        connection.exec_driver_sql(f"DELETE FROM pg_statistic WHERE starelid = {table}")
        connection.exec_driver_sql(
            f"UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = {table} OR oid IN ({indexes})"
        )


def keep_statistics(connection: Connection, db: OutboxDatabase) -> None:
    """Keep the autovacuum from analysing the tables in the middle of the test."""
    for name in ("stub", "receipt", "done"):
        connection.exec_driver_sql(f"ALTER TABLE {db.tables.prefix}{name} SET (autovacuum_enabled = false)")


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
async def test_no_hot_statement_reads_a_whole_table(
    database: str, new_db: Callable[[str, str], OutboxDatabase], shared_rocketmq: RocketMQ
) -> None:
    db, topic = new_db(database, ""), shared_rocketmq.unique("T")
    shared_rocketmq.create_topic(topic, 4)
    async with Producer("p", shared_rocketmq.namesrv) as producer:
        queue = (await producer.queues(topic))[0]
    engine, is_postgresql = db.engine(), database == "postgresql"
    with engine.begin() as connection:
        if is_postgresql:
            keep_statistics(connection, db)
        fill(connection, db, queue, 1, 1000)
        analyze(connection, db)  # these statistics are stale as soon as the others are there
    with engine.begin() as connection:
        fill(connection, db, queue, 1001, ROWS)
        assert connection.exec_driver_sql(f"SELECT count(*) FROM {db.tables.stub.name}").scalar() == ROWS

    with collected(db.tables.prefix) as statements:
        with Session(engine) as session, session.begin():
            Outbox(["g"], tables=db.tables).add(session, Message(topic, b"x"), shard_key="k")
        await run_relay(db, shared_rocketmq.namesrv)
        await asyncio.to_thread(run_listener, db)
        await asyncio.to_thread(run_commands, db)
    verbs = {statement.lstrip().split()[0] for statement, _ in statements}
    assert verbs >= {"SELECT", "INSERT", "UPDATE", "DELETE"}
    assert len(statements) > 40

    states: dict[str, Callable[[Connection, OutboxDatabase], None] | None] = {"stale": None, "fresh": analyze}
    if is_postgresql:
        states["never analysed"] = forget_statistics
    bad = []
    for state, change in states.items():
        if change is not None:
            with engine.begin() as connection:
                change(connection, db)
        for statement, parameters in statements:
            scans = await asyncio.to_thread(whole_scans, engine, statement, parameters)
            scans = [name for name in scans if not name.endswith(SMALL) and name != "v"]
            if scans:
                bad.append((state, scans, statement[:1500]))
    assert bad == []
