"""Name servers and brokers on free ports of this machine, for tests that talk to real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from rucola.broker.background.retention import DiskUsageProbe, disk_usage
from rucola.broker.broker import Broker, wall_clock_ms
from rucola.broker.config import BrokerConfig
from rucola.domain.route import RegisterBrokerBody
from rucola.domain.topic import TopicConfig, TopicConfigSerializeWrapper
from rucola.message.record import body_crc
from rucola.namesrv.server import Namesrv
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import RegisterBrokerRequestHeader, encode_registration
from rucola.protocol.topic import CreateTopicRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.remoting.connection import Processor
from rucola.remoting.server import RemotingServer
from rucola.store.config import BrokerRole, StoreConfig
from support.peer import Peer
from support.ports import HOST, free_ports
from support.proxy import Proxy

T = TypeVar("T")

PROXY_HOST = "127.0.0.2"
SMALL_FILES = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "clean_file_forcibly_enable": False,  # else messages vanish on a machine whose disk is nearly full
}


class Cluster:
    """A name server and what a test starts beside it. Everything still running ends with the cluster."""

    def __init__(self, path: Path, namesrv: Namesrv, stack: AsyncExitStack) -> None:
        self.path = path
        self.first_namesrv = namesrv
        self.namesrv = f"{HOST}:{namesrv.port}"
        self.remoting = RemotingClient()
        self.stores: set[Path] = set()
        """The directories of all brokers."""
        self._stack = stack

    async def add_namesrv(self) -> Namesrv:
        """Another name server; brokers that start later register with both."""
        namesrv = await self._stack.enter_async_context(Namesrv(HOST, 0))
        self.namesrv += f";{HOST}:{namesrv.port}"
        return namesrv

    async def start_broker(
        self,
        name: str = "broker-a",
        port: int | None = None,
        store: dict[str, Any] | None = None,
        directory: str | None = None,
        clock: Callable[[], int] = wall_clock_ms,
        probe_disk: DiskUsageProbe = disk_usage,
        **settings: Any,
    ) -> Broker:
        """A broker; under a name used before, on the same store, unless in a directory of its own. `store` are settings
        of that. Its ports stay free while it is down, since they lie below the ephemeral range."""
        port = free_ports(1, 1, 2)[0] if port is None else port  # the next one is for slaves, that behind it for gRPC
        config = BrokerConfig(
            broker_name=name,
            bind_address=HOST,
            listen_port=port,
            namesrv_addr=self.namesrv,
            # A slave whose master has an empty log follows it only from the first heartbeat on.
            **{"broker_ip1": HOST, "grpc_server_port": port + 2, "ha_send_heartbeat_interval": 200} | settings,
        )
        store_config = StoreConfig(store_path_root_dir=self.path / (directory or name), **SMALL_FILES | (store or {}))
        self.stores.add(store_config.store_path_root_dir)
        broker = Broker(config, store_config, clock=clock, probe_disk=probe_disk)
        return await self._stack.enter_async_context(broker)

    async def start_broker_behind_proxy(self, name: str = "broker-a", **settings: Any) -> tuple[Broker, Proxy]:
        """A broker that registers the address of a proxy in front of it: same port, other loopback address."""
        broker = await self.start_broker(name, broker_ip1=PROXY_HOST, **settings)
        port = broker.config.listen_port
        proxy = await self._stack.enter_async_context(Proxy(f"{HOST}:{port}", host=PROXY_HOST, port=port))
        return broker, proxy

    async def start_slave(
        self, store: dict[str, Any] | None = None, directory: str = "slave", **settings: Any
    ) -> Broker:
        """A slave of broker-a, which hears of its master from the name server."""
        role = {"broker_role": BrokerRole.SLAVE}
        return await self.start_broker(store=role | (store or {}), directory=directory, **{"broker_id": 1} | settings)

    def peer(self, broker: Broker) -> Peer:
        return Peer(broker, self.remoting)

    async def create_topic(self, broker: Broker, topic: str, queues: int = 4, perm: int = 6) -> None:
        header = CreateTopicRequestHeader(topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await self.remoting.invoke_ok(broker.address, request)

    async def scripted_broker(
        self, name: str, topic: str, processors: dict[int, Processor], queues: int = 1
    ) -> RemotingServer:
        """A peer that calls itself a broker with queues of `topic`, and answers as the test says."""
        server = RemotingServer(HOST, 0, processors)
        await server.start()
        self._stack.push_async_callback(server.stop)
        await self.register(name, topic, f"{HOST}:{server.port}", queues)
        return server

    async def register(self, name: str, topic: str, address: str, queues: int = 1) -> None:
        """Let the name servers believe that a broker with queues of `topic` is at an address."""
        table = {topic: TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)}
        wrapper = TopicConfigSerializeWrapper(topic_config_table=table)
        body = encode_registration(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
        header = RegisterBrokerRequestHeader(
            broker_name=name,
            broker_addr=address,
            cluster_name="c",
            broker_id=0,
            body_crc32=body_crc(body),
        )
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)
        for namesrv in self.namesrv.split(";"):
            await self.remoting.invoke_ok(namesrv, request)


@asynccontextmanager
async def cluster(path: Path, port: int = 0) -> AsyncIterator[Cluster]:
    """A cluster with one name server, on `port` if given, and no broker yet."""
    async with AsyncExitStack() as stack:
        namesrv = await stack.enter_async_context(Namesrv(HOST, port))
        running = Cluster(path, namesrv, stack)
        stack.push_async_callback(running.remoting.close)
        yield running


class Tally(Generic[T]):
    """What has happened so far, and a way to wait until there is enough of it."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._changed = asyncio.Event()

    def add(self, item: T) -> None:
        self.items.append(item)
        self._changed.set()

    async def reach(self, condition: int | Callable[[list[T]], bool]) -> list[T]:
        """Wait for so many items, or until the condition holds of them. TimeoutError after 20 s."""
        async with asyncio.timeout(20):
            while not (len(self.items) >= condition if isinstance(condition, int) else condition(self.items)):
                self._changed.clear()
                await self._changed.wait()
        return self.items
