"""Old files and full disks at a whole broker: what clients see, with a clock and a disk that the test turns."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.test_broker import SMALL_FILES, Peer
from rucola.broker.background.retention import disk_usage
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.message.record import decode_many
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.offset import QueueRequestHeader
from rucola.protocol.pull import PullMessageResponseHeader
from rucola.protocol.topic import CreateTopicRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.retention import DiskUsage
from rucola.store.tools.check import check
from support.stores import HOST, inner

HOUR_MS = 3_600_000
NOON_MS = int(time.mktime((2026, 1, 10, 12, 0, 0, 0, 0, -1))) * 1000


class World:
    """The time, and how full the disk is."""

    def __init__(self) -> None:
        self.now_ms = NOON_MS
        self.percent = 50

    def clock(self) -> int:
        return self.now_ms

    def probe_disk(self, path: Path) -> DiskUsage:
        return DiskUsage(path, self.percent << 30, 100 << 30)


def store_config(path: Path) -> StoreConfig:
    settings: dict[str, Any] = SMALL_FILES | {"mapped_file_size_commit_log": 4096}
    return StoreConfig(path, HOST, clean_resource_interval=5, delete_commit_log_files_interval=1, **settings)


@asynccontextmanager
async def serving(path: Path, world: World, **settings: Any) -> AsyncIterator[Peer]:
    config = BrokerConfig(**{"bind_address": "127.0.0.1", "listen_port": 0, "broker_name": "broker-a"} | settings)
    async with Broker(config, store_config(path), clock=world.clock, probe_disk=world.probe_disk) as broker:
        client = RemotingClient()
        try:
            yield Peer(broker, client)
        finally:
            await client.close()


def with_broker(path: Path, talk: Callable[[Peer, World], Awaitable[None]], **settings: Any) -> None:
    """Run a conversation with a broker on the directory `path`; afterwards its store is sound."""
    world = World()

    async def run() -> None:
        async with serving(path, world, **settings) as peer:
            await talk(peer, world)

    asyncio.run(run())
    assert check(path) == []


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so. Each time the broker gets to work in between."""
    async with asyncio.timeout(20):
        while not await holds():
            pass


async def send_days(peer: Peer, world: World, count: int) -> None:
    """Three messages a day, which fill a file of the log."""
    for day in range(count):
        world.now_ms = NOON_MS + 24 * HOUR_MS * day
        for _ in range(3):
            assert (await peer.send(bytes(1200))).code == ResponseCode.SUCCESS


async def min_offset(peer: Peer) -> int:
    answer = await peer.ask(RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic="T", queue_id=0))
    return int(answer.ext_fields["offset"])


def log_files(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("commitlog/*"))


def queues(path: Path) -> list[str]:
    return sorted(str(queue.relative_to(path / "consumequeue")) for queue in path.glob("consumequeue/*/*"))


def test_a_full_disk_refuses_messages_and_recovers_by_itself(tmp_path: Path) -> None:
    async def talk(peer: Peer, world: World) -> None:
        assert (await peer.send()).code == ResponseCode.SUCCESS
        world.percent = 91

        async def refused() -> bool:
            return (await peer.send()).code != ResponseCode.SUCCESS

        await until(refused)
        answer = await peer.send()
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"the disk of {tmp_path}" in str(answer.remark)
        assert "is 91 % full: 91.00 of 100.00 GiB. Messages are refused above 90 %" in str(answer.remark)
        begin = await min_offset(peer)  # a disk this full lets go of old files, as many as were filled until now
        assert decode_many((await peer.pull(queue_offset=begin)).body)[0].queue_offset == begin
        world.percent = 90

        async def taken() -> bool:
            return not await refused()

        await until(taken)

    with_broker(tmp_path, talk)


def test_a_broker_that_starts_on_a_full_disk_takes_nothing(tmp_path: Path) -> None:
    world = World()
    world.percent = 95

    async def run() -> None:
        async with serving(tmp_path, world) as peer:
            assert (await peer.send()).code == ResponseCode.SERVICE_NOT_AVAILABLE

    asyncio.run(run())
    assert log_files(tmp_path) == []


def test_old_files_go_at_four_and_pulls_are_sent_on(tmp_path: Path) -> None:
    async def talk(peer: Peer, world: World) -> None:
        await send_days(peer, world, 6)
        assert len(log_files(tmp_path)) >= 6
        assert await min_offset(peer) == 0
        world.now_ms = NOON_MS + (24 * 5 + 16) * HOUR_MS  # four in the morning after the last day

        async def moved() -> bool:
            return await min_offset(peer) == 6  # of the days 0 and 1, which ended 72 hours ago and more

        await until(moved)
        answer = await peer.pull(queue_offset=2)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        header = answer.decode_header(PullMessageResponseHeader)
        assert (header.next_begin_offset, header.min_offset, header.max_offset) == (6, 6, 18)
        assert (await peer.pull(queue_offset=6)).code == ResponseCode.SUCCESS

        async def removed() -> bool:
            await min_offset(peer)
            return log_files(tmp_path)[0] == f"{2 * 4096:020d}"

        await until(removed)

    with_broker(tmp_path, talk)


@pytest.mark.parametrize("code", [RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.TRIGGER_DELETE_FILES])
def test_old_files_go_by_hand(tmp_path: Path, code: RequestCode) -> None:
    async def talk(peer: Peer, world: World) -> None:
        await send_days(peer, world, 6)
        world.now_ms = NOON_MS + 24 * 5 * HOUR_MS
        assert (await peer.ask(code)).code == ResponseCode.SUCCESS

        async def moved() -> bool:
            return await min_offset(peer) == 6

        await until(moved)

    with_broker(tmp_path, talk)


def test_the_settings_can_be_changed_while_it_runs(tmp_path: Path) -> None:
    async def talk(peer: Peer, world: World) -> None:
        await send_days(peer, world, 6)
        changed = await peer.ask(
            RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=24\ndiskMaxUsedSpaceRatio=40\n"
        )
        assert changed.code == ResponseCode.SUCCESS

        async def moved() -> bool:
            return await min_offset(peer) == 12

        await until(moved)

    with_broker(tmp_path, talk)


def test_empty_queues_of_topics_that_are_gone_are_removed(tmp_path: Path) -> None:
    with MessageStore(store_config(tmp_path)) as store:
        for age_hours, topic, queue_id in (
            *((999, "Gone", 0), (999, "T", 0), (999, "T", 0)),
            *((99, "Gone", 1), (99, "Gone", 1), (99, "Gone", 1)),
            *((1, "Lives", 0),),
        ):
            store.put(inner(topic=topic, queue_id=queue_id, body=bytes(1200)), NOON_MS - age_hours * HOUR_MS)
    assert len(log_files(tmp_path)) == 3

    async def talk(peer: Peer, world: World) -> None:
        created = CreateTopicRequestHeader(topic="T", read_queue_nums=4, write_queue_nums=4, perm=6)
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, created)).code == ResponseCode.SUCCESS
        await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)

        async def moved() -> bool:
            return await min_offset(peer) == 2

        await until(moved)
        assert (await peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
        assert queues(tmp_path) == ["Gone/1", "Lives/0", "T/0"]
        assert (await peer.send()).ext_fields["queueOffset"] == "2"  # a group that read to the end misses nothing

    with_broker(tmp_path, talk)


def test_a_broker_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))

    async def talk(peer: Peer, world: World) -> None:
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])

    try:
        with_broker(tmp_path, talk)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_disk_is_asked_as_df_asks_it(tmp_path: Path) -> None:
    usage = disk_usage(tmp_path)
    assert usage.path == tmp_path
    assert 0 < usage.used < usage.total
    assert 0 < usage.percent <= 100
