"""What tests of the relay have in common: stubs added and looked at, a relay until something holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Table, func, insert, select, update
from sqlalchemy.orm import Session

from rucola.client import ConsumeFromWhere, Message, PushConsumer
from rucola.message import MessageExt, properties
from rucola.reliable.alerts import Alert
from rucola.reliable.database import Database
from rucola.reliable.idempotent import idempotent
from rucola.reliable.outbox import Outbox
from rucola.reliable.policy import Policy
from rucola.reliable.relay import Relay
from rucola.reliable.schema import now_ms
from rucola.testing.rocketmq import RocketMQ
from support import waiting
from support.databases import OutboxDatabase

T = TypeVar("T")

FAST_POLICY = Policy(retry_ms=1, max_retry_ms=50, confirm_timeout_ms=1, max_check_ms=20, poll_ms=20, jitter=0)
"""Everything is due at once."""


def add(
    db: OutboxDatabase, topic: str, bodies: Iterable[bytes], *, groups: Iterable[str] = (), **options: Any
) -> list[str]:
    """Add messages in one transaction; their ids."""
    outbox = Outbox(groups, tables=db.tables)
    with Session(db.engine()) as session, session.begin():
        return [outbox.add(session, Message(topic, body), **options) for body in bodies]


def delivery(message_id: str, body: bytes = b"x", times: int = 0) -> MessageExt:
    """A message as a broker delivers it for the first time, or again."""
    unique = {properties.UNIQ_KEY: message_id}
    return MessageExt("T", 0, 7, 0, 0, body, unique, 0, 0, 0, 1, 0, "", 0, "127.0.0.1:1", times, 0, bytes(8))


def count(db: OutboxDatabase, table: Table) -> int:
    with db.engine().connect() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


def stubs(db: OutboxDatabase) -> list[Row[Any]]:
    with db.engine().connect() as connection:
        return list(connection.execute(select(db.tables.stub).order_by(db.tables.stub.c.seq)))


def statuses(db: OutboxDatabase) -> dict[str, int]:
    stub = db.tables.stub
    with db.engine().connect() as connection:
        return {
            row[0]: row[1] for row in connection.execute(select(stub.c.status, func.count()).group_by(stub.c.status))
        }


def receive(db: OutboxDatabase, message_id: str, group: str) -> None:
    """A receipt of a group whose worker does no more."""
    row = {"message_id": message_id, "consumer_group": group, "received_at": now_ms()}
    with db.engine().begin() as connection:
        connection.execute(insert(db.tables.receipt).values(**row))


def change(db: OutboxDatabase, *which: ColumnElement[bool], **values: Any) -> None:
    """Set columns of all such stubs, as time or an operator would."""
    with db.engine().begin() as connection:
        connection.execute(update(db.tables.stub).where(*which).values(**values))


def transact(db: OutboxDatabase, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Run a function of a connection and tables in a transaction."""
    return Database(db.engine()).run_sync(work, db.tables, *arguments, **options)


@asynccontextmanager
async def relay(db: OutboxDatabase, rocketmq: RocketMQ, **options: Any) -> AsyncIterator[Relay]:
    async with Relay(
        db.engine(), rocketmq.namesrv, **{"tables": db.tables, "policy": FAST_POLICY} | options
    ) as running:
        yield running


def consumer_of(namesrv: str, group: str, topic: str, listener: Callable[..., Any], **options: Any) -> PushConsumer:
    """A member of a group that also consumes what was sent before it."""
    made = PushConsumer(group, namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, **options)
    made.subscribe(topic)
    made.listen(listener)
    return made


async def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Poll a condition that queries a database, in a thread. TimeoutError after `timeout_s`."""
    await waiting.until(lambda: asyncio.to_thread(condition), timeout_s)


class RecordingSink:
    """A sink that keeps its alerts."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []

    def __call__(self, alert: Alert) -> None:
        self.alerts.append(alert)


class RepairableConsumer:
    """A member of a group whose listener fails until it is repaired; the first failure makes a dead letter."""

    def __init__(self, db: OutboxDatabase, rocketmq: RocketMQ, group: str, topic: str) -> None:
        self.is_repaired = False
        self.effects: list[str] = []

        @idempotent(db.engine(), group, tables=db.tables)
        def listener(message: MessageExt, session: object) -> None:
            if not self.is_repaired:
                raise ZeroDivisionError
            self.effects.append(message.msg_id)

        self.client = consumer_of(rocketmq.namesrv, group, topic, listener, max_reconsume_times=0)
