"""Two versions of program and schema at once: the newer one is a copy of Rucola with a migration more."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rucola
from rucola.reliable.idempotent import idempotent
from rucola.reliable.migration import VERSION
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.outbox import add, delivery, relay, statuses, until
from support.servers import run, server

pytestmark = pytest.mark.slow

GROUP = "billing"
MAJOR, MINOR = map(int, VERSION.split("."))
NEWER = f"{MAJOR}.{MINOR + 1}"
UPGRADE = """
def upgrade_to_the_next(connection: Connection, tables: Tables) -> None:
    connection.execute(text(f"ALTER TABLE {tables.stub.name} ADD COLUMN note VARCHAR(20)"))
    connection.execute(text(f"CREATE INDEX {tables.stub.name}_note ON {tables.stub.name} (note)"))
    connection.execute(text(f"CREATE TABLE {tables.prefix}note (id INTEGER PRIMARY KEY)"))


UPGRADES:"""
ADD = """
import sys
from sqlalchemy import create_engine, insert
from rucola.client import Message
from rucola.reliable import Outbox, Tables, migration
url, prefix, topic = sys.argv[1:]
tables = Tables(prefix)
assert "note" in tables.stub.c
with create_engine(url).begin() as connection:
    migration.check(connection, tables)
    print(Outbox(["billing"], tables=tables).add(connection, Message(topic, b"newer")))
"""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that run the newer program."""
    path = tmp_path_factory.mktemp("newer")
    package = path / "rucola"
    shutil.copytree(Path(rucola.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    reliable = package / "reliable"
    edit(reliable / "migration.py", "UPGRADES:", UPGRADE)
    last = f'"{VERSION}": _upgrade_to_{MAJOR}_{MINOR},'
    edit(reliable / "migration.py", last, f'{last} "{NEWER}": upgrade_to_the_next,')
    edit(
        reliable / "schema.py",
        '        Column("error", _TEXT, doc="why the last send failed"),',
        '        Column("error", _TEXT, doc="why the last send failed"), Column("note", _TEXT),',
    )
    return {"PYTHONPATH": str(path)}


def add_by_newer_program(newer: dict[str, str], *arguments: str) -> str:
    code = [sys.executable, "-c", ADD, *arguments]
    return subprocess.run(code, capture_output=True, text=True, env=newer, check=True).stdout.strip()


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


async def test_both_programs_work_on_the_newer_schema_and_the_older_one_is_named(
    db: OutboxDatabase,
    newer: dict[str, str],
    shared_rocketmq: RocketMQ,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = ("--database", db.url, "--prefix", db.tables.prefix)
    topic = shared_rocketmq.unique("T")
    shared_rocketmq.create_topic(topic, 1)

    # The newer program on the older schema.
    refused = run("reliable", "list", *where, **newer)
    assert refused.returncode == 1
    assert f"version {VERSION} is older than this program's {NEWER}; run `rucola reliable migrate`" in refused.stderr
    migrated = run("reliable", "migrate", *where, **newer)
    assert migrated.returncode == 0, migrated.stderr

    # The newer program adds, the older one relays and consumes.
    added = await asyncio.to_thread(add_by_newer_program, newer, db.url, db.tables.prefix, topic)
    async with relay(db, shared_rocketmq):
        await until(lambda: statuses(db) == {"SENT": 1})
    listener = idempotent(db.engine(), GROUP, tables=db.tables)(lambda message, session: None)

    listener(delivery(added))
    assert statuses(db) == {"CONFIRMED": 1}

    # The older program adds and consumes, the newer one relays.
    (message_id,) = add(db, topic, [b"older"], groups=[GROUP])
    for name, value in newer.items():
        monkeypatch.setenv(name, value)
    with server("reliable", "relay", "-n", shared_rocketmq.namesrv, *where, log=tmp_path / "relay") as newer_relay:
        assert newer_relay.first_line, newer_relay.log.read_text()
        await until(lambda: statuses(db) == {"CONFIRMED": 1, "SENT": 1})
    listener(delivery(message_id))
    assert statuses(db) == {"CONFIRMED": 2}
