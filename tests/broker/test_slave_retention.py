"""Retention of a slave: its files, whose waiting messages it cannot put again, stay until its master has done so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rucola.broker.broker import Broker
from rucola.broker.replication import table_sync
from rucola.client import Producer
from rucola.message import Message
from rucola.message.record import decode_many
from support.aging_broker import ClockAndDisk
from support.cluster import Cluster
from support.replication import figures, follows, lone_master, send
from support.waiting import until

STORE = {
    "mapped_file_size_commit_log": 4096,
    "clean_file_forcibly_enable": True,
    "clean_resource_interval": 5,
    "delete_commit_log_files_interval": 1,
    "message_delay_level": "1h",
}
HOUR_MS = 3_600_000


async def begin_of(running: Cluster, broker: Broker) -> int:
    return int((await figures(running, broker))["commitLogMinOffset"])


async def rounds(disk: ClockAndDisk) -> None:
    """Wait for a whole round of retention, from its measurement of the disk to that of the next one."""
    before = disk.probes
    await until(lambda: disk.probes > before + 4)


async def delivered(running: Cluster, broker: Broker) -> list[bytes]:
    return [message.body for message in decode_many((await running.peer(broker).pull(topic="Waiting")).body)]


@pytest.mark.parametrize("is_rolled", [False, True], ids=["the-master-has-the-file", "the-master-has-rolled-it"])
async def test_a_promoted_slave_has_what_waited_in_files_that_its_disk_had_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rolled: bool
) -> None:
    monkeypatch.setattr(table_sync, "SYNC_INTERVAL_MS", 20)
    world, slaves_disk = ClockAndDisk(), ClockAndDisk()
    async with (
        asyncio.timeout(60),
        lone_master(tmp_path, STORE, clock=world.clock, probe_disk=world.probe_disk) as (running, master),
    ):
        await running.create_topic(master, "Waiting", queues=1)
        slave = await running.start_slave(STORE, clock=world.clock, probe_disk=slaves_disk.probe_disk)
        async with Producer("p", running.namesrv) as producer:
            await producer.send(Message("Waiting", b"in an hour", properties={"DELAY": "1"}))
        await send(running, 12, 1200)
        await follows(master, slave)
        if is_rolled:
            world.percent = 88
            await until(lambda: has_deleted(running, master))
        slaves_disk.percent = 88
        await rounds(slaves_disk)
        assert await begin_of(running, slave) <= await begin_of(running, master)
        if is_rolled:
            await until(lambda: has_deleted(running, slave))
            world.percent = slaves_disk.percent = 50
            await rounds(world)
            await follows(master, slave)
        await master.stop()
        world.now_ms += 2 * HOUR_MS
        await slave.role.become_master(2, None)

        async def is_delivered() -> bool:
            return await delivered(running, slave) == [b"in an hour"]

        await until(is_delivered)


async def has_deleted(running: Cluster, broker: Broker) -> bool:
    return await begin_of(running, broker) > 0
