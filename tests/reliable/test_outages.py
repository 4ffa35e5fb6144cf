"""Outages: the database is killed and restarted under a relay and a consumer, a relay's process is paused."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, String, Table, func, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from rucola.client import MessageExt, PushConsumer
from rucola.client.consumer.options import ConsumeFromWhere
from rucola.reliable import Policy, Tables, idempotent, migration
from rucola.testing.rocketmq import RocketMQ
from support.databases import OutboxDatabase, server_user, serving, start_postgresql
from support.outbox import add, relay, stubs, until
from support.servers import server

pytestmark = pytest.mark.slow

QUICK_RETRIES = " ".join(["1s"] * 18)


@pytest.fixture
def own_db() -> Iterator[OutboxDatabase]:
    """A PostgreSQL that this test may kill."""
    with serving("postgresql", server_user("postgres"), start_postgresql) as own:
        db = OutboxDatabase(own.url, Tables(), own)
        with db.engine().begin() as connection:
            migration.init(connection, db.tables)
        yield db
        db.close()


@pytest.mark.rocketmq(messageDelayLevel=QUICK_RETRIES)
async def test_relay_and_consumer_survive_a_database_crash(own_db: OutboxDatabase, rocketmq: RocketMQ) -> None:
    db = own_db
    invoices = Table("invoice", MetaData(), Column("text", String(20)))
    invoices.create(db.engine())
    rocketmq.create_topic("T", 1)

    def count() -> int:
        try:
            with db.engine().connect() as connection:
                return connection.scalar(select(func.count()).select_from(invoices)) or 0
        except DBAPIError:  # a connection of the pool that the crash has ended
            return -1

    @idempotent(db.async_engine(), "billing", tables=db.tables, lease_ms=1000)
    async def bill(message: MessageExt, session: AsyncSession) -> None:
        await session.execute(insert(invoices).values(text=message.body.decode()))
        if message.body == b"5" and db.server is not None and not crashed:
            crashed.append(True)
            # With the transaction open. In a thread: the server waits for the startup packets of new connections, which
            # this event loop sends.
            await asyncio.to_thread(db.server.crash)

    crashed: list[bool] = []

    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = PushConsumer("billing", rocketmq.namesrv, consume_from=first)
    consumer.subscribe("T")
    consumer.listen(bill)
    policy = Policy(lease_ms=1000, poll_ms=50)
    async with relay(db, rocketmq, policy=policy), consumer:
        add(db, "T", [b"%d" % number for number in range(10)], groups=["billing"])
        await until(lambda: bool(crashed) and db.server is not None and db.server.process.poll() is not None)
        assert db.server is not None
        db.server.start()
        await until(lambda: count() == 10)
        await until(lambda: {stub.status for stub in stubs(db)} == {"CONFIRMED"})
    with db.engine().connect() as connection:
        texts = list(connection.scalars(select(invoices.c.text)))
    assert sorted(texts) == [str(number) for number in range(10)]


async def test_paused_relay_loses_its_lanes_and_resumes_without_harm(
    postgresql_db: OutboxDatabase, shared_rocketmq: RocketMQ, tmp_path: Path
) -> None:
    topic = shared_rocketmq.unique("T")
    shared_rocketmq.create_topic(topic, 1)
    arguments = ("reliable", "relay", "-n", shared_rocketmq.namesrv, "--database", postgresql_db.url, "--lease", "1")
    prefix = ("--prefix", postgresql_db.tables.prefix)
    with server(*arguments, *prefix, log=tmp_path / "first") as first:
        assert first.first_line, first.log.read_text()
        first.process.send_signal(signal.SIGSTOP)
        add(postgresql_db, topic, [b"%d" % number for number in range(20)], shard_key="k")
        with server(*arguments, *prefix, log=tmp_path / "second") as second:
            assert second.first_line, second.log.read_text()
            await until(lambda: {stub.status for stub in stubs(postgresql_db)} == {"CONFIRMED"})
            first.process.send_signal(signal.SIGCONT)
            add(postgresql_db, topic, [b"20"], shard_key="k")
            await until(lambda: {stub.status for stub in stubs(postgresql_db)} == {"CONFIRMED"})
            assert first.stop() == second.stop() == 0
    assert [message.body for message in shared_rocketmq.messages(topic)] == [b"%d" % number for number in range(21)]
