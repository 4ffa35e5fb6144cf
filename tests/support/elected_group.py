"""A broker group whose master is elected: name server, etcd and brokers as processes."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from rucola.client import PullConsumer
from rucola.coordination.etcd import EtcdAccess, EtcdClient
from rucola.coordination.group_keys import GroupKeys, View
from rucola.errors import MQError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.topic import CreateTopicRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.store.tools.check import check
from support.etcd import EtcdServer
from support.ports import HOST, free_port, free_ports
from support.processes import Machines
from support.send_ledger import TOPIC
from support.servers import RUCOLA, Server
from support.stores import log_of
from support.waiting import DEADLINE_S, until


class ElectedGroup:
    """The brokers 1 to `count` of broker-a, which can be killed, stopped, paused and started again.

    A broker reaches etcd at its address in `endpoints`, that of a proxy, or directly. `environments` are variables of
    the processes of brokers, `namesrv_environment` those of the name server, whose address is `host`. Without
    `is_started`, `settings_of` and `programs` can be filled before `start` is called for each.
    """

    def __init__(
        self,
        path: Path,
        stack: ExitStack,
        etcd: EtcdServer,
        count: int = 2,
        *,
        endpoints: Mapping[int, str] | None = None,
        environments: Mapping[int, Mapping[str, str]] | None = None,
        namesrv_environment: Mapping[str, str] | None = None,
        host: str = HOST,
        is_started: bool = True,
        **settings: str,
    ) -> None:
        self.machines = Machines(path, stack, host, namesrv_program=_with(namesrv_environment or {}, RUCOLA))
        self.etcd = etcd
        self._endpoints = endpoints or {}
        self._environments = environments or {}
        self._settings = settings
        self.ports = {number: (free_ports(1)[0], free_port()) for number in range(1, count + 1)}
        """The ports for clients and for slaves of each broker."""
        self.settings_of: dict[int, dict[str, str]] = {number: {} for number in self.ports}
        """Settings of one broker, from its next start on."""
        self.programs: dict[int, list[str]] = {}
        """What begins the command of one broker, if not `RUCOLA`."""
        self.brokers: dict[int, Server] = {}
        self._starts: Counter[int] = Counter()
        for number in self.ports if is_started else ():
            self.start(number)

    @property
    def namesrv(self) -> str:
        return self.machines.namesrv

    def start(self, number: int) -> None:
        """Start a broker; the log of its process before is kept in `broker-N.log.K`."""
        port, ha_port = self.ports[number]
        if number in self.brokers:
            log = self.brokers[number].log
            log.rename(log.with_name(f"{log.name}.{self._starts[number]}"))
        self._starts[number] += 1
        endpoint = self._endpoints.get(number, self.etcd.endpoint)
        own = {
            "brokerId": str(number),
            "listenPort": str(port),
            "haListenPort": str(ha_port),
            "etcdEndpoints": endpoint,
        }
        self.brokers[number] = self.machines.broker(
            f"broker-{number}",
            "SLAVE",
            program=_with(self._environments.get(number, {}), self.programs.get(number, RUCOLA)),
            **{**own, "etcdEndpoints": endpoint, **self._settings, **self.settings_of[number]},
        )

    def address(self, number: int) -> str:
        """The address that a broker registers."""
        return f"{self.settings_of[number].get('brokerIP1', HOST)}:{self.ports[number][0]}"

    def direct_address(self, number: int) -> str:
        """The address at which a broker is without a proxy."""
        return f"{self.settings_of[number].get('bindAddress', HOST)}:{self.ports[number][0]}"

    def directory(self, number: int) -> Path:
        return self.machines.path / f"broker-{number}"

    def log(self, number: int) -> str:
        return self.machines.log(f"broker-{number}")

    def kill(self, number: int) -> None:
        self.brokers[number].process.kill()
        self.brokers[number].process.wait()

    def signal(self, number: int, what: signal.Signals) -> None:
        self.brokers[number].process.send_signal(what)

    async def master(self) -> int:
        """Wait until the name server knows a master; its number."""
        found: list[int] = []

        async def is_known() -> bool:
            with suppress(MQError):
                async with PullConsumer("who", self.namesrv) as consumer:
                    await consumer.instance.routes.refresh("broker-a")  # every broker has a topic of its own name
                    address = consumer.instance.routes.address("broker-a")
                    found[:] = [number for number in self.ports if self.address(number) == address]
                    return bool(found)
            return False

        await until(is_known, DEADLINE_S)
        return found[0]

    async def view(self) -> View:
        """The keys of the group in etcd."""
        keys = GroupKeys("DefaultCluster", "broker-a")
        async with EtcdClient(EtcdAccess((self.etcd.endpoint,)), 20) as client:
            return keys.view(await client.range(keys.prefix))

    async def all_in_sync(self) -> bool:
        """Whether etcd has a leader, all members, and all of them in sync: nothing of a fault goes on."""
        view = await self.view()
        if view.state is None or view.leader is None:
            return False
        return view.state.in_sync.keys() == view.members.keys() == self.ports.keys()

    async def create_topic(self, queues: int = 2) -> None:
        client = RemotingClient()
        header = CreateTopicRequestHeader(topic=TOPIC, read_queue_nums=queues, write_queue_nums=queues, perm=6)
        request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await client.invoke_ok(self.address(await self.master()), request)
        await client.close()

    async def stop(self) -> None:
        """Stop all brokers, the master first; their stores are sound, and their logs equal."""
        first = await self.master()
        for number in (first, *(self.brokers.keys() - {first})):
            assert await asyncio.to_thread(self.brokers[number].stop) == 0
        for number in self.brokers:
            assert (problems := check(self.directory(number))) == [], f"broker {number}: {problems}"
        first_log, *logs = [log_of(self.directory(number)) for number in self.brokers]
        assert all(log == first_log for log in logs), "the logs differ"


def _with(variables: Mapping[str, str], program: Sequence[str]) -> list[str]:
    """The command of a program that runs with these variables besides."""
    return ["env", *(f"{name}={value}" for name, value in variables.items()), *program]
