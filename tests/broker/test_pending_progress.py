"""A slave whose log is behind takes over what its master has delivered itself only with the log: nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from rucola import fastjson
from rucola.broker.background.scheduler import DueTask
from rucola.broker.broker import Broker
from rucola.broker.replication import table_sync
from rucola.broker.replication.pending_progress import MasterProgress, PendingProgress
from rucola.broker.role import LogPosition
from rucola.client import LocalTransactionState, Message, MessageExt, TransactionProducer
from rucola.protocol.codes import RequestCode
from support.cluster import HOST, Cluster
from support.own_deliveries import HOUR_MS, LEVELS, Clock, half_offset, has_messages, send_waiting
from support.proxy import Proxy
from support.replication import lone_master
from support.waiting import until

TRANSACTIONS = {"transaction_check_interval": 50, "transaction_check_max": 1 << 30}


@dataclass
class Pair:
    """A master, and a slave that gets the log by way of a proxy and the tables without one."""

    running: Cluster
    first: Broker
    second: Broker
    way: Proxy
    clock: Clock

    async def has_log(self) -> None:
        """Wait until the slave has the whole log."""
        await until(lambda: self.second.role.position() == self.first.role.position())

    async def has_tables(self) -> None:
        """Wait until all tables that the master has now were copied, and what may be applied is."""
        # The groups are the last table of a run. The first change may be copied by a run that began before this call,
        # and what the second one has copied is applied at the begin of the third.
        for _ in range(3):
            retries = next(_NUMBERS)
            await self.running.peer(self.first).alter_group(retry_max_times=retries)

            async def is_copied(expected: bytes = b'"retryMaxTimes":%d,' % retries) -> bool:
                groups = await self.running.peer(self.second).ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
                return expected in groups.body

            await until(is_copied)

    def delay_offsets(self) -> object:
        """What the slave would begin with as master."""
        file = self.running.path / "slave" / "config" / "delayOffset.json"
        return fastjson.loads(file.read_bytes())["offsetTable"] if file.exists() else {}


_NUMBERS = count(100)


@asynccontextmanager
async def pair_by_proxy(path: Path) -> AsyncIterator[Pair]:
    clock = Clock()
    async with (
        lone_master(path, LEVELS, clock=clock, **TRANSACTIONS) as (running, first),
        Proxy(f"{HOST}:{first.config.ha_listen_port}") as way,
    ):
        second = await running.start_slave(LEVELS, clock=clock, ha_master_address=way.address, **TRANSACTIONS)
        yield Pair(running, first, second, way, clock)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run copies all tables, and a clock that is set forward is noticed."""
    monkeypatch.setattr(table_sync, "SYNC_INTERVAL_MS", 20)
    monkeypatch.setattr(table_sync, "RUNS_PER_FULL_COPY", 1)
    monkeypatch.setattr(DueTask, "MAX_WAIT_MS", 20)


@pytest.mark.parametrize("has_log", [False, True])
async def test_offsets_of_delayed_delivery_apply_once_the_slave_has_what_was_delivered(
    tmp_path: Path, has_log: bool
) -> None:
    """Else the slave delivers it when it becomes master."""
    async with pair_by_proxy(tmp_path) as here:
        await send_waiting(here.running, b"delayed", DELAY="1")
        await here.has_log()
        here.way.freeze()
        here.clock.ahead_ms = HOUR_MS
        await has_messages(here.running, here.first, b"delayed")
        await here.has_tables()
        assert here.delay_offsets() == {}
        if has_log:
            here.way.thaw()
            await until(lambda: here.delay_offsets() == {1: 1})
        await here.first.stop()
        await here.second.role.become_master(2, None)
        await has_messages(here.running, here.second, b"delayed")


async def test_a_half_message_that_only_the_lost_master_had_put_back_is_checked(tmp_path: Path) -> None:
    state = LocalTransactionState.UNKNOW

    def outcome(message: MessageExt) -> LocalTransactionState:
        return state

    async with (
        pair_by_proxy(tmp_path) as here,
        TransactionProducer("p", here.running.namesrv, check=outcome) as producer,
    ):
        await producer.send_in_transaction(Message("T", b"half"), lambda message: state)
        await here.has_log()
        here.way.freeze()
        here.clock.ahead_ms = HOUR_MS

        async def is_put_back() -> bool:
            return await half_offset(here.running, here.first) > 0

        await until(is_put_back)
        await here.has_tables()
        assert await half_offset(here.running, here.second) <= 0
        await here.first.stop()
        await here.second.role.become_master(2, None)
        state = LocalTransactionState.COMMIT_MESSAGE
        await producer.send(Message("T", b"plain"))  # an idle client looks for another master every 30 s only
        await has_messages(here.running, here.second, b"half", b"plain")


async def test_offsets_of_half_messages_apply_once_the_slave_has_what_was_put_back(tmp_path: Path) -> None:
    async with (
        pair_by_proxy(tmp_path) as here,
        TransactionProducer(
            "p", here.running.namesrv, check=lambda _: LocalTransactionState.ROLLBACK_MESSAGE
        ) as sender,
    ):
        await sender.send_in_transaction(Message("T", b"half"), lambda message: LocalTransactionState.UNKNOW)
        await here.has_log()
        here.way.freeze()
        here.clock.ahead_ms = HOUR_MS

        async def has_ended() -> bool:
            return await half_offset(here.running, here.first) > 0

        async def is_copied() -> bool:
            return await half_offset(here.running, here.second) == await half_offset(here.running, here.first)

        await until(has_ended)
        await here.has_tables()
        assert await half_offset(here.running, here.second) <= 0
        here.way.thaw()
        await until(is_copied)


# Which table waits, and until when.

ADDRESS, OTHER = "10.0.0.1:10911", "10.0.0.2:10911"


def offered(*offers: tuple[str, int, int], by: str = ADDRESS) -> PendingProgress[str]:
    """Tables by their names, the epoch and the end that each of them needs."""
    pending: PendingProgress[str] = PendingProgress()
    for name, epoch, end in offers:
        pending.offer(MasterProgress(name, by, LogPosition(epoch, end)))
    return pending


def taken(pending: PendingProgress[str], address: str, own: LogPosition) -> str | None:
    progress = pending.take(address, own)
    return progress.table if progress is not None else None


@pytest.mark.parametrize(
    ("address", "epoch", "end", "is_covered"),
    [
        (ADDRESS, 3, 100, True),
        (ADDRESS, 3, 101, True),
        (ADDRESS, 3, 99, False),
        (ADDRESS, 2, 200, False),
        (ADDRESS, 4, 200, False),
        (OTHER, 3, 200, False),
    ],
    ids=["reached", "passed", "behind", "log of an older epoch", "log of a newer epoch", "another master"],
)
def test_a_table_waits_for_the_log_of_its_master(address: str, epoch: int, end: int, is_covered: bool) -> None:
    pending = offered(("a", 3, 100))
    assert taken(pending, address, LogPosition(epoch, end)) == ("a" if is_covered else None)
    # It waits on if it was not taken, and is taken once.
    assert taken(pending, ADDRESS, LogPosition(3, 100)) == (None if is_covered else "a")
    assert taken(pending, ADDRESS, LogPosition(3, 100)) is None


def test_the_first_table_of_a_log_that_moves_on_keeps_waiting() -> None:
    """A slave that lags steadily would otherwise never apply one."""
    pending = offered(("a", 3, 100), ("b", 3, 200), ("c", 3, 300))
    assert taken(pending, ADDRESS, LogPosition(3, 150)) == "a"
    assert taken(pending, ADDRESS, LogPosition(3, 300)) is None


@pytest.mark.parametrize(
    "newer", [("b", 4, 50), ("b", 4, 200), ("b", 3, 50)], ids=["epoch", "epoch, later", "lost end"]
)
def test_a_table_of_another_log_takes_the_place_of_the_one_that_waits(newer: tuple[str, int, int]) -> None:
    _, epoch, end = newer
    pending = offered(("a", 3, 100), newer)
    assert taken(pending, ADDRESS, LogPosition(epoch, end)) == "b"
    assert taken(pending, ADDRESS, LogPosition(3, 100)) is None


def test_a_table_of_another_master_takes_the_place_of_the_one_that_waits() -> None:
    pending = offered(("a", 0, 100))
    pending.offer(MasterProgress("b", OTHER, LogPosition(0, 200)))
    assert taken(pending, ADDRESS, LogPosition(0, 200)) is None
    assert taken(pending, OTHER, LogPosition(0, 200)) == "b"


def test_the_end_alone_decides_for_a_master_without_epochs() -> None:
    """The slave may have those of an earlier master."""
    assert taken(offered(("a", 0, 100)), ADDRESS, LogPosition(7, 99)) is None
    assert taken(offered(("a", 0, 100)), ADDRESS, LogPosition(7, 100)) == "a"
