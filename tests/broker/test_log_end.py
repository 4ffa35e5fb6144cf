"""Progress that is newer than its log, as in a copy of a store that was served meanwhile, begins again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rucola import slices
from rucola.broker.background.scheduler import DueTask
from rucola.broker.broker import Broker
from rucola.broker.delivery.delay import delay_offset_file
from rucola.broker.delivery.timer import TimerCheckpoint, TimerMessageService, timer_file
from rucola.broker.log_end import log_end_of
from rucola.broker.tables.offsets import TRANSACTION_GROUP, ConsumerOffsetTable
from rucola.client import LocalTransactionState, Message, MessageExt, TransactionProducer
from rucola.message.topics import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rucola.store.config_files import read_config
from rucola.store.tools.check import check
from support import stores
from support.cluster import Cluster
from support.delayed_store import T0, delayed_store
from support.own_deliveries import HOUR_MS, LEVELS, Clock, has_messages, send_waiting
from support.replication import lone_master

SETTINGS: dict[str, Any] = {"store": LEVELS, "transaction_check_interval": 50, "transaction_check_max": 1 << 30}
WAITING = (b"delayed", b"half", b"timer")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set forward is noticed."""
    monkeypatch.setattr(DueTask, "MAX_WAIT_MS", 20)


def commit(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE


async def send_all(running: Cluster) -> None:
    """Send a delayed message, a timer message and half of a transaction, which wait."""
    await send_waiting(running, b"delayed", DELAY="1")
    await send_waiting(running, b"timer", TIMER_DELAY_SEC="3600")
    async with TransactionProducer("p", running.namesrv, check=commit) as producer:
        await producer.send_in_transaction(Message("T", b"half"), lambda message: LocalTransactionState.UNKNOW)


async def deliver_all(running: Cluster, broker: Broker, clock: Clock) -> None:
    """Have a broker deliver what waits in its store."""
    async with TransactionProducer("p", running.namesrv, check=commit) as producer:
        await producer.send(Message("Other", b"connects to the broker"))
        clock.ahead_ms = 2 * HOUR_MS
        await has_messages(running, broker, *WAITING)


@pytest.mark.parametrize(
    "newer",
    [["config"], ["config", "index", "consumequeue", "checkpoint", "epochFileCheckpoint"]],
    ids=["config", "all but the log"],
)
async def test_a_copy_whose_log_is_older_than_its_progress_delivers_what_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, newer: list[str]
) -> None:
    clock = Clock()
    source, copy = tmp_path / "broker-a", tmp_path / "copy"
    async with lone_master(tmp_path, clock=clock, **SETTINGS) as (running, broker):
        await send_all(running)
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.tmp"))
        await deliver_all(running, broker, clock)
        await broker.stop()
        for path in (source / name for name in newer if (source / name).exists()):
            if path.is_dir():
                shutil.copytree(path, copy / path.name, dirs_exist_ok=True)
            else:
                shutil.copy(path, copy)
        clock.ahead_ms = 0
        broker = await running.start_broker(directory="copy", clock=clock, **SETTINGS)
        for name in ("delayOffset.json", "timer.json", "consumerOffset.json"):
            assert f"{copy / 'config' / name} needs the log up to" in caplog.text
        await deliver_all(running, broker, clock)
        await broker.stop()
        broker = await running.start_broker(directory="copy", clock=clock, **SETTINGS)
        await has_messages(running, broker, *WAITING)
    assert check(source) == check(copy) == []


@pytest.mark.parametrize("extra", [0, 1])
def test_progress_ahead_of_the_log_is_set_back_on_disk(tmp_path: Path, extra: int) -> None:
    """A broker that crashes after that, or is a slave, must not believe the old files once the log is long enough."""
    config = tmp_path / "store" / "config"
    with delayed_store(tmp_path / "store") as here:
        here.send(T0, 1, b"body", UNIQ_KEY="U")
        here.delayed.deliver(T0 + 1000)
        needed = here.store.max_physical_offset + extra
        delays = here.delayed.progress()
    checkpoint = TimerCheckpoint(T0, 0, 0)
    delay_offset_file(config).write(delays, needed)
    timer_file(config).write(checkpoint, needed)
    offsets = ConsumerOffsetTable(config / "consumerOffset.json")
    offsets.commit("g", "T", 0, 1)
    offsets.commit_transactions({TRANS_HALF_TOPIC: 1, TRANS_OP_HALF_TOPIC: 0}, needed)
    slices.run(offsets.snapshot_steps())()
    with delayed_store(tmp_path / "store") as here:
        again = ConsumerOffsetTable(config / "consumerOffset.json")
        again.load(None, here.store.max_physical_offset)
        assert again.get("g", "T", 0) == 1
        assert again.has_group(TRANSACTION_GROUP) == (extra == 0)
        assert here.delayed.progress() == (delays if not extra else {})
        here.delayed.deliver(T0 + 1000)
        assert here.bodies() == [b"body"], "the index has it"
        timed = TimerMessageService(here.store, here.puts, stores.topic_table(here.store), config)
        timed.load()
    delayed, timer, consumers = (
        read_config(config / name) for name in ("delayOffset.json", "timer.json", "consumerOffset.json")
    )
    assert (delayed["offsetTable"] == delays) == (extra == 0)
    assert timer["deliveredMs"] == (0 if extra else T0)
    assert (f"{TRANS_HALF_TOPIC}@{TRANSACTION_GROUP}" in consumers["offsetTable"]) == (extra == 0)
    assert [log_end_of(document) for document in (delayed, timer, consumers)] == [0 if extra else needed] * 3


def test_progress_of_apaches_broker_is_ahead_if_it_exceeds_its_queue(tmp_path: Path) -> None:
    with delayed_store(tmp_path) as here:
        for body in (b"1", b"2"):
            here.send(T0, 1, body)
        delay_offset_file(here.offsets_file.parent).write({1: 3}, 0)
        here.delayed.load()
        here.delayed.deliver(T0 + 1000)
        assert here.bodies() == [b"1", b"2"]
        delay_offset_file(here.offsets_file.parent).write({1: 2}, 0)
        here.delayed.load()
        here.delayed.deliver(T0 + 1000)
        assert here.bodies() == [b"1", b"2"]


@pytest.mark.parametrize("is_copy", [True, False])
def test_progress_of_apaches_broker_is_ahead_if_nothing_was_due(tmp_path: Path, is_copy: bool) -> None:
    """It names no end of the log, but the log of a copy ends before the messages were due."""
    with delayed_store(tmp_path) as here:
        here.send(T0, 1, b"delayed")
        if not is_copy:
            here.delayed.deliver(T0 + 1000)
        delay_offset_file(here.offsets_file.parent).write({1: 1}, 0)
        here.delayed.load()
        here.delayed.deliver(T0 + 1000)
        assert here.bodies() == [b"delayed"]
