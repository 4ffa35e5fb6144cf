"""The layouts in deploy/layouts, started as they are but for addresses, and the name servers that they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from rucola import settings
from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.broker.config import from_properties
from rucola.client import Producer, SendStatus
from rucola.domain.topic import TopicConfig
from rucola.message import Message
from rucola.namesrv.server import Namesrv
from rucola.store.config import BrokerRole
from rucola.store.directory_reader import StoreReader
from rucola.store.tools.check import check
from support.installation import REPOSITORY
from support.ports import HOST, free_port
from support.waiting import until

LAYOUTS = REPOSITORY / "deploy" / "layouts"
HERE = {
    "bindAddress": HOST, "brokerIP1": HOST, "listenPort": "0", "haListenPort": "0", "registerNameServerPeriod": "100",
    "mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000", "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}  # fmt: skip
"""What differs from a machine with default ports and an own directory, and small files."""


class Layout:
    """The running brokers of one layout by the names of their files, and two name servers."""

    def __init__(self, name: str, path: Path, stack: AsyncExitStack) -> None:
        self.files = sorted((LAYOUTS / name).glob("*.conf"))
        self.brokers: dict[str, Broker] = {}
        self.namesrvs: list[Namesrv] = []
        self._path = path
        self._stack = stack

    @property
    def namesrv(self) -> str:
        return ";".join(f"{HOST}:{namesrv.port}" for namesrv in self.namesrvs)

    async def start(self) -> None:
        for _ in range(2):
            self.namesrvs.append(await self._stack.enter_async_context(Namesrv(HOST, free_port())))
        for file in self.files:  # in any order: a slave waits for its master
            given = settings.read(file)
            assert given["namesrvAddr"].count(":9876") == 2
            given |= HERE | {"namesrvAddr": self.namesrv, "storePathRootDir": str(self._path / file.stem)}
            config, store_config, unused = from_properties(given)
            assert unused == []
            self.brokers[file.stem] = await self._stack.enter_async_context(Broker(config, store_config))
        async with AdminClient(self.namesrv) as admin:
            for broker in self.brokers.values():
                if broker.store_config.broker_role is not BrokerRole.SLAVE:
                    await admin.topics.create_or_update(broker.address, TopicConfig(topic_name="Orders"))


@asynccontextmanager
async def running(name: str, path: Path) -> AsyncIterator[Layout]:
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        layout = Layout(name, path, stack)
        await layout.start()
        yield layout
    for file in layout.files:
        assert check(path / file.stem) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "masters", "slaves"), [("2m-2s-sync", 2, 2), ("2m-2s-async", 2, 2), ("2m-noslave", 2, 0)]
)
async def test_a_layout_stores_on_both_masters_and_replicates_to_their_slaves(
    tmp_path: Path, name: str, masters: int, slaves: int
) -> None:
    async with running(name, tmp_path) as layout, Producer("p", layout.namesrv, retry_times=0) as producer:
        roles = [broker.store_config.broker_role is BrokerRole.SLAVE for broker in layout.brokers.values()]
        assert (roles.count(False), roles.count(True)) == (masters, slaves)

        async def all_accept() -> bool:
            await producer.instance.routes.refresh("Orders")
            queues = await producer.queues("Orders")
            results = [await producer.send(Message("Orders", b"x"), queue) for queue in queues]
            names = {queue.broker_name for queue in queues}
            return len(names) == masters and {result.status for result in results} == {SendStatus.SEND_OK}

        await until(all_accept)

        def is_replicated() -> bool:
            return all(
                broker.config.broker_id == 0 or end_of(tmp_path / stem) == end_of(tmp_path / stem.removesuffix("-s"))
                for stem, broker in layout.brokers.items()
            )

        await until(is_replicated)


def end_of(directory: Path) -> int:
    with StoreReader(directory) as reader:
        return reader.max_physical_offset


async def test_one_of_two_name_servers_may_die_and_restart_empty(tmp_path: Path) -> None:
    """Clients and brokers use the other; the one that is back knows everything after the next registration."""
    async with running("2m-noslave", tmp_path) as layout:
        first, second = layout.namesrvs
        async with Producer("p", layout.namesrv, retry_times=0) as producer:
            await producer.send(Message("Orders", b"before"))
            port = first.port
            await first.stop()
            await producer.instance.routes.refresh("Orders")
            assert (await producer.send(Message("Orders", b"without one"))).status is SendStatus.SEND_OK
            async with Producer("new", layout.namesrv, retry_times=0) as new:
                assert (await new.send(Message("Orders", b"found by the other"))).status is SendStatus.SEND_OK
            async with Namesrv(HOST, port) as again:
                assert again.routes.topics() == []
                await until(lambda: "Orders" in again.routes.topics())
                await second.stop()
                await producer.instance.routes.refresh("Orders")
                assert (await producer.send(Message("Orders", b"by the restarted one"))).status is SendStatus.SEND_OK


async def test_without_any_name_server_known_topics_go_on(tmp_path: Path) -> None:
    async with running("2m-noslave", tmp_path) as layout, Producer("p", layout.namesrv, retry_times=0) as producer:
        await producer.send(Message("Orders", b"before"))
        for namesrv in layout.namesrvs:
            await namesrv.stop()
        assert (await producer.send(Message("Orders", b"by the cached route"))).status is SendStatus.SEND_OK
