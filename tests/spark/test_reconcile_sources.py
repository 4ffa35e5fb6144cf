"""Where the job reconcile reads: databases over JDBC, databases of consumers, and clusters with a broker away."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from sqlalchemy import delete, make_url

from rucola.cli.main import main
from rucola.client import MessageQueue
from rucola.errors import ConfigError
from rucola.reliable import migration
from rucola.spark.jobs import reconcile
from rucola.spark.jobs.reconciled_log import LogSources, log_sources
from rucola.spark.jobs.table_export import TableSource
from support.cluster import cluster
from support.databases import OutboxDatabase, jdbc_driver
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
from support.small_store import SmallStore

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KINDS = ("postgresql", "mariadb")
# One process and so one Java runtime for both databases, with both drivers as `--jars` names them.
RECONCILE = "import sys\nfrom rucola.cli.main import main\n"
RECONCILE += "for line in sys.stdin:\n    main(line.rstrip('\\n').split('\\t'), standalone_mode=False)\n"


def jdbc_url(db: OutboxDatabase) -> str:
    url = make_url(db.url)
    return f"jdbc:{db.name.replace('mysql', 'mariadb')}://{url.host}:{url.port}/{url.database}?user={url.username}"


def test_lists_over_jdbc_are_those_over_sqlalchemy(
    postgresql: Any, mariadb: Any, new_db: Callable[[str, str], OutboxDatabase], tmp_path: Path
) -> None:
    """`rucola pipeline reconcile --jars`, on both servers; consumers keep `done` rows in the other one."""
    jars = ",".join(str(jdbc_driver(kind)) for kind in KINDS)
    commands = []
    for kind in KINDS:
        folder = tmp_path / kind
        folder.mkdir()
        db = new_db(kind, "")
        make_scenario(db, folder)
        sources = ["--from", str(folder / "store"), "--from", str(folder / "lake"), "--brokerName", BROKER]
        options = ["--prefix", db.tables.prefix, "--jars", jars, "--out", str(folder / "out"), "--json"]
        commands.append(["pipeline", "reconcile", "-d", jdbc_url(db), *sources, *options])
    done = subprocess.run(
        [sys.executable, "-c", RECONCILE],
        input="".join("\t".join(command) + "\n" for command in commands),
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    decoder, text = json.JSONDecoder(), done.stdout.strip()
    for kind in KINDS:
        found, end = decoder.raw_decode(text)
        text = text[end:].strip()
        check_lists(found, tmp_path / kind / "out")
    assert text == ""


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


def test_jdbc_without_its_driver_or_its_server_says_so(
    small_store: SmallStore, spark: SparkSession, tmp_path: Path
) -> None:
    small_store.put()
    log = log_sources([small_store.path], [BROKER])
    with pytest.raises(ConfigError):
        reconcile.run(spark, TableSource("jdbc:mariadb://127.0.0.1:1/x"), log, tmp_path / "out")
    with pytest.raises(ConfigError):
        reconcile.run(spark, TableSource("jdbc:oracle:thin:x"), log, tmp_path / "out")
