"""The job reconcile: its resend set is the relay's, and its lists are true while messages are sent and consumed."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from sqlalchemy import update

from rucola.cli.main import main
from rucola.client import MessageQueue
from rucola.errors import ConfigError, StoreError
from rucola.message.ids import unique_id
from rucola.message.properties import UNIQ_KEY
from rucola.message.topics import dlq_topic
from rucola.reliable import ReliableError, SchemaError, operations
from rucola.reliable.operations import LEAST_PURGE_AFTER_MS, SeenStub
from rucola.reliable.policy import KeyedResend, Policy
from rucola.reliable.schema import CONFIRMED, DEAD, MANUAL, NEW, SENT, STATUSES, STUCK, VOID
from rucola.spark.jobs import archive, reconcile, table_export
from rucola.spark.jobs.reconcile import LISTS, ReconcileResult
from rucola.spark.jobs.reconciled_log import Commit, LogSources, log_sources
from rucola.spark.jobs.table_export import TableSource
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase
from support.outbox import stubs
from support.reconciled import (
    DAY_MS,
    HOUR_MS,
    commit,
    database_ms,
    put_done,
    put_receipt,
    put_stub,
    relay_decisions,
    write_offsets,
)
from support.small_store import SmallStore

pytestmark = pytest.mark.spark

BROKER = "broker-a"


def source_of(db: OutboxDatabase) -> TableSource:
    return TableSource(db.url, db.tables.prefix)


def rows(out: Path, name: str, *columns: str) -> set[Any]:
    """Some columns of a list."""
    found = [tuple(row[column] for column in columns) for row in pq.read_table(out / name).to_pylist()]
    assert len({*found}) == len(found)
    return {each[0] for each in found} if len(columns) == 1 else {*found}


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
        asyncio.run(commit(shared_rocketmq, groups[short], offsets))
    letters = dlq_topic(groups["a"])
    shared_rocketmq.create_topic(letters, 1)
    for message_id, _, _ in rng.sample(sent, 10):
        shared_rocketmq.send(letters, b"x", properties={UNIQ_KEY: message_id})
    now = database_ms(db)
    used: set[str] = set()
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
    assert early and early <= relay_decisions(db, shared_rocketmq, policy)[0]
