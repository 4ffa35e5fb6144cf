"""Assembly: a start that fails in any part releases everything that earlier parts took; a stop ends all tasks."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.errors import MQError, RemotingError, StoreCorrupt, StoreLocked
from rucola.message.host import encode_host
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from support.cancelling import CancelledAt
from support.ports import HOST, free_port, free_ports
from support.waiting import until


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which another process listens."""
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        listening.listen()
        yield listening.getsockname()[1]


def broker(path: Path, **settings: Any) -> Broker:
    ports = {"listen_port": 0, "ha_listen_port": 0, "metrics_prom_exporter_port": 0}
    config = BrokerConfig(bind_address=HOST, **{**ports, **settings})
    return Broker(config, StoreConfig(path, mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000))


def threads_of(path: Path) -> list[str]:
    """Return the names of the threads that serve a store. Other brokers of this process have threads, too."""
    return [thread.name for thread in threading.enumerate() if str(path) in thread.name]


def open_files(path: Path) -> list[str]:
    """Return the files below a directory that this process has open."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.startswith(str(path))]


async def assert_start_fails_and_releases(path: Path, failing: Broker, error: type[MQError]) -> None:
    """Assert that a start raises `error`, ends its tasks and threads, and unlocks the store."""
    with pytest.raises(error):
        await failing.start()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert threads_of(path) == []
    with socket.create_server((HOST, failing.config.listen_port)):
        pass


@pytest.mark.parametrize("part", ["listen_port", "ha_listen_port", "metrics_prom_exporter_port"])
async def test_a_start_that_finds_a_port_taken_releases_the_other_parts(
    tmp_path: Path, taken_port: int, part: str
) -> None:
    failing = broker(tmp_path, **{part: taken_port}, metrics_exporter_type=MetricsExporterType.PROM)
    with pytest.raises(RemotingError):
        await failing.start()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    async with broker(tmp_path):
        pass
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    "table", ["topics", "subscriptionGroup", "consumerOffset", "consumerFilter", "delayOffset", "timer"]
)
async def test_a_start_that_finds_a_damaged_table_releases_the_other_parts(tmp_path: Path, table: str) -> None:
    file = tmp_path / "config" / f"{table}.json"
    file.parent.mkdir()
    file.write_text("{damaged")
    await assert_start_fails_and_releases(tmp_path, broker(tmp_path, listen_port=free_port()), StoreCorrupt)
    file.unlink()
    async with broker(tmp_path):
        pass
    assert check(tmp_path) == []


async def test_a_start_that_finds_the_store_locked_leaves_the_running_broker_alone(tmp_path: Path) -> None:
    async with broker(tmp_path) as running:
        with pytest.raises(StoreLocked):
            await broker(tmp_path).start()
        client = RemotingClient()
        request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert (await client.invoke(running.address, request, 30_000)).code == ResponseCode.SUCCESS
        await client.close()


async def test_an_opened_broker_has_no_port_and_records_the_one_it_binds(tmp_path: Path) -> None:
    opened = broker(tmp_path)
    await opened.open()
    assert (opened.config.listen_port, opened.store_config.store_host) == (0, b"")
    await opened.stop()
    await opened.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await opened.open()
    await opened.start()
    assert opened.store_config.store_host == encode_host(opened.address)
    await opened.stop()
    assert check(tmp_path) == []


async def test_a_start_that_is_cancelled_anywhere_releases_all_parts_and_closes_the_store(tmp_path: Path) -> None:
    """A service manager may stop a broker while it starts; its store must not look like one after a crash."""
    for number in count():
        cancelled = broker(tmp_path / str(number))
        with suppress(asyncio.CancelledError):
            await CancelledAt(cancelled.start(), number)
            break
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert threads_of(tmp_path) == []
        assert open_files(tmp_path) == []
        if (tmp_path / str(number) / "commitlog").exists():
            assert check(tmp_path / str(number)) == []
    assert number > 5
    await cancelled.stop()
    assert check(tmp_path / str(number)) == []


@pytest.mark.slow
async def test_a_stop_ends_all_tasks_and_threads_and_the_broker_can_start_again(tmp_path: Path) -> None:
    port = free_ports(1, 1)[0]
    stopped = broker(tmp_path, listen_port=port, ha_listen_port=port + 1)
    for _ in range(2):
        await stopped.start()
        await until(lambda: len(threads_of(tmp_path)) == 2)
        await stopped.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert threads_of(tmp_path) == []
    assert check(tmp_path) == []
