"""Old files and full disks at a whole broker: what clients see, with a clock and a disk that the test turns."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from rucola.broker.background.retention import disk_usage
from rucola.message.record import decode_many
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.kv import KVTable
from rucola.protocol.offset import QueueRequestHeader
from rucola.protocol.pull import PullMessageResponseHeader
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.store.config import StoreConfig
from rucola.store.config_files import config_path, write_config
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from rucola.store.tools.check import check
from support.aging_broker import AGING, NOON_MS, ClockAndDisk, aging_broker
from support.broker_peer import broker_peer
from support.metrics import scrape
from support.peer import Peer
from support.stores import HOST, inner
from support.waiting import until

HOUR_MS = 3_600_000


async def send_days(peer: Peer, world: ClockAndDisk, count: int) -> None:
    """Three messages a day, which fill a file of the log."""
    for day in range(count):
        world.now_ms = NOON_MS + 24 * HOUR_MS * day
        for _ in range(3):
            assert (await peer.send(bytes(1200))).code == ResponseCode.SUCCESS


async def min_offset(peer: Peer) -> int:
    answer = await peer.ask(RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic="T", queue_id=0))
    return int(answer.ext_fields["offset"])


async def begins_at(peer: Peer, queue_offset: int) -> bool:
    return await min_offset(peer) == queue_offset


async def is_taken(peer: Peer) -> bool:
    return (await peer.send()).code == ResponseCode.SUCCESS


async def is_refused(peer: Peer) -> bool:
    return not await is_taken(peer)


def log_files(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("commitlog/*"))


def queues(path: Path) -> list[str]:
    return sorted(str(queue.relative_to(path / "consumequeue")) for queue in path.glob("consumequeue/*/*"))


async def test_a_full_disk_refuses_messages_and_recovers_by_itself(tmp_path: Path) -> None:
    async with aging_broker(tmp_path) as (peer, world):
        assert (await peer.send()).code == ResponseCode.SUCCESS
        world.percent = 91
        await until(lambda: is_refused(peer))
        answer = await peer.send()
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"the disk of {tmp_path}" in str(answer.remark)
        assert "is 91 % full: 91.00 of 100.00 GiB. Messages are refused above 90 %" in str(answer.remark)
        begin = await min_offset(peer)  # a disk this full lets go of old files, as many as were filled until now
        assert decode_many((await peer.pull(queue_offset=begin)).body)[0].queue_offset == begin
        world.percent = 90
        await until(lambda: is_taken(peer))


async def test_the_figures_of_a_disk_are_those_that_messages_are_refused_by(tmp_path: Path) -> None:
    """Of the log's disk, which may be another one than that of the queues."""
    world = ClockAndDisk()

    def probe(path: Path) -> DiskUsage:
        return DiskUsage(path, 30 << 30, 100 << 30) if path == tmp_path / "queues" else world.probe_disk(path)

    metrics = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": 0}
    store = AGING | {"store_path_commit_log": tmp_path / "log"}
    async with broker_peer(tmp_path / "queues", store, world.clock, probe, check_store=False, **metrics) as peer:
        assert (await peer.send()).code == ResponseCode.SUCCESS
        world.percent = 91
        await until(lambda: is_refused(peer))
        figures = decode_body(KVTable, (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        samples = await scrape(peer.broker)
    assert (figures["commitLogDiskRatio"], figures["consumeQueueDiskRatio"]) == ("0.91", "0.30")
    assert figures["commitLogDirCapacity"] == "Total : 100.0 GiB, Free : 9.0 GiB."
    names = ("commitlog_disk_ratio", "consumequeue_disk_ratio", "commitlogdir_capacity_free")
    values = [samples[f"rocketmq_brokeruntime_{name}"][0][1] for name in names]
    assert values == [0.91, 0.3, 9 << 30]
    (tmp_path / "log").rename(tmp_path / "queues" / "commitlog")  # where tools look for it
    assert check(tmp_path / "queues") == []


async def test_a_broker_that_starts_on_a_full_disk_refuses_messages(tmp_path: Path) -> None:
    world = ClockAndDisk()
    world.percent = 95

    async with aging_broker(tmp_path, world) as (peer, _):
        assert (await peer.send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert log_files(tmp_path) == []


async def test_old_files_are_deleted_at_four_and_pulls_corrected(tmp_path: Path) -> None:
    async with aging_broker(tmp_path) as (peer, world):
        await send_days(peer, world, 6)
        assert len(log_files(tmp_path)) >= 6
        assert await min_offset(peer) == 0
        world.now_ms = NOON_MS + (24 * 5 + 16) * HOUR_MS  # four in the morning after the last day

        await until(lambda: begins_at(peer, 6))  # of the days 0 and 1, which ended 72 hours ago and more
        answer = await peer.pull(queue_offset=2)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        header = answer.decode_header(PullMessageResponseHeader)
        assert (header.next_begin_offset, header.min_offset, header.max_offset) == (6, 6, 18)
        assert (await peer.pull(queue_offset=6)).code == ResponseCode.SUCCESS

        async def removed() -> bool:
            await min_offset(peer)
            return log_files(tmp_path)[0] == f"{2 * 4096:020d}"

        await until(removed)


@pytest.mark.parametrize("code", [RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.TRIGGER_DELETE_FILES])
async def test_old_files_are_deleted_on_command(tmp_path: Path, code: RequestCode) -> None:
    async with aging_broker(tmp_path) as (peer, world):
        await send_days(peer, world, 6)
        world.now_ms = NOON_MS + 24 * 5 * HOUR_MS
        assert (await peer.ask(code)).code == ResponseCode.SUCCESS

        await until(lambda: begins_at(peer, 6))


async def test_retention_settings_change_while_the_broker_runs(tmp_path: Path) -> None:
    async with aging_broker(tmp_path) as (peer, world):
        await send_days(peer, world, 6)
        changed = await peer.ask(
            RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=24\ndiskMaxUsedSpaceRatio=40\n"
        )
        assert changed.code == ResponseCode.SUCCESS

        await until(lambda: begins_at(peer, 12))


async def test_empty_queues_of_deleted_topics_are_removed(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, HOST, **AGING)) as store:
        for age_hours, topic, queue_id in (
            *((999, "Gone", 0), (999, "T", 0), (999, "T", 0)),
            *((99, "Gone", 1), (99, "Gone", 1), (99, "Gone", 1)),
            *((1, "Lives", 0),),
        ):
            store.put(inner(topic=topic, queue_id=queue_id, body=bytes(1200)), NOON_MS - age_hours * HOUR_MS)
    assert len(log_files(tmp_path)) == 3

    write_config(config_path(tmp_path, "consumerOffset"), {"offsetTable": {"Gone@G": {"0": 1, "1": 1}}})
    async with aging_broker(tmp_path) as (peer, _):
        assert (await peer.alter_topic(queues=4)).code == ResponseCode.SUCCESS
        await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)

        await until(lambda: begins_at(peer, 2))
        await until(lambda: queues(tmp_path) == ["Gone/1", "Lives/0", "T/0"])
        # A queue of this name begins at 0 again.
        assert [await peer.committed("G", "Gone", queue_id) for queue_id in (0, 1)] == [0, 1]
        assert (await peer.send()).ext_fields["queueOffset"] == "2"  # a group that read to the end misses nothing


async def test_a_broker_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))

    try:
        async with aging_broker(tmp_path) as (_, _):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_disk_usage_equals_that_of_df(tmp_path: Path) -> None:
    usage = disk_usage(tmp_path)
    assert usage.path == tmp_path
    assert 0 < usage.used < usage.total
    assert 0 < usage.percent <= 100
