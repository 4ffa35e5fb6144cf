"""Faults of a broker: killed, its disk lost, a slave promoted, its responses lost; and what the relay logs meanwhile.

Brokers that are killed are processes. Each test ends with one effect for each message that was added.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, String, Table, insert, select
from sqlalchemy.orm import Session

from rucola.client import MessageExt
from rucola.reliable.alerts import BROKER_AWAY, Alerts
from rucola.reliable.idempotent import idempotent
from rucola.reliable.policy import Policy
from rucola.reliable.relay import AWAY_ALERT_S, Relay
from rucola.testing.rocketmq import AdvanceableLoop, RocketMQ
from support.cluster import cluster
from support.databases import OutboxDatabase
from support.outbox import RecordingSink, add, change, consumer_of, relay, statuses, stubs, until
from support.processes import Machines

pytestmark = pytest.mark.slow

GROUP = "billing"
POLICY = Policy(lease_ms=2000, retry_ms=50, confirm_timeout_ms=100, max_check_ms=200, poll_ms=20, jitter=0)


class Business:
    """Invoices in a database, written by a consumer of the topic."""

    def __init__(self, db: OutboxDatabase) -> None:
        self.db = db
        self.invoices = Table("invoice", MetaData(), Column("text", String(20)))
        self.invoices.create(db.engine())
        self.added: list[bytes] = []

    def add(self, topic: str, count: int) -> None:
        bodies = [b"%d" % (len(self.added) + number) for number in range(count)]
        add(self.db, topic, bodies, groups=[GROUP])
        self.added += bodies

    @asynccontextmanager
    async def consumer(self, namesrv: str, topic: str) -> AsyncIterator[None]:
        @idempotent(self.db.engine(), GROUP, tables=self.db.tables, lease_ms=1000)
        def bill(message: MessageExt, session: Session) -> None:
            session.execute(insert(self.invoices).values(text=message.body.decode()))

        consumer = consumer_of(namesrv, GROUP, topic, bill)
        async with consumer:
            yield

    def effects(self) -> list[bytes]:
        with self.db.engine().connect() as connection:
            return sorted(text.encode() for text in connection.scalars(select(self.invoices.c.text)))

    def is_settled(self) -> bool:
        return statuses(self.db) == {"CONFIRMED": len(self.added)}


@pytest.fixture
def business(sqlite_db: OutboxDatabase) -> Business:
    return Business(sqlite_db)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(tmp_path, stack)


def processes_relay(business: Business, machines: Machines) -> Relay:
    return Relay(business.db.engine(), machines.namesrv, tables=business.db.tables, policy=POLICY)


@pytest.mark.parametrize("is_consumed", [False, True], ids=["in the backlog", "after they were consumed"])
async def test_lost_disk_loses_no_message(is_consumed: bool, business: Business, machines: Machines) -> None:
    """The new disk is empty: queue offsets begin again at 0, below those that stubs have recorded."""
    broker = machines.broker()
    async with processes_relay(business, machines) as running:
        business.add("T", 20)
        running.wake()
        await until(lambda: statuses(business.db) == {"SENT": 20})
        if is_consumed:
            async with business.consumer(machines.namesrv, "T"):
                await until(business.is_settled)
            business.add("T", 1)  # in the backlog, at an offset that the new disk reaches again
            running.wake()
            await until(lambda: statuses(business.db) == {"CONFIRMED": 20, "SENT": 1})
        broker.process.kill()
        broker.process.wait()
        shutil.rmtree(machines.path / "master")
        await asyncio.to_thread(machines.broker, listenPort=machines.addresses["master"].rpartition(":")[2])
        business.add("T", 5)
        running.wake()
        async with business.consumer(machines.namesrv, "T"):
            await until(business.is_settled, 60)
    assert business.effects() == sorted(business.added)
    assert sum(stub.sends for stub in stubs(business.db)) >= len(business.added) + (1 if is_consumed else 20)


async def test_promoted_slave_without_the_last_messages_gets_them_again(business: Business, machines: Machines) -> None:
    """Asynchronous replication: the master dies before its slave has everything, and the slave is promoted."""
    master = machines.broker()
    slave = machines.broker("slave", "SLAVE")
    async with processes_relay(business, machines) as running:
        business.add("T", 10)
        running.wake()
        await until(lambda: statuses(business.db) == {"SENT": 10})
        async with business.consumer(machines.namesrv, "T"):
            await until(business.is_settled)
        log = machines.path / "slave" / "commitlog"
        last = business.added[-1]
        await until(lambda: any(last in file.read_bytes() for file in log.iterdir()))
        slave.process.kill()
        slave.process.wait()
        business.add("T", 10)
        running.wake()
        await until(lambda: statuses(business.db) == {"CONFIRMED": 10, "SENT": 10})
        master.process.kill()
        master.process.wait()
        await asyncio.to_thread(machines.broker, "slave", "ASYNC_MASTER", brokerId="0")
        business.add("T", 1)
        running.wake()
        async with business.consumer(machines.namesrv, "T"):
            await until(business.is_settled, 90)
    assert business.effects() == sorted(business.added)


async def test_send_whose_response_is_lost_is_repeated_and_its_duplicate_dropped(
    business: Business, tmp_path: Path
) -> None:
    async with cluster(tmp_path) as running:
        broker, proxy = await running.start_broker_behind_proxy()
        await running.create_topic(broker, "T", 1)
        proxy.lose(b"the only copy")
        async with Relay(business.db.engine(), running.namesrv, tables=business.db.tables, policy=POLICY) as sending:
            await asyncio.to_thread(add, business.db, "T", [b"the only copy"], groups=[GROUP])
            business.added.append(b"the only copy")
            sending.wake()
            async with business.consumer(running.namesrv, "T"):
                await until(business.is_settled, 60)
                assert proxy.lost == 1
    assert business.effects() == business.added


# Alerts and log.


def test_broker_that_is_away_for_five_minutes_is_alerted(sqlite_db: OutboxDatabase, rocketmq: RocketMQ) -> None:
    """The relay starts during the outage: the broker has left the name server, so that no topic has a route."""
    told = RecordingSink()
    loop = AdvanceableLoop()

    async def main() -> None:
        add(sqlite_db, "T", [b"x"])
        async with relay(sqlite_db, rocketmq, alerts=Alerts([told], interval_ms=3_600_000)) as running:
            await until(lambda: running._away_since is not None)
            assert told.alerts == []
            loop.ahead_s += AWAY_ALERT_S
            await until(lambda: bool(told.alerts))
            assert [stub.sends for stub in stubs(sqlite_db)] == [1]

    with rocketmq.broker_down(), asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    (alert,) = told.alerts
    assert alert.kind == BROKER_AWAY
    assert "wait in the outbox" in alert.text()


def test_queue_that_left_the_route_is_alerted_while_messages_of_its_keys_wait(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic has fewer queues than when the first messages of two keys were sent, which nobody has settled."""
    topic, told = shared_rocketmq.unique("T"), RecordingSink()
    shared_rocketmq.create_topic(topic, 1)
    loop = AdvanceableLoop()

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if f"queue {topic}@" in record.getMessage()]

    async def main() -> None:
        for key in "ab":
            add(sqlite_db, topic, [b"stuck"], groups=[GROUP], shard_key=key)
        change(sqlite_db, status="STUCK", broker="broker-a", queue_id=1, queue_offset=0, due_at=None)
        async with relay(sqlite_db, shared_rocketmq, alerts=Alerts([told], interval_ms=3_600_000)) as running:
            for key in "ab":
                add(sqlite_db, topic, [b"later"], groups=[GROUP], shard_key=key)
            running.wake()
            await until(lambda: all(stub.error for stub in stubs(sqlite_db)[2:]))
            first_due = [stub.due_at for stub in stubs(sqlite_db)[2:]]
            await until(lambda: all(s.due_at > d for s, d in zip(stubs(sqlite_db)[2:], first_due, strict=True)))
            assert told.alerts == []
            loop.ahead_s += AWAY_ALERT_S
            await until(lambda: bool(told.alerts))
            assert statuses(sqlite_db) == {"STUCK": 2, "NEW": 2}
            assert len(lines()) == 2  # its begin, and a summary after five minutes
            shared_rocketmq.create_topic(topic, 2)
            await until(lambda: statuses(sqlite_db) == {"STUCK": 2, "SENT": 2})
            assert [(s.sends, s.broker, s.queue_id) for s in stubs(sqlite_db)[2:]] == 2 * [(1, "broker-a", 1)]
            assert len(lines()) == 3  # its end

    with asyncio.Runner(loop_factory=lambda: loop) as runner, caplog.at_level(logging.INFO, "rucola.reliable"):
        runner.run(main())
    (alert,) = told.alerts
    assert alert.kind == BROKER_AWAY
    assert f"{topic}@broker-a:1" in alert.detail


async def test_outage_of_a_broker_with_a_large_outbox_logs_a_few_lines(
    sqlite_db: OutboxDatabase, rocketmq: RocketMQ, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand messages wait to be sent, a thousand to be checked: the log names the outage, not each of them."""
    rocketmq.create_topic("T", 4)
    with caplog.at_level(logging.INFO, "rucola.reliable"):
        async with relay(sqlite_db, rocketmq) as running:
            add(sqlite_db, "T", [b"x"] * 1000, groups=[GROUP])
            await until(lambda: statuses(sqlite_db) == {"SENT": 1000})
            receive_all(sqlite_db)
            caplog.clear()
            with rocketmq.broker_down():
                add(sqlite_db, "T", [b"y"] * 1000)
                running.wake()
                await until(lambda: running._away_since is not None)
                for _ in range(3):
                    assert not await running._probe_broker()
            await until(lambda: statuses(sqlite_db) == {"SENT": 1000, "CONFIRMED": 1000})
    assert len(caplog.records) <= 20, [record.message for record in caplog.records][:40]


def receive_all(db: OutboxDatabase) -> None:
    """A receipt for each stub: its checks query the dead letters, too."""
    stub, receipt = db.tables.stub, db.tables.receipt
    source = select(stub.c.message_id, stub.c.created_at).add_columns(stub.c.topic)
    with db.engine().begin() as connection:
        rows = connection.execute(source).all()
        connection.execute(
            insert(receipt),
            [{"message_id": row.message_id, "consumer_group": GROUP, "received_at": row.created_at} for row in rows],
        )


async def test_resend_of_many_lost_messages_logs_a_few_lines(
    sqlite_db: OutboxDatabase, shared_rocketmq: RocketMQ, caplog: pytest.LogCaptureFixture
) -> None:
    topic = shared_rocketmq.unique("T")
    shared_rocketmq.create_topic(topic, 4)
    with caplog.at_level(logging.INFO, "rucola.reliable"):
        async with relay(sqlite_db, shared_rocketmq, policy=Policy(poll_ms=20)) as running:
            ids = add(sqlite_db, topic, [b"x"] * 1000, groups=[GROUP])
            await until(lambda: statuses(sqlite_db) == {"SENT": 1000})
            change(sqlite_db, queue_offset=1 << 40, due_at=1)
            running.wake()
            await until(lambda: min(stub.sends for stub in stubs(sqlite_db)) >= 2)
    lines = [record.message for record in caplog.records if "resending" in record.message]
    assert 1 <= len(lines) <= 20
    assert any(message_id in lines[0] for message_id in ids)
