"""Where the job reconcile reads: each database, databases of consumers, and clusters with a broker away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from sqlalchemy import delete

from rucola.cli.main import main
from rucola.client import MessageQueue
from rucola.reliable import migration
from rucola.spark.jobs import reconcile
from rucola.spark.jobs.reconciled_log import LogSources
from support.cluster import cluster
from support.databases import OutboxDatabase
from support.live_reads import send
from support.ports import free_port
from support.reconcile_scenario import (
    BROKER,
    NEVER_RECEIVED,
    WITHOUT_STUB,
    check_lists,
    make_scenario,
    rows,
    source_of,
)
from support.reconciled import commit, put_done, put_stub

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_lists_are_the_same_on_each_database(
    kind: str, new_db: Callable[[str, str], OutboxDatabase], spark: SparkSession, tmp_path: Path
) -> None:
    db = new_db(kind, "")
    log = make_scenario(db, tmp_path)
    found = reconcile.run(spark, source_of(db), log, tmp_path / "out")
    check_lists(found.to_json(), tmp_path / "out")


def test_effects_in_a_consumers_own_database_count(
    sqlite_db: OutboxDatabase,
    new_db: Callable[[str, str], OutboxDatabase],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    own = new_db("sqlite", "stock.db")
    own.tables = sqlite_db.tables  # the prefix is the same in all databases
    with own.engine().begin() as connection:
        migration.init(connection, own.tables)
    make_scenario(sqlite_db, tmp_path)
    # The group stock keeps its `done` rows in its own database, and has one whose stub does not exist.
    done = sqlite_db.tables.done
    with sqlite_db.engine().begin() as connection:
        connection.execute(delete(done).where(done.c.consumer_group == "stock"))
    put_done(own, "M7", "stock")
    put_done(own, "NO-STUB-STOCK", "stock")

    def reconciled(name: str, *options: str) -> Path:
        out = tmp_path / name
        sources = ["--from", str(tmp_path / "store"), "--from", str(tmp_path / "lake"), "--brokerName", BROKER]
        arguments = ["-d", sqlite_db.url, "--prefix", sqlite_db.tables.prefix, *sources, "--out", str(out), *options]
        done = CliRunner().invoke(main, ["pipeline", "reconcile", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return out

    with_own = reconciled("with", "--consumer-database", own.url)
    assert rows(with_own, "never_received", "messageId", "group", "state") == NEVER_RECEIVED
    assert rows(with_own, "without_stub", "kind", "messageId") == WITHOUT_STUB | {("done", "NO-STUB-STOCK")}
    without = reconciled("without")
    of_stock = {("M7", "stock", "passed")}
    assert rows(without, "never_received", "messageId", "group", "state") == NEVER_RECEIVED | of_stock
    assert rows(without, "without_stub", "kind", "messageId") == WITHOUT_STUB


async def test_broker_that_does_not_answer_is_named_and_its_messages_are_unknown(
    sqlite_db: OutboxDatabase, spark: SparkSession, tmp_path: Path
) -> None:
    """A broker crashed and is still registered: its queues are neither empty nor lost."""
    async with cluster(tmp_path) as running:
        broker = await running.start_broker("broker-a")
        await running.create_topic(broker, "T", queues=1)
        await running.register("broker-b", "T", f"127.0.0.1:{free_port()}")
        await send(running, "T", 1, broker="broker-a")
        await commit(running.namesrv, "billing", [(MessageQueue("T", "broker-a", 0), 1)])
        put_stub(sqlite_db, "LOST", topic="T", broker="broker-a", queue_id=0, queue_offset=0)
        put_stub(sqlite_db, "UNKNOWN", topic="T", broker="broker-b", queue_id=0, queue_offset=0)
        log = LogSources(name_server=running.namesrv)
        out = tmp_path / "out"
        found = await asyncio.to_thread(reconcile.run, spark, source_of(sqlite_db), log, out)
    assert [sentence.split()[0] for sentence in found.missing] == ["broker-b"]
    assert rows(out, "never_stored", "messageId", "reason") == {("LOST", "absent")}
    assert rows(out, "resend", "messageId") == {"LOST"}
    unknown = {tuple(row.values()) for row in found.tables["unknown"].to_pylist()}
    assert unknown == {("never_stored", "not covered", 1)}
    assert "broker-b" in json.dumps(found.to_json()["missing"])
