"""A broker group whose master is elected: name server, etcd and brokers as processes, and a ledger of sends."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rucola.client import Message, Producer, PullConsumer, SendStatus
from rucola.client.producer.send_request import SendResult
from rucola.coordination.etcd import EtcdAccess, EtcdClient
from rucola.coordination.group_keys import GroupKeys, View
from rucola.errors import MQError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.topic import CreateTopicRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.store.directory_reader import StoreReader
from support.etcd import EtcdServer
from support.ports import free_port, free_ports
from support.processes import Machines
from support.servers import RUCOLA, Server
from support.waiting import until

TOPIC = "T"


class ElectedGroup:
    """The brokers 1 to `count` of broker-a, which can be killed, stopped, paused and started again.

    A broker reaches etcd at its address in `endpoints`, that of a proxy, or directly. `environments` are variables of
    the processes of brokers.
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
        **settings: str,
    ) -> None:
        self.machines = Machines(path, stack)
        self.etcd = etcd
        self._endpoints = endpoints or {}
        self._environments = environments or {}
        self._settings = settings
        self._ports = {number: (free_ports(1)[0], free_port()) for number in range(1, count + 1)}
        self.brokers: dict[int, Server] = {}
        self._starts: Counter[int] = Counter()
        for number in self._ports:
            self.start(number)

    @property
    def namesrv(self) -> str:
        return self.machines.namesrv

    def start(self, number: int) -> None:
        """Start a broker; the log of its process before is kept in `broker-N.log.K`."""
        port, ha_port = self._ports[number]
        if number in self.brokers:
            log = self.brokers[number].log
            log.rename(log.with_name(f"{log.name}.{self._starts[number]}"))
        self._starts[number] += 1
        own = {"brokerId": str(number), "listenPort": str(port), "haListenPort": str(ha_port)}
        variables = [f"{name}={value}" for name, value in self._environments.get(number, {}).items()]
        self.brokers[number] = self.machines.broker(
            f"broker-{number}",
            "SLAVE",
            program=["env", *variables, *RUCOLA],
            etcdEndpoints=self._endpoints.get(number, self.etcd.endpoint),
            **own,
            **self._settings,
        )

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self._ports[number][0]}"

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
                    found[:] = [number for number in self._ports if self.address(number) == address]
                    return bool(found)
            return False

        await until(is_known)
        return found[0]

    async def view(self) -> View:
        """The keys of the group in etcd."""
        keys = GroupKeys("DefaultCluster", "broker-a")
        async with EtcdClient(EtcdAccess((self.etcd.endpoint,)), 20) as client:
            return keys.view(await client.range(keys.prefix))

    async def all_in_sync(self) -> bool:
        state = (await self.view()).state
        return state is not None and state.in_sync.keys() == self._ports.keys()

    async def create_topic(self, queues: int = 2) -> None:
        client = RemotingClient()
        header = CreateTopicRequestHeader(topic=TOPIC, read_queue_nums=queues, write_queue_nums=queues, perm=6)
        request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await client.invoke_ok(self.address(await self.master()), request)
        await client.close()


@dataclass
class Acknowledged:
    """A send that was answered with SEND_OK."""

    number: int
    digest: bytes
    queue_id: int
    queue_offset: int
    begin_s: float
    end_s: float
    """Times of the event loop before the send, and of its answer."""


@dataclass
class SendLedger:
    """Sends one after the other, and what became of them. `name` is part of every body."""

    name: str = "one"
    acknowledged: list[Acknowledged] = field(default_factory=list)
    others: list[tuple[int, str]] = field(default_factory=list)
    """Numbers that were stored without the guarantee, or failed."""
    _count: int = 0

    async def send(self, producer: Producer) -> SendResult | MQError:
        """Send the next message once; note the outcome."""
        number, loop = self._count, asyncio.get_running_loop()
        self._count += 1
        body = f"{self.name} {number} ".encode() + bytes(number % 251 for _ in range(50 + number % 200))
        begin_s = loop.time()
        try:
            result = await producer.send(Message(TOPIC, body, keys=str(number)))
        except MQError as error:
            self.others.append((number, str(error)))
            return error
        if result.status is SendStatus.SEND_OK:
            digest = hashlib.sha256(body).digest()
            self.acknowledged.append(
                Acknowledged(number, digest, result.queue.queue_id, result.queue_offset, begin_s, loop.time())
            )
        else:
            self.others.append((number, result.status.name))
        return result

    async def until_ok(self, producer: Producer, timeout_s: float = 60) -> float:
        """Send until a message is acknowledged; return how long that took in seconds."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        async with asyncio.timeout(timeout_s):
            while not self.acknowledged or self.acknowledged[-1].begin_s < begin_s:
                await self.send(producer)
                await asyncio.sleep(0.01)
        return loop.time() - begin_s

    async def check(self, namesrv: str) -> None:
        """Read all queues, and compare them with what was acknowledged."""
        check_ledgers([self], await read_all(namesrv))


def check_ledgers(ledgers: list[SendLedger], stored: dict[int, list[tuple[int, bytes, int]]]) -> None:
    """Compare what was acknowledged with what is stored, by queue."""
    acknowledged = [each for ledger in ledgers for each in ledger.acknowledged]
    for queue_id, messages in stored.items():
        offsets = [offset for offset, _, _ in messages]
        assert offsets == list(range(len(offsets))), f"queue {queue_id} has gaps or repeats"
        places = [place for _, _, place in messages]
        assert places == sorted(set(places)), f"queue {queue_id} is not in the order of the log"
    by_place = {(queue_id, offset): digest for queue_id, found in stored.items() for offset, digest, _ in found}
    lost = [each for each in acknowledged if by_place.get((each.queue_id, each.queue_offset)) != each.digest]
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged messages are lost: {lost[:5]}"
    check_history(acknowledged, stored)


def check_history(acknowledged: list[Acknowledged], stored: dict[int, list[tuple[int, bytes, int]]]) -> None:
    """Check the order of a history, as Elle does for logs.

    A send that was acknowledged before another one began has the smaller offset in their queue; no offset is given
    twice; no acknowledged body is stored twice, since each is sent once.
    """
    offsets = [(each.queue_id, each.queue_offset) for each in acknowledged]
    assert len(set(offsets)) == len(offsets), "an offset was given twice"
    # In the order of the begins, the greatest offset of those that had ended before.
    events = sorted(
        [(each.begin_s, 1, each) for each in acknowledged] + [(each.end_s, 0, each) for each in acknowledged],
        key=lambda event: event[:2],
    )
    last: dict[int, Acknowledged] = {}
    for _, is_begin, each in events:
        before = last.get(each.queue_id)
        if is_begin:
            assert before is None or before.queue_offset < each.queue_offset, f"{each} began after {before}"
        elif before is None or before.queue_offset < each.queue_offset:
            last[each.queue_id] = each
    times = {digest: 0 for found in stored.values() for _, digest, _ in found}
    for found in stored.values():
        for _, digest, _ in found:
            times[digest] += 1
    twice = [each for each in acknowledged if times.get(each.digest, 0) > 1]
    assert not twice, f"stored twice, although acknowledged at the first attempt: {twice[:5]}"


async def read_all(namesrv: str) -> dict[int, list[tuple[int, bytes, int]]]:
    """All messages of the topic: queue offset, digest of the body, and physical offset, by queue."""
    stored: dict[int, list[tuple[int, bytes, int]]] = {}
    async with PullConsumer("check", namesrv) as consumer:
        for queue in await consumer.queues(TOPIC):
            found = stored[queue.queue_id] = []
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    digest = hashlib.sha256(message.body).digest()
                    found.append((message.queue_offset, digest, message.physical_offset))
                offset = result.next_begin_offset
    return stored


def logs_are_equal(group: ElectedGroup) -> bool:
    """Whether the logs of all brokers, which must be stopped, have the same bytes."""
    logs = []
    for number in group.brokers:
        with StoreReader(group.directory(number)) as reader:
            begin, end = reader.min_physical_offset, reader.max_physical_offset
        files = sorted((group.directory(number) / "commitlog").iterdir())
        logs.append((begin, end, b"".join(each.read_bytes() for each in files)[: end - begin]))
    return all(each == logs[0] for each in logs)
