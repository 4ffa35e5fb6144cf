"""A master and its slave, for tests of what goes from one to the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from rucola.broker.broker import Broker
from rucola.client import Producer, SendStatus
from rucola.message import Message
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.kv import KVTable
from rucola.store.tools.check import check
from support.cluster import Cluster, cluster
from support.stores import log_of
from support.waiting import until


async def figures(running: Cluster, broker: Broker) -> dict[str, str]:
    answer = await running.peer(broker).ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return decode_body(KVTable, answer.body).table


async def end_of(running: Cluster, broker: Broker) -> int:
    return int((await figures(running, broker))["commitLogMaxOffset"])


async def caught_up(running: Cluster, master: Broker, slave: Broker) -> None:
    async def is_so() -> bool:
        return await end_of(running, slave) == await end_of(running, master)

    await until(is_so)


@asynccontextmanager
async def sound_cluster(path: Path) -> AsyncIterator[Cluster]:
    """A cluster whose stores are checked at the end."""
    async with cluster(path) as running:
        yield running
    for store in running.stores:
        assert check(store) == []


@asynccontextmanager
async def lone_master(
    path: Path, store: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Cluster, Broker]]:
    """A master with a topic T of one queue, and no slave yet. All stores are checked at the end."""
    async with sound_cluster(path) as running:
        master = await running.start_broker(store=store, **settings)
        await running.create_topic(master, "T", queues=1)
        yield running, master


@asynccontextmanager
async def pair(
    path: Path,
    master: dict[str, Any] | None = None,
    slave: dict[str, Any] | None = None,
    messages: int = 0,
    **settings: Any,
) -> AsyncIterator[tuple[Cluster, Broker, Broker]]:
    """A master and its slave, which has its messages; the settings of their stores, and those of both brokers."""
    async with asyncio.timeout(60), cluster(path) as running:
        first = await running.start_broker(store=master, **settings)
        await running.create_topic(first, "T")
        second = await running.start_slave(slave, **settings)
        if messages:
            await send(running, messages)
            await follows(first, second)
        yield running, first, second
    same_logs(path)


def same_logs(path: Path, master_name: str = "broker-a") -> None:
    """Both stores are sound, and the slave has the master's bytes, from where it begins."""
    for name in (master_name, "slave"):
        assert check(path / name) == []
    (master_begin, end, master), (begin, slave_end, slave) = log_of(path / master_name), log_of(path / "slave")
    assert slave_end == end
    assert slave == master[begin - master_begin :]


async def send(running: Cluster, count: int, size: int = 100, **options: Any) -> list[SendStatus]:
    async with Producer("p", running.namesrv, retry_times=0) as producer:
        results = [
            await producer.send(Message("T", b"%d " % number + Random(number).randbytes(size), **options))
            for number in range(count)
        ]
    return [result.status for result in results]


async def is_stored_safely(producer: Producer) -> bool:
    return (await producer.send(Message("T", b"is the slave there?"))).is_ok


async def follows(master: Broker, slave: Broker) -> None:
    """Wait until a slave that knows epochs has everything, and its master knows it."""

    def is_so() -> bool:
        end = master.role.position()
        return list(master.role.in_sync().values()) == [end.end] and slave.role.position() == end

    await until(is_so)
