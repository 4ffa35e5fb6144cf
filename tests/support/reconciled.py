"""Tables and logs for the tests of the job reconcile: rows as a test names them, and the relay's own selection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import delete, insert, select

from rucola.admin import AdminClient
from rucola.client import MessageQueue, Producer, PullConsumer
from rucola.fastjson import dumps_pretty
from rucola.reliable import lane_leases, stub_claims
from rucola.reliable.database import Database
from rucola.reliable.policy import Policy
from rucola.reliable.schema import CONFIRMED, LANES, SENT, VOID, now_ms
from rucola.reliable.stub_checks import Checker, receipts_of
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase

HOUR_MS = 3_600_000
_RELAY = "relay"


def database_ms(db: OutboxDatabase) -> int:
    with db.engine().connect() as connection:
        return int(connection.scalar(select(now_ms())) or 0)


def put_stub(db: OutboxDatabase, message_id: str, **values: Any) -> None:
    """Insert a stub that was sent an hour ago and is due, unless the values say otherwise."""
    now = database_ms(db)
    row = {
        "message_id": message_id, "topic": "T", "properties": "{}", "body": b"", "lane": 0, "status": SENT,
        "awaiting": ",billing,", "sends": 1, "created_at": now - HOUR_MS, "due_at": now - 1000,
    } | values  # fmt: skip
    if row["status"] in (CONFIRMED, VOID):
        row |= {"due_at": None, "confirmed_at": now}
    with db.engine().begin() as connection:
        connection.execute(insert(db.tables.stub).values(**row))


def put_receipt(db: OutboxDatabase, message_id: str, group: str = "billing", ago_ms: int = 1000) -> None:
    row = {"message_id": message_id, "consumer_group": group, "received_at": database_ms(db) - ago_ms}
    with db.engine().begin() as connection:
        connection.execute(insert(db.tables.receipt).values(**row))


def put_done(db: OutboxDatabase, message_id: str, group: str = "billing", ago_ms: int = 1000) -> None:
    row = {"message_id": message_id, "consumer_group": group, "done_at": database_ms(db) - ago_ms}
    with db.engine().begin() as connection:
        connection.execute(insert(db.tables.done).values(**row))


def write_offsets(store: Path, offsets: Mapping[str, Mapping[int, int]]) -> None:
    """Write the consumer offsets of a store, by `topic@group` and queue."""
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "consumerOffset.json").write_text(dumps_pretty({"offsetTable": offsets}))


async def commit(namesrv: str, group: str, offsets: Iterable[tuple[MessageQueue, int]]) -> None:
    """Commit offsets of a group at a live broker."""
    async with PullConsumer(group, namesrv) as consumer:
        for queue, offset in offsets:
            await consumer.queues(queue.topic)
            await consumer.commit(queue, offset)


def relay_decisions(db: OutboxDatabase, rocketmq: RocketMQ, policy: Policy) -> tuple[set[int], dict[int, str]]:
    """What the relay's own code does now: the `seq` of the stubs that it sends, and the new status of the others.

    The claims are undone afterwards.
    """
    stub = db.tables.stub
    with db.engine().connect() as connection:
        before = [dict(row._mapping) for row in connection.execute(select(stub))]
    try:
        return asyncio.run(_decisions(db, rocketmq, policy))
    finally:
        with db.engine().begin() as connection:
            lane_leases.leave(connection, db.tables, _RELAY)
            connection.execute(delete(stub))
            connection.execute(insert(stub), before)


async def _decisions(db: OutboxDatabase, rocketmq: RocketMQ, policy: Policy) -> tuple[set[int], dict[int, str]]:
    database = Database(db.engine())
    lanes = await database.run(lane_leases.renew, db.tables, _RELAY, policy.lease_ms)
    assert len(lanes) == LANES
    batch = await database.run(
        stub_claims.claim_batch, db.tables, _RELAY, lanes, limit=10_000, lease_ms=policy.lease_ms,
        max_sends=policy.max_sends,
    )  # fmt: skip
    receipts = await database.run(receipts_of, db.tables, batch.to_check)
    async with Producer("checks", rocketmq.namesrv) as producer, AdminClient(rocketmq.namesrv) as admin:
        resent, outcomes = await Checker(producer.instance, admin, policy).check(batch.to_check, receipts)
    return {row.seq for row in batch.to_send} | {*resent}, {each.seq: each.status for each in outcomes}
