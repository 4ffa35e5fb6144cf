"""A master whose log was cut off, and which becomes master again, delivers again what was cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rucola import slices
from rucola.broker.background.scheduler import DueTask
from rucola.broker.broker import Broker
from rucola.broker.delivery.delay import delay_offset_file
from rucola.broker.delivery.kinds import reset_progress
from rucola.broker.delivery.timer import TimerCheckpoint, timer_file
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.client import LocalTransactionState, Message, MessageExt, TransactionProducer
from rucola.message.topics import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rucola.store.config_files import read_config
from support.cluster import HOST, Cluster
from support.own_deliveries import HOUR_MS, LEVELS, Clock, half_offset, has_messages, send_waiting
from support.proxy import Proxy
from support.replication import follows, lone_master
from support.waiting import until

EAGER = {"transaction_check_interval": 50, "transaction_check_max": 1 << 30}


@dataclass
class Returning:
    """A master whose clock a test sets forward, and its slave, which delivers nothing meanwhile."""

    running: Cluster
    first: Broker
    second: Broker
    clock: Clock

    async def stop_slave(self) -> None:
        """Stop the slave once it has the whole log; then let the master deliver what waits."""
        await until(lambda: self.second.role.position() == self.first.role.position())
        await self.second.stop()
        self.clock.ahead_ms = HOUR_MS

    async def exchange(self) -> None:
        """Promote the slave, cut off what only the first master has, and make that one master again.

        It gets the log of the second, and no tables: the address for them refuses connections.
        """
        async with Proxy(self.second.address) as tables:
            tables.refuse()
            await self.first.stop()
            await self.second.start()
            await self.second.role.become_master(2, None)
            await self.first.start()
            ha_address = f"{HOST}:{self.second.config.ha_listen_port}"
            await self.first.role.become_slave(2, 1, ha_address, tables.address)
            await follows(self.second, self.first)
            await self.second.stop()
            await self.first.role.become_master(3, None)


@asynccontextmanager
async def returning_master(path: Path) -> AsyncIterator[Returning]:
    clock = Clock()
    async with lone_master(path, LEVELS, clock=clock, **EAGER) as (running, first):
        second = await running.start_slave(LEVELS)
        yield Returning(running, first, second, clock)
    assert list((path / "broker-a" / "diverged").iterdir()) != []


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set forward is noticed."""
    monkeypatch.setattr(DueTask, "MAX_WAIT_MS", 20)


async def test_delayed_and_timer_messages_are_delivered_again(tmp_path: Path) -> None:
    async with returning_master(tmp_path) as here:
        await send_waiting(here.running, b"delayed", DELAY="1")
        await send_waiting(here.running, b"timer", TIMER_DELAY_SEC="3600")
        await here.stop_slave()
        await has_messages(here.running, here.first, b"delayed", b"timer")
        await here.exchange()
        await has_messages(here.running, here.first, b"delayed", b"timer")


async def test_a_transaction_whose_end_was_cut_off_is_checked_again(tmp_path: Path) -> None:
    def outcome(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    async with (
        returning_master(tmp_path) as here,
        TransactionProducer("p", here.running.namesrv, check=outcome) as producer,
    ):
        await producer.send_in_transaction(Message("T", b"half"), lambda message: LocalTransactionState.UNKNOW)
        await here.stop_slave()
        await has_messages(here.running, here.first, b"half")

        async def has_ended() -> bool:
            return await half_offset(here.running, here.first) > 0

        await until(has_ended)
        await here.exchange()
        await producer.send(Message("T", b"plain"))  # an idle client looks for another master every 30 s only
        await has_messages(here.running, here.first, b"half", b"plain")


def test_a_reset_concerns_each_kind_and_nothing_else(tmp_path: Path) -> None:
    delay_offset_file(tmp_path).write({1: 3}, 100)
    timer_file(tmp_path).write(TimerCheckpoint(5, 4, 3), 100)
    offsets = ConsumerOffsetTable(tmp_path / "consumerOffset.json")
    offsets.commit("g", "T", 0, 1)
    offsets.commit_transactions({TRANS_HALF_TOPIC: 2, TRANS_OP_HALF_TOPIC: 1}, 100)
    slices.run(offsets.snapshot_steps())()
    reset_progress(tmp_path)
    found = {path.name: read_config(path) for path in tmp_path.glob("*.json")}
    assert found == {
        "delayOffset.json": {"offsetTable": {}},
        "timer.json": {"deliveredMs": 0, "queueOffset": 0, "rolledOffset": 0},
        "consumerOffset.json": {"offsetTable": {"T@g": {0: 1}}},
    }


def test_a_reset_creates_no_file(tmp_path: Path) -> None:
    reset_progress(tmp_path)
    assert list(tmp_path.iterdir()) == []
