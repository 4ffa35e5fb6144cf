"""A copy of a served store, file by file in any order, delivers everything that was acknowledged before it was made."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.assembly import delivery
from rucola.broker.background.scheduler import DueTask
from rucola.broker.broker import Broker
from rucola.broker.delivery.delay import DELAY_OFFSET_FILE
from rucola.broker.delivery.timer import TIMER_FILE
from rucola.broker.tables.offsets import CONSUMER_OFFSET_FILE, TRANSACTION_GROUP
from rucola.client import LocalTransactionState, Message, MessageExt, Producer, TransactionProducer
from rucola.message.record import decode_many
from rucola.store.config_files import read_config
from rucola.store.tools.backup import BackupDirectory, backup, restore
from support.cluster import Cluster
from support.own_deliveries import HOUR_MS, LEVELS, Clock
from support.replication import lone_master
from support.waiting import until

SETTINGS: dict[str, Any] = {
    "store": LEVELS,
    "transaction_check_interval": 50,
    "transaction_check_max": 1 << 30,
    "flush_consumer_offset_interval": 50,
}
WAITING = 20
"""Delayed messages, as many timer messages and half messages."""

PAUSE_S = 0.002
"""Between two messages of the load, so that a reader keeps up with it."""

BATCH = 32

ENTRIES = ("abort", "checkpoint", "commitlog", "config", "consumequeue", "epochFileCheckpoint", "index")
ORDERS = {
    "by name": ENTRIES,
    "log first": ("commitlog", "consumequeue", "index", "epochFileCheckpoint", "checkpoint", "abort", "config"),
    "log last": ("config", "abort", "checkpoint", "epochFileCheckpoint", "index", "consumequeue", "commitlog"),
    "queues first": ("consumequeue", "index", "config", "commitlog", "checkpoint", "epochFileCheckpoint", "abort"),
    "index last": ("checkpoint", "commitlog", "config", "consumequeue", "epochFileCheckpoint", "abort", "index"),
}

Between = Callable[[], Any]
"""What happens between two steps of a copy; a coroutine function."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set forward is noticed, and progress is written at once."""
    monkeypatch.setattr(DueTask, "MAX_WAIT_MS", 20)
    monkeypatch.setattr(delivery, "PERSIST_INTERVAL_MS", 20)


def commit(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE


async def send_waiting(running: Cluster) -> set[bytes]:
    """Send what waits for an hour, or for a check; the bodies that were acknowledged."""
    bodies: set[bytes] = set()
    async with Producer("p", running.namesrv) as producer:
        for number in range(WAITING):
            for word, properties in (("delayed", {"DELAY": "1"}), ("timed", {"TIMER_DELAY_SEC": "3600"})):
                bodies.add(body := f"{word} {number}".encode())
                assert (await producer.send(Message("T", body, properties=properties))).is_ok
    async with TransactionProducer("halves", running.namesrv, check=commit) as transactions:
        for number in range(WAITING):
            bodies.add(body := f"half {number}".encode())
            await transactions.send_in_transaction(Message("T", body), lambda message: LocalTransactionState.UNKNOW)
    return bodies


@asynccontextmanager
async def load(running: Cluster, broker: Broker, acknowledged: set[bytes]) -> AsyncIterator[None]:
    """Send and consume all the time."""

    async def send() -> None:
        async with Producer("load", running.namesrv) as producer:
            number = 0
            while True:
                body = f"load {number}".encode()
                if (result := await producer.send(Message("T", body, keys=f"k{number}"))).is_ok:
                    acknowledged.add(body)
                    await running.peer(broker).commit(result.queue_offset)
                number += 1
                await asyncio.sleep(PAUSE_S)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def read_on(running: Cluster, broker: Broker, found: list[bytes]) -> None:
    """Read the queue of T from where `found` ends."""
    count = BATCH
    while count == BATCH:
        response = await running.peer(broker).pull(queue_offset=len(found), max_msg_nums=BATCH)
        messages = decode_many(response.body) if response.body else []
        found += [message.body for message in messages]
        count = len(messages)


async def deliver(running: Cluster, broker: Broker, clock: Clock, bodies: set[bytes]) -> list[bytes]:
    """Have a broker deliver what waits, until its topic has all `bodies`; what it has."""
    async with TransactionProducer("halves", running.namesrv, check=commit) as producer:
        await producer.send(Message("Other", b"connects to the broker"))
        clock.ahead_ms = 2 * HOUR_MS
        found: list[bytes] = []

        async def has_all() -> bool:
            await read_on(running, broker, found)
            return bodies <= set(found)

        await until(has_all)
        return found


async def progress_is_written(store: Path) -> None:
    """Wait until the files on disk count everything as delivered."""
    config = store / "config"

    def is_so() -> bool:
        delays, timer, offsets = map(
            read_config, (config / DELAY_OFFSET_FILE, config / TIMER_FILE, config / CONSUMER_OFFSET_FILE)
        )
        halves = [queues for key, queues in offsets["offsetTable"].items() if key.endswith(f"@{TRANSACTION_GROUP}")]
        return bool(
            delays
            and delays["offsetTable"].get(1) == WAITING
            and timer
            and timer["queueOffset"] == WAITING
            and timer["deliveredMs"] > time.time_ns() // 1_000_000
            and any(queues.get(0, 0) >= WAITING for queues in halves)
        )

    await until(is_so)


async def copied(source: Path, target: Path, order: tuple[str, ...], between: Between) -> None:
    """Copy entry by entry, as rsync does, and let the world go on in the middle."""
    await asyncio.to_thread(target.mkdir)
    for number, name in enumerate(order):
        if number == len(order) // 2:
            await between()
        if (source / name).is_dir():
            await asyncio.to_thread(
                shutil.copytree, source / name, target / name, ignore=shutil.ignore_patterns("*.tmp")
            )
        elif (source / name).exists():
            await asyncio.to_thread(shutil.copy, source / name, target / name)


async def backed_up(source: Path, target: Path, order: tuple[str, ...], between: Between) -> None:
    """Back up and restore, and let the world go on in between; then once more."""
    place = BackupDirectory(target.with_name("backup"))
    await asyncio.to_thread(backup, source, place, now_ms=0)
    await between()
    if order:
        await asyncio.to_thread(backup, source, place, now_ms=0)
    await asyncio.to_thread(restore, place, target)


CASES = [
    *(pytest.param(copied, order, id=name) for name, order in ORDERS.items()),
    pytest.param(copied, ("epochFileCheckpoint", "commitlog", "consumequeue", "config"), id="without abort"),
    pytest.param(backed_up, (), id="backup"),
    pytest.param(backed_up, ("again",), id="backup twice"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("copy", "order"), CASES)
async def test_a_hot_copy_delivers_what_was_acknowledged_before(
    tmp_path: Path, copy: Callable[..., Any], order: tuple[str, ...]
) -> None:
    clock = Clock()
    source, target = tmp_path / "broker-a", tmp_path / "copy"
    async with lone_master(tmp_path, clock=clock, **SETTINGS) as (running, broker):
        before = await send_waiting(running)
        sent: set[bytes] = set()
        async with load(running, broker, sent):
            await until(lambda: len(sent) > 100)
            before |= sent

            async def go_on() -> None:
                await deliver(running, broker, clock, before)
                await progress_is_written(source)

            await copy(source, target, order, go_on)
        await broker.stop()
        clock.ahead_ms = 0
        broker = await running.start_broker(directory="copy", clock=clock, **SETTINGS)
        found = await deliver(running, broker, clock, before)
        assert len(found) == len(set(found)), "the index has what was delivered"
        await broker.stop()
