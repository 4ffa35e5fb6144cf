"""Several outboxes by one process: each tenant has its relay, and the failures of one are its own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import text

from rucola.reliable import Policy, Relays, ReliableError, Tables, Tenant, database, metrics, migration
from rucola.reliable.database import Database
from rucola.reliable.metrics import ReliableCollector
from rucola.reliable.schema import MANUAL
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.errors import raises
from support.outbox import FAST_POLICY, RecordingSink, add, change, statuses, transact, until
from support.servers import server
from support.waiting import wait_until

PATIENT = Policy(poll_ms=3_600_000)


def tenant_of(db: OutboxDatabase, name: str) -> Tenant:
    return Tenant(name, Database(db.url, connections=2), db.tables)


def is_sent(db: OutboxDatabase, count: int = 1) -> Callable[[], bool]:
    return lambda: statuses(db) == {"CONFIRMED": count}


async def test_a_tenant_without_tables_waits_for_them_and_the_other_goes_on(
    make_sqlite: Callable[[str], OutboxDatabase], shared_rocketmq: RocketMQ, topic: str, caplog: Any
) -> None:
    north, south = make_sqlite("north.db"), make_sqlite("south.db")
    transact(north, migration.init)
    add(north, topic, [b"north"])
    tenants = [tenant_of(north, "north"), tenant_of(south, "south")]
    async with Relays(tenants, shared_rocketmq.namesrv, policy=FAST_POLICY) as relays:
        await until(is_sent(north))
        await until(lambda: "the relay of south failed" in caplog.text)
        assert relays.running == {"north"}
        transact(south, migration.init)
        add(south, topic, [b"south"])
        await until(is_sent(south))
        assert relays.running == {"north", "south"}
    assert relays.running == frozenset()
    assert sorted(message.body for message in shared_rocketmq.messages(topic)) == [b"north", b"south"]
    for db in (north, south):
        assert transact(db, lambda connection, tables: connection.execute(tables.relay.select()).all()) == []


async def test_schemas_share_few_connections_and_each_commit_wakes_its_relay(
    postgresql_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str
) -> None:
    """Nothing polls for an hour."""
    prefix = postgresql_db.tables.prefix
    dbs = {f"{prefix}{n}": OutboxDatabase(postgresql_db.url, Tables(schema=f"{prefix}{n}")) for n in range(5)}
    for schema, db in dbs.items():
        with db.engine().begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        transact(db, migration.init)
    shared = Database(f"{postgresql_db.url}?application_name={prefix}tenants", connections=2)
    tenants = [Tenant(schema, shared, db.tables) for schema, db in dbs.items()]
    async with Relays(tenants, shared_rocketmq.namesrv, policy=PATIENT) as relays:
        await until(lambda: relays.running == dbs.keys())
        for number in (1, 2):
            for db in dbs.values():
                add(db, topic, [db.tables.stub.schema.encode()])  # type: ignore[union-attr]
                await until(is_sent(db, number))
        count = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = :name")
        with postgresql_db.engine().connect() as connection:
            assert connection.scalar(count, {"name": f"{prefix}tenants"}) <= 3
    for db in dbs.values():
        db.close()


async def test_databases_that_do_not_answer_delay_no_other(
    postgresql_db: OutboxDatabase, sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, topic: str, monkeypatch: Any
) -> None:
    """More of them than the event loop has threads: their tables are locked."""
    other, prefix = sqlite_db, postgresql_db.tables.prefix
    monkeypatch.setattr(metrics, "TENANT_TIMEOUT_S", 0.5)
    dbs = {f"hanging{n}": OutboxDatabase(postgresql_db.url, Tables(f"{prefix}{n}_")) for n in range(4)}
    for db in dbs.values():
        transact(db, migration.init)
    tenants = [*(tenant_of(db, name) for name, db in dbs.items()), tenant_of(other, "other")]
    registry = CollectorRegistry()
    registry.register(ReliableCollector(tenants=tenants))
    async with Relays(tenants, shared_rocketmq.namesrv, policy=FAST_POLICY) as relays:
        await until(lambda: len(relays.running) == 5)
        with postgresql_db.engine().begin() as connection:
            for db in dbs.values():
                connection.execute(text(f"LOCK TABLE {db.tables.stub.name}, {db.tables.lane.name}"))
            for number in range(1, 4):
                add(other, topic, [b"x"])
                await until(is_sent(other, number))
            expected = {f'rucola_reliable_up{{tenant="{name}"}} 0.0' for name in dbs}
            expected |= {'rucola_reliable_up{tenant="other"} 1.0'}
            expected |= {'rucola_reliable_messages{status="NEW",tenant="other"} 0.0'}
            await until(lambda: expected <= {*generate_latest(registry).decode().splitlines()})
        for db in dbs.values():
            add(db, topic, [b"y"])
            await until(is_sent(db))
            db.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_schemas_that_are_locked_leave_their_connections_to_the_others(
    new_db: Callable[[str, str], OutboxDatabase], kind: str, shared_rocketmq: RocketMQ, topic: str, monkeypatch: Any
) -> None:
    """As many of them as there are connections."""
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 1)
    free, *locked = (new_db(kind, "") for _ in range(3))
    shared = Database(free.url, connections=2)
    tenants = [Tenant(db.tables.prefix, shared, db.tables) for db in (free, *locked)]
    names = ", ".join(table.name for db in locked for table in (db.tables.stub, db.tables.lane))
    lock = {"postgresql": f"LOCK TABLE {names}", "mariadb": f"LOCK TABLES {names.replace(',', ' WRITE,')} WRITE"}
    async with Relays(tenants, shared_rocketmq.namesrv, policy=FAST_POLICY) as relays:
        await until(lambda: len(relays.running) == 3)
        with free.engine().begin() as connection:
            connection.execute(text(lock[kind]))
            for number in range(1, 11):
                add(free, topic, [b"x"])
                await until(is_sent(free, number))
            if kind == "mariadb":
                connection.execute(text("UNLOCK TABLES"))
        for db in locked:
            add(db, topic, [b"y"])
            await until(is_sent(db))


def test_scrapes_at_the_same_time_have_the_metrics_of_each_tenant(
    postgresql_db: OutboxDatabase, sqlite_db: OutboxDatabase, monkeypatch: Any
) -> None:
    """One does not answer, so that both scrapes wait."""
    monkeypatch.setattr(metrics, "TENANT_TIMEOUT_S", 0.5)
    registry = CollectorRegistry()
    registry.register(ReliableCollector(tenants=[tenant_of(postgresql_db, "hanging"), tenant_of(sqlite_db, "other")]))
    with ThreadPoolExecutor(2) as threads, postgresql_db.engine().begin() as connection:
        connection.execute(text(f"LOCK TABLE {postgresql_db.tables.stub.name}"))
        for scraped in list(threads.map(generate_latest, [registry] * 2)):
            up = {line for line in scraped.decode().splitlines() if line.startswith("rucola_reliable_up{")}
            assert up == {'rucola_reliable_up{tenant="hanging"} 0.0', 'rucola_reliable_up{tenant="other"} 1.0'}


@pytest.mark.slow
def test_a_database_that_does_not_answer_does_not_keep_the_process(
    postgresql_db: OutboxDatabase, tmp_path: Path, shared_rocketmq: RocketMQ
) -> None:
    tables = postgresql_db.tables
    (tmp_path / "other.db").touch()
    urls = [f"{postgresql_db.url}?application_name={tables.prefix}hangs", f"sqlite:///{tmp_path / 'other.db'}"]
    options = [
        "-n",
        shared_rocketmq.namesrv,
        "--prefix",
        tables.prefix,
        *(word for url in urls for word in ("-d", url)),
    ]
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = :name AND wait_event_type = 'Lock'")
    with postgresql_db.engine().connect() as watching, postgresql_db.engine().begin() as locking:
        locking.execute(text(f"LOCK TABLE {tables.version_table}"))
        with server("reliable", "relay", *options, log=tmp_path / "log") as running:
            watching.execution_options(isolation_level="AUTOCOMMIT")  # else it would see the same sessions again
            wait_until(lambda: watching.scalar(waiting, {"name": f"{tables.prefix}hangs"}) == 1)
            assert running.stop(signal.SIGTERM) == 0


async def test_alerts_name_their_tenant(
    make_sqlite: Callable[[str], OutboxDatabase], shared_rocketmq: RocketMQ, topic: str
) -> None:
    """The first stub of each has the same number."""
    dbs = {name: make_sqlite(f"{name}.db") for name in ("north", "south")}
    ids = {}
    for name, db in dbs.items():
        transact(db, migration.init)
        ids[name] = add(db, topic, [b"x"])
        change(db, status=MANUAL)
    sink = RecordingSink()
    tenants = [tenant_of(db, name) for name, db in dbs.items()]
    async with Relays(tenants, shared_rocketmq.namesrv, policy=FAST_POLICY, sinks=[sink]):
        await until(lambda: len(sink.alerts) == 2)
    assert {alert.tenant: [*alert.message_ids] for alert in sink.alerts} == ids
    assert {alert.title() for alert in sink.alerts} == {f"rucola, {name}: 1 message MANUAL" for name in dbs}


def test_tenants_have_names_and_tables_of_their_own(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'shop.db'}")
    for other in (Tenant("a", database, Tables("b_")), Tenant("b", database, Tables())):
        with raises(ReliableError, subject="tenants"):
            Relays([Tenant("a", database, Tables()), other])
