"""The plans of every hot query at 1,000,000 stubs: none reads a whole table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from rucola.reliable import lane_leases, operations, receipts, stub_claims
from rucola.reliable.database import Database
from rucola.reliable.receipts import GroupDelivery
from rucola.reliable.schema import LANES
from rucola.reliable.stub_checks import receipts_of
from rucola.reliable.stub_claims import Outcome
from support.databases import OutboxDatabase

ROWS = 1_000_000
ALL = frozenset(range(LANES))
SMALL = ("lane", "relay")

# One stub in a hundred is active; of these, most are SENT and not due, as in a backlog.
STUBS = """
INSERT INTO {p}stub (message_id, topic, properties, body, shard_key, lane, status, awaiting, sends, broker, queue_id,
                     queue_offset, due_at, created_at, confirmed_at)
SELECT {id}, 'T', '{{}}', 'x', CASE WHEN {n} % 2 = 0 THEN {key} END, {n} % 16,
       CASE WHEN {n} % 100 <> 0 THEN 'CONFIRMED' WHEN {n} % 1000 = 0 THEN 'NEW' ELSE 'SENT' END,
       CASE WHEN {n} % 100 <> 0 THEN ',' ELSE ',g,' END, CASE WHEN {n} % 1000 = 0 THEN 0 ELSE 1 END,
       CASE WHEN {n} % 1000 = 0 THEN NULL ELSE 'b' END, 0, {n},
       CASE WHEN {n} % 100 <> 0 THEN NULL WHEN {n} % 1000 = 0 THEN 1 ELSE 1 + {n} * 4000000 END, 1,
       CASE WHEN {n} % 100 <> 0 THEN {n} END
FROM {source}
"""
RECEIPTS = "INSERT INTO {p}receipt (message_id, consumer_group, received_at) SELECT {id}, 'g', {n} FROM {source}"
DONE = "INSERT INTO {p}done (message_id, consumer_group, done_at) SELECT {id}, 'g', {n} FROM {source}"

WORDS = {
    "postgresql": {
        "n": "n",
        "id": "'m' || n",
        "key": "'k' || (n / 10)",
        "source": "generate_series(1, {rows}::bigint) n",
    },
    "mysql": {"n": "seq", "id": "CONCAT('m', seq)", "key": "CONCAT('k', seq DIV 10)", "source": "seq_1_to_{rows}"},
}


def fill(connection: Connection, db: OutboxDatabase) -> None:
    words = {**WORDS[db.name], "p": db.tables.prefix}
    for statement, rows in ((STUBS, ROWS), (RECEIPTS, ROWS), (DONE, ROWS // 10)):
        source = words["source"].format(rows=rows)
        connection.exec_driver_sql(statement.format(**words | {"source": source}).replace("%", "%%"))
    for name in ("stub", "receipt", "done"):
        analyze = "ANALYZE" if db.name == "postgresql" else "ANALYZE TABLE"
        connection.exec_driver_sql(f"{analyze} {db.tables.prefix}{name}")


def run_everything(database: Database, db: OutboxDatabase) -> None:
    """Each query that runs per message, per batch or per second, and those of the purge."""
    tables = db.tables
    database.run_sync(lane_leases.renew, tables, "a", 60_000)
    batch = database.run_sync(stub_claims.claim_batch, tables, "a", ALL, limit=1000, lease_ms=60_000, max_sends=9)
    assert len(batch.to_send) == ROWS // 1000
    outcomes = [Outcome(row.seq, "NEW", "SENT", "b", 0, 1, wait_ms=60_000) for row in batch.to_send[:-1]]
    assert database.run_one_sync(stub_claims.record, tables, "a", outcomes) == len(outcomes)
    database.run_one_sync(receipts_of, tables, batch.to_send)
    database.run_sync(stub_claims.claim_for_resend, tables, "a", [row.seq for row in batch.to_send], 60_000)
    for number in (150_000, 151_000):
        delivery = GroupDelivery(f"m{number}", "g", f"token-{number}")
        assert database.run_one_sync(receipts.claim, tables, delivery, 60_000, True)
        database.run_one_sync(receipts.renew, tables, delivery.token, delivery.message_id, "g", 60_000)
        database.run_sync(receipts.finish, tables, delivery, 60_000)
    for work in (receipts.state, receipts.claim):
        arguments = (60_000, True) if work is receipts.claim else (True,)
        database.run_one_sync(work, tables, GroupDelivery("m7", "g", "t"), *arguments)
    database.run_sync(receipts.release, tables, GroupDelivery("m8", "g", "t"))
    database.run_sync(receipts.forget, tables, GroupDelivery("m8", "g", "t"))
    database.run_sync(receipts.confirm, tables, "m200", "g")
    database.run_one_sync(operations.show, tables, "m300")
    database.run_one_sync(operations.find, tables, statuses=["MANUAL"])
    database.run_sync(operations.unsettled, tables)
    database.run_sync(operations.purge, tables, 77 * 3_600_000)


def plans(engine: Engine, statements: list[tuple[str, Any]]) -> list[tuple[str, list[str]]]:
    """The tables that each statement reads as a whole."""
    found = []
    for statement, parameters in statements:
        with engine.connect() as connection:
            answer = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar()
            found.append((statement, list(_whole(answer))))
    return found


def _whole(node: Any) -> Any:
    if isinstance(node, list):
        for part in node:
            yield from _whole(part)
    elif isinstance(node, dict):
        if node.get("Node Type") == "Seq Scan":
            yield node["Relation Name"]
        for part in node.values():
            yield from _whole(part)


def mariadb_plans(engine: Engine, statements: list[tuple[str, Any]]) -> list[tuple[str, list[str]]]:
    found = []
    for statement, parameters in statements:
        with engine.connect() as connection:
            answer = connection.exec_driver_sql(f"EXPLAIN FORMAT=JSON {statement}", parameters).scalar()
            found.append((statement, list(_whole_mariadb(json.loads(answer)))))
    return found


def _whole_mariadb(node: Any) -> Any:
    if isinstance(node, list):
        for part in node:
            yield from _whole_mariadb(part)
    elif isinstance(node, dict):
        # A scan of a whole index counts as well, unless a LIMIT ends it early.
        if node.get("access_type") in ("ALL", "index") and node.get("rows", 0) > ROWS // 100:
            yield node["table_name"]
        for part in node.values():
            yield from _whole_mariadb(part)


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_no_hot_query_reads_a_whole_table(database: str, new_db: Any) -> None:
    db: OutboxDatabase = new_db(database, "")
    engine = db.engine()
    with engine.begin() as connection:
        fill(connection, db)
    statements: list[tuple[str, Any]] = []
    wrapped = Database(engine)

    def keep(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if (
            statement.lstrip().split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
            and db.tables.prefix in statement
        ):
            statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", keep)
    run_everything(wrapped, db)
    event.remove(engine, "before_cursor_execute", keep)
    assert len(statements) > 20
    found = plans(engine, statements) if database == "postgresql" else mariadb_plans(engine, statements)
    small = {db.tables.prefix + name for name in SMALL}
    bad = [(statement, tables) for statement, tables in found if set(tables) - small - {"v"}]
    assert [(statement[:2000], tables) for statement, tables in bad] == []
