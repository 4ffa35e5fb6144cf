"""Each periodic task of a broker on its own, by its effects while the broker serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from mmap import mmap
from pathlib import Path

import pytest

from rucola.broker.background.scheduler import Scheduler
from rucola.protocol.codes import RequestCode
from rucola.protocol.heartbeat import GetConsumerListByGroupRequestHeader
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.store import mapped_file
from rucola.store.checkpoint import Checkpoint
from rucola.store.config_files import config_path, read_config
from support.broker_peer import broker_peer, heartbeat
from support.cluster import cluster
from support.waiting import until

Only = Callable[[str], None]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Only:
    """Run one periodic task of the next broker every 5 ms, and no other."""
    every = Scheduler.every

    def choose(name: str) -> None:
        def often(
            scheduler: Scheduler, interval_ms: int, its_name: str, step: Callable[[], Awaitable[object] | None]
        ) -> None:
            every(scheduler, 5 if its_name == name else 3_600_000, its_name, step)

        monkeypatch.setattr(Scheduler, "every", often)

    return choose


async def test_messages_are_flushed_at_the_configured_interval(
    tmp_path: Path, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("flush")
    synced: list[int] = []
    sync_pages = mapped_file.sync_pages

    def note(mapped: mmap, begin: int, end: int) -> None:
        sync_pages(mapped, begin, end)
        synced.append(end)

    monkeypatch.setattr(mapped_file, "sync_pages", note)

    async with broker_peer(tmp_path) as peer:
        await peer.send(bytes(9000))
        await until(lambda: max(synced, default=0) > 9000)


async def test_the_checkpoint_advances_at_the_configured_interval(tmp_path: Path, only: Only) -> None:
    only("checkpoint")

    async with broker_peer(tmp_path) as peer:
        await peer.send()
        await until(lambda: Checkpoint(tmp_path / "checkpoint").logics_timestamp > 0)
        assert Checkpoint(tmp_path / "checkpoint").physic_timestamp > 0


async def test_the_next_log_file_is_created_ahead(tmp_path: Path, only: Only) -> None:
    only("touch pages")

    async with broker_peer(tmp_path, store={"mapped_file_size_commit_log": 1 << 16}) as peer:
        await peer.send(bytes(56_000))
        await until(lambda: len([*(tmp_path / "commitlog").iterdir()]) == 2)


async def test_consumer_offsets_are_persisted_at_the_configured_interval(tmp_path: Path, only: Only) -> None:
    only("persist consumer offsets")

    async with broker_peer(tmp_path) as peer:
        await peer.send()
        await peer.commit(1)
        path = config_path(tmp_path, "consumerOffset")
        await until(lambda: (read_config(path) or {"offsetTable": {}})["offsetTable"].get("T@g") == {0: 1})


async def test_delivery_offsets_are_persisted_at_the_configured_interval(tmp_path: Path, only: Only) -> None:
    only("persist delivery offsets")

    async with broker_peer(tmp_path, store={"message_delay_level": "0s"}) as peer:
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c"))
        await peer.send()
        back = ConsumerSendMsgBackRequestHeader(offset=0, group="g", delay_level=1)
        await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        path = config_path(tmp_path, "delayOffset")
        await until(lambda: (read_config(path) or {}).get("offsetTable") == {1: 1})


async def test_silent_members_expire(tmp_path: Path, only: Only) -> None:
    only("expire clients")
    now_ms = 1_000_000

    async with broker_peer(tmp_path, clock=lambda: now_ms) as peer:
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c"))
        members = GetConsumerListByGroupRequestHeader(consumer_group="g")
        assert b'"c"' in (await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, members)).body
        now_ms += 121_000
        connection = await peer.client.connect(peer.broker.address)
        await until(lambda: not connection.is_open)
        assert b'"c"' not in (await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, members)).body


async def test_the_broker_registers_again_with_a_restarted_name_server(tmp_path: Path, only: Only) -> None:
    only("register")

    async with cluster(tmp_path) as running:
        broker = await running.start_broker()
        routes = running.first_namesrv.routes
        routes.unregister(broker.address)
        assert routes.clusters().broker_addr_table == {}
        await until(lambda: "broker-a" in routes.clusters().broker_addr_table)
