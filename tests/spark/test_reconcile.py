"""The job reconcile: its resend set is the relay's, and its lists are true while messages are sent and consumed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from sqlalchemy import delete, update

from rucola.cli.main import main
from rucola.client import MessageQueue
from rucola.errors import ConfigError, StoreError
from rucola.message.ids import unique_id
from rucola.message.properties import UNIQ_KEY
from rucola.message.topics import dlq_topic
from rucola.reliable import ReliableError, SchemaError, operations, receipts, table_ranges
from rucola.reliable.operations import SeenStub
from rucola.reliable.policy import KeyedResend, Policy
from rucola.reliable.receipts import GroupDelivery, claim
from rucola.reliable.schema import CONFIRMED, DEAD, MANUAL, NEW, SENT, STATUSES, STUCK, VOID
from rucola.spark.jobs import reconcile, table_export
from rucola.spark.jobs.reconcile import LISTS
from rucola.spark.jobs.reconciled_log import Commit, LogSources, log_sources
from rucola.spark.jobs.table_export import TableSource
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.documents import Document
from support.errors import raises
from support.outbox import stubs
from support.reconcile_scenario import BROKER, NEVER_STORED, check_lists, make_scenario, rows, source_of
from support.reconciled import (
    HOUR_MS,
    commit,
    database_ms,
    put_done,
    put_receipt,
    put_stub,
    relay_decisions,
)
from support.small_store import SmallStore

pytestmark = pytest.mark.spark

# The resend set.


def random_stub(rng: random.Random, now: int, sent: list[tuple[str, int, int]], topic: str) -> dict[str, Any]:
    """A stub of any state, as no sequence of events would make it."""
    message_id, queue_id, offset = rng.choice([*sent, (unique_id(), rng.randrange(5), rng.randrange(40))])
    has_position = rng.random() < 0.8
    return {
        "message_id": message_id,
        "topic": topic,
        "status": rng.choice([NEW, SENT, SENT, SENT, SENT, *STATUSES]),
        "awaiting": rng.choice([",", ",a,", ",b,", ",a,b,"]),
        "sends": rng.randrange(4),
        "shard_key": rng.choice([None, None, "k1", "k2", "k3"]),
        "lane": rng.randrange(16),
        "delay_ms": rng.choice([0, 0, HOUR_MS]),
        "dead_letters": rng.choice([0, 0, 1]),
        "broker": BROKER if has_position else None,
        "queue_id": queue_id if has_position else None,
        "queue_offset": rng.choice([offset, offset, rng.randrange(40), None]) if has_position else None,
        "lease_until": rng.choice([0, 0, 0, now + HOUR_MS]),
        "created_at": now - rng.choice([HOUR_MS, HOUR_MS, 30 * HOUR_MS]),
        "reopened_at": (None, None, now - HOUR_MS // 2, now - 30 * HOUR_MS)[offset % 4],
        "due_at": now + rng.choice([-1000, -1000, -1000, HOUR_MS]),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("sqlite", Policy(max_sends=3, keyed_resend=KeyedResend.SEND)),
        ("postgresql", Policy(max_sends=3)),
        ("mariadb", Policy(max_sends=3)),
    ],
)
def test_resend_set_is_the_selection_of_the_relay(
    kind: str,
    policy: Policy,
    new_db: Callable[[str, str], OutboxDatabase],
    spark: SparkSession,
    shared_rocketmq: RocketMQ,
    tmp_path: Path,
) -> None:
    db, rng = new_db(kind, "random.db"), random.Random(kind)
    topic = shared_rocketmq.unique("T")
    groups = {short: shared_rocketmq.unique(f"group-{short}") for short in "ab"}
    shared_rocketmq.create_topic(topic, 4)
    results = [shared_rocketmq.send(topic, b"x") for _ in range(60)]
    sent = [(each.msg_id, each.queue.queue_id, each.queue_offset) for each in results]
    broker = results[0].queue.broker_name
    for short, queues in {"a": (0, 1, 2), "b": (0, 3)}.items():
        offsets = [(MessageQueue(topic, broker, queue_id), rng.randrange(12)) for queue_id in queues]
        offsets[-1] = (offsets[-1][0], 500)  # beyond the end of the queue, which the relay does not trust
        asyncio.run(commit(shared_rocketmq.namesrv, groups[short], offsets))
    letters = dlq_topic(groups["a"])
    shared_rocketmq.create_topic(letters, 1)
    dead = rng.sample(sent, 10)
    for message_id, _, _ in dead:
        shared_rocketmq.send(letters, b"x", properties={UNIQ_KEY: message_id})
    now = database_ms(db)
    used: set[str] = set()
    for message_id, queue_id, offset in dead[:2]:  # certainly DEAD; the producer chooses the queues of the others
        position = {"broker": broker, "queue_id": queue_id, "queue_offset": offset}
        put_stub(db, message_id, topic=topic, awaiting=f",{groups['a']},", **position)
        put_receipt(db, message_id, groups["a"])
        used.add(message_id)
    for _ in range(400):
        stub = random_stub(rng, now, sent, topic)
        if stub["message_id"] in used:
            stub["message_id"] = unique_id()
        used.add(stub["message_id"])
        awaiting = stub["awaiting"]
        stub["awaiting"] = "," + "".join(f"{groups[each]}," for each in awaiting if each in groups)
        stub["broker"] = stub["broker"] and broker
        put_stub(db, **stub)
        for short, group in groups.items():
            if rng.random() < 0.2 or (short == "b" and stub["dead_letters"]):
                put_receipt(db, stub["message_id"], group, rng.choice([1000, 7 * HOUR_MS]))
    log = LogSources(name_server=shared_rocketmq.namesrv, topics=(topic,))
    found = reconcile.run(spark, source_of(db), log, tmp_path, policy=policy)
    listed = rows(tmp_path, "resend", "seq", "isDue")
    decisions = {row["decision"]: row["messages"] for row in found.tables["decisions"].to_pylist()}
    resent, checked = relay_decisions(db, shared_rocketmq, policy)
    assert {seq for seq, is_due in listed if is_due} == resent
    assert len(resent) == decisions["SEND"] + decisions["RESEND"] > 20
    for status, decision in ((STUCK, "STUCK"), (DEAD, "DEAD"), (SENT, "WAIT")):
        assert decisions[decision] == [*checked.values()].count(status) > 0
    # The relay sends those that are not due, too, once they are.
    early = {seq for seq, is_due in listed if not is_due}
    with db.engine().begin() as connection:
        connection.execute(update(db.tables.stub).where(db.tables.stub.c.seq.in_(early)).values(due_at=now))
    assert early
    assert early <= relay_decisions(db, shared_rocketmq, policy)[0]


# The lists.


@pytest.mark.slow
def test_lists_tell_lost_messages_from_unknown_ones(
    sqlite_db: OutboxDatabase, spark: SparkSession, tmp_path: Path
) -> None:
    log, out = make_scenario(sqlite_db, tmp_path), tmp_path / "out"
    result = reconcile.run(spark, source_of(sqlite_db), log, out)
    check_lists(result.to_json(), out)
    by_status = {(row["status"], row["messages"]) for row in result.tables["stubs"].to_pylist()}
    assert {status for status, _ in by_status} == {SENT, CONFIRMED, VOID, STUCK, NEW, MANUAL}
    assert sum(messages for _, messages in by_status) == len(stubs(sqlite_db))
    decisions = {row["decision"]: row["messages"] for row in result.tables["decisions"].to_pylist()}
    assert decisions == {"SEND": 1, "BLOCKED": 1, "RESEND": 3, "WAIT": 7}
    page = (out / "report.html").read_text()
    for words in ("GONE-KEYED", "broker-a, queue 0, offset 8", "may be purged"):
        assert words in page
    for name in ("counts", "stubs", "decisions", "unknown"):
        assert pq.read_table(out / f"{name}.parquet").equals(result.tables[name])

    # Hand over: what was seen is made due, once, and only if it is still what was seen.
    source = source_of(sqlite_db)
    planned = reconcile.hand_over(source, out)
    assert {name: (each.listed, each.changed) for name, each in planned.items()} == {
        "resend": (1, 0),
        "never_stored": (5, 0),
    }
    stub = sqlite_db.tables.stub
    with sqlite_db.engine().begin() as connection:
        connection.execute(update(stub).where(stub.c.message_id == "GONE-KEYED").values(sends=2))
    assert [each.changed for each in reconcile.hand_over(source, out, is_dry=False).values()] == [1, 4]
    after = {each.message_id: each for each in stubs(sqlite_db)}
    assert after["EARLY"].due_at <= database_ms(sqlite_db)
    forgotten = ("GONE", "BEYOND", "BEYOND-LATER", "EARLY")
    assert [after[name].queue_offset for name in (*forgotten, "GONE-KEYED")] == [None] * 4 + [9]
    assert [each.changed for each in reconcile.hand_over(source, out, is_dry=False).values()] == [0, 0]


@pytest.mark.slow
def test_command_and_page_do_what_they_say(
    sqlite_db: OutboxDatabase, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_scenario(sqlite_db, tmp_path)
    database = ["--database", "sqlite:///business.db", "--prefix", sqlite_db.tables.prefix]

    def rucola(*arguments: str) -> str:
        done = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    said = rucola("reliable", "export", "tables", "--store", "store", "--brokerName", BROKER, *database)
    assert said == f"1 receipt rows, 4 done rows, {len(stubs(sqlite_db))} stub rows exported to tables\n"
    sources = ["--from", "store", "--from", "lake", "--brokerName", BROKER]
    command = ["pipeline", "reconcile", *sources, *database, "--tables", "tables", "--resend", "--yes"]
    said = rucola(*command, "--out", "out")
    for words in (
        f"{len(stubs(sqlite_db))} stubs compared: 5 resend, 6 never_stored, 4 never_received, 2 without_stub\n",
        "1 more of never_stored are unknown: expired\n",
        "resend: 1 of 1 messages made due\n",
        "never_stored: 5 of 5 messages made due\n",
    ):
        assert words in said
    assert max(map(len, said.splitlines())) <= 80
    found = json.loads(rucola(*command, "--json"))
    assert found["resent"] == {
        "resend": {"listed": 1, "changed": 0},
        "never_stored": {"listed": 5, "changed": 0},
    }
    assert {(row["messageId"], row["reason"]) for row in found["lists"]["never_stored"]["oldest"]} == NEVER_STORED

    program, *_ = Document.read("docs/pipeline-reconcile.md").texts("python")
    text = program.replace("shop.db", "business.db").replace(
        'business.db")', f'business.db", "{sqlite_db.tables.prefix}")'
    )
    text = text.replace('"reconciled', f'"{tmp_path}/reconciled')
    names: dict[str, Any] = {"spark": spark}
    exec(compile(text, "pipeline-reconcile.md", "exec"), names)
    # The command has removed the positions of the lost messages, which makes them the relay's.
    assert names["found"].count("never_stored") == 1


# Messages in motion, and what cannot be read.


@pytest.mark.slow
def test_message_that_is_done_meanwhile_is_in_no_list(
    sqlite_db: OutboxDatabase, spark: SparkSession, tmp_path: Path
) -> None:
    """Each step happens right after the read that could contradict it."""
    db, now = sqlite_db, database_ms(sqlite_db)
    store = SmallStore(tmp_path / "store")
    for number in range(3):
        store.put(at_ms=now - HOUR_MS, UNIQ_KEY=f"M{number}")
        put_stub(db, f"M{number}", broker=BROKER, queue_id=0, queue_offset=number)
    put_receipt(db, "M1")
    log = LogSources({BROKER: store.path})

    def finish(message_id: str) -> None:
        with db.engine().begin() as connection:
            delivery = GroupDelivery(message_id, "billing", "worker")
            if message_id == "M0":
                assert claim(connection, db.tables, delivery, 60_000, has_done_table=True)
            else:
                receipt = db.tables.receipt
                connection.execute(update(receipt).values(owner="worker"))
            receipts.finish(connection, db.tables, delivery, 60_000)

    def offsets_then_consumption() -> list[Commit]:
        read = [Commit(BROKER, "billing", "T", 0, 1)]
        finish("M0")
        finish("M1")
        # M2 is sent again while the tables are read, beyond the end that the log had before.
        store.put(at_ms=now, UNIQ_KEY="M2")
        with db.engine().begin() as connection:
            stub = db.tables.stub
            connection.execute(update(stub).where(stub.c.message_id == "M2").values(queue_offset=3, sends=2))
        return read

    table_export.write(source_of(db), tmp_path / "tables", offsets_then_consumption)
    result = reconcile.run(spark, tmp_path / "tables", log, tmp_path / "out")
    assert {name: result.count(name) for name in LISTS} == {
        "resend": 0,
        "never_stored": 0,
        "never_received": 1,
        "without_stub": 0,
    }
    assert rows(tmp_path / "out", "never_received", "messageId", "state") == {("M2", "waiting")}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_ranges_cover_each_row_once(kind: str, new_db: Callable[[str, str], OutboxDatabase]) -> None:
    db = new_db(kind, "ranges.db")
    now = database_ms(db)
    for number in range(30):
        put_stub(db, f"M{number}", created_at=now)
        # Many rows of one moment are one range.
        put_done(db, f"M{number}", ago_ms=0 if number < 12 else number * 1000)
    with db.engine().begin() as connection:
        stub, done = db.tables.stub, db.tables.done
        connection.execute(delete(stub).where(stub.c.message_id.in_([f"M{number}" for number in range(5, 20)])))
        connection.execute(update(done).where(done.c.message_id < "M12").values(done_at=now))
    with db.engine().connect() as connection:
        for table, count in (("stub", 15), ("done", 30), ("receipt", 0)):
            parts = table_ranges.plan(connection, db.tables, table, range_rows=4)
            read = [row for part in parts for batch in table_ranges.read(connection, db.tables, part) for row in batch]
            assert len(read) == len({*map(tuple, read)}) == count
            assert len(parts) > 4 or not count


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_stubs_are_made_due_only_as_they_were_seen(kind: str, new_db: Callable[[str, str], OutboxDatabase]) -> None:
    db = new_db(kind, "due.db")
    later = database_ms(db) + HOUR_MS
    position = {"broker": BROKER, "queue_id": 0, "queue_offset": 5}
    for name in ("as seen", "moved", "confirmed", "sent", "no position"):
        put_stub(db, name, due_at=later, **({} if name == "no position" else position))
    put_stub(db, "claimed", due_at=later, lease_until=later, **position)
    put_stub(db, "due", **position)
    seen = [SeenStub(r.seq, r.status, r.sends, r.broker, r.queue_id, r.queue_offset) for r in stubs(db)]
    stub = db.tables.stub
    with db.engine().begin() as connection:
        for name, values in {
            "moved": {"queue_offset": 6},
            "confirmed": {"status": CONFIRMED, "due_at": None},
            "sent": {"sends": 2},
        }.items():
            connection.execute(update(stub).where(stub.c.message_id == name).values(**values))
    with db.engine().begin() as connection:
        assert operations.hasten(connection, db.tables, seen) == 2
        assert operations.hasten(connection, db.tables, seen) == 0
    now = database_ms(db)
    due = {row.message_id for row in stubs(db) if row.due_at is not None and row.due_at <= now}
    assert due == {"as seen", "no position", "due"}
    with db.engine().begin() as connection:
        assert operations.hasten(connection, db.tables, seen, forget_position=True) == 3
    assert {row.message_id for row in stubs(db) if row.queue_offset is None} == {"as seen", "no position", "due"}


def test_errors_name_what_to_do(sqlite_db: OutboxDatabase, tmp_path: Path, small_store: SmallStore) -> None:
    small_store.put()
    with pytest.raises(ConfigError):
        log_sources([small_store.path])
    with pytest.raises(ConfigError):
        log_sources([])
    with raises(StoreError, subject=str(tmp_path)):
        log_sources([tmp_path], [BROKER])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError):
        table_export.write(source_of(sqlite_db), tmp_path / "full")
    with pytest.raises(SchemaError):
        table_export.write(TableSource(sqlite_db.url, "other_"), tmp_path / "new")
    with pytest.raises(ReliableError):
        table_export.write(TableSource(sqlite_db.async_url), tmp_path / "newer")
    for arguments, words in (
        (["-n", "localhost:1"], "give --database"),
        (["-d", "sqlite://", "--yes"], "give both"),
        (["--tables", str(tmp_path), "--consumer-database", "sqlite://", "-n", "localhost:1"], "with --database"),
        (["-d", "sqlite://", "-n", "nowhere"], "write host:port"),
        (["-d", "sqlite://", "-n", "localhost:1", "--horizon", "nan"], "nan is no number"),
    ):
        done = CliRunner(env={"RUCOLA_DATABASE": ""}).invoke(main, ["pipeline", "reconcile", *arguments])
        assert (done.exit_code, words in done.stderr) == (2, True), done.stderr
    for url in ("--database", "--consumer-database"):
        missing = [url, f"sqlite:///{tmp_path / 'missing.db'}"]
        done = CliRunner(env={"RUCOLA_DATABASE": sqlite_db.url}).invoke(
            main, ["pipeline", "reconcile", *missing, "-n", "localhost:1"]
        )
        assert (done.exit_code, "there is no such file" in done.stderr) == (1, True)
    assert not (tmp_path / "missing.db").exists()
