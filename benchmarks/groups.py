"""A large cluster in simulated time: convergence of routes and request rates, by its size.

`N` broker groups have 10 N consumers and 3 name servers, all of them the project's own, in one process, with a
simulated clock and network (`tests/simulation/network.py`): a message between two machines takes 0.5 ms, and
work takes no time. So the figures are counts and the times of protocols, not of this machine.

    consumers   in groups of ten, each on a topic of its own on four brokers
    wide        one of every ten consumers belongs to one group instead, on a topic of all brokers

By default 10 and 30 groups are simulated, with `--full` 100 as well, which takes minutes.
"""

from __future__ import annotations

import asyncio
import random
import resource
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from figures import Aim, Figure
from floors import Options
from rucola.access import Action, Caller, Check, Interceptor, Resource
from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig
from rucola.client import MessageExt, PushConsumer
from rucola.domain.topic import TopicConfig
from rucola.errors import MQError
from rucola.namesrv.server import Namesrv
from rucola.store.config import StoreConfig

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from simulation.network import SimulatedLoop, on_machine, simulated_time

SIZES: Final = (10, 30, 100)
NAMESRVS: Final = 3
CLIENTS_PER_GROUP: Final = 10
MEMBERS: Final = 10
BROKERS_OF_TOPIC: Final = 4
WIDE_TOPIC: Final = "Wide"
WIDE_GROUP: Final = "wide"
SETTLE_S: Final = 35.0
STEADY_S: Final = 60.0
PATIENCE_S: Final = 600.0
POLL_S: Final = 0.05
SMALL: Final = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


@dataclass
class Observed:
    """The figures of one cluster. Times in simulated seconds, rates per simulated second."""

    size: int
    assigned_s: float = 0.0
    start_requests: Counter[str] = field(default_factory=Counter)
    steady: Counter[str] = field(default_factory=Counter)
    namesrv_bytes: float = 0.0
    killed_s: list[float] = field(default_factory=list)
    joined_s: list[float] = field(default_factory=list)
    left_s: float = 0.0
    left_requests: Counter[str] = field(default_factory=Counter)
    namesrv_killed_errors: int = 0


def measure(options: Options) -> list[Figure]:
    """Simulate each size in an event loop of its own."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    sizes = SIZES if options.is_full else SIZES[:2]
    observed = [_simulate(size) for size in sizes]
    return [figure for one in observed for figure in _figures(one, observed[0])]


def _figures(one: Observed, smallest: Observed) -> list[Figure]:
    size, growth = one.size, one.size / smallest.size
    name = f"{size}_groups"

    def namesrv_rate(observed: Observed) -> float:
        return sum(count for key, count in observed.steady.items() if key.startswith("namesrv")) / NAMESRVS / STEADY_S

    return [
        Figure(
            f"{name}_know_that_a_broker_is_lost",
            max(one.killed_s),
            "s",
            aims=[Aim("value", 31)],
            more={"median_s": statistics.median(one.killed_s)},
        ),
        Figure(
            f"{name}_consume_from_a_new_broker",
            max(one.joined_s),
            "s",
            aims=[Aim("value", 61)],
            more={"median_s": statistics.median(one.joined_s), "all_assigned_at_the_start_s": one.assigned_s},
        ),
        Figure(
            f"{name}_at_each_namesrv",
            namesrv_rate(one),
            "requests/s",
            floor=namesrv_rate(smallest) * growth,
            floor_is=f"that of {smallest.size} groups, {growth:g} times",
            more={
                "KB/s_to_each": one.namesrv_bytes / 1e3,
                "requests/s_of_a_broker": sum(count for key, count in one.steady.items() if key.startswith("broker"))
                / size
                / STEADY_S,
                "failures_after_loss_of_a_namesrv": one.namesrv_killed_errors,
            },
        ),
        Figure(
            f"{name}_of_each_member_in_a_rebalance_of_{_wide_members(size)}",
            sum(one.left_requests.values()) / _wide_members(size),
            "requests",
            more={"s_until_assigned": one.left_s, "requests": sum(one.left_requests.values())},
        ),
    ]


def _wide_members(size: int) -> int:
    return size * CLIENTS_PER_GROUP // 10


def _simulate(size: int) -> Observed:
    random.seed(size)
    loop = SimulatedLoop()
    with simulated_time(loop), TemporaryDirectory(prefix="rucola-bench-", dir=_memory()) as folder:
        try:
            return loop.run_until_complete(_Cluster(loop, size, Path(folder)).observe())
        finally:
            loop.close()


def _memory() -> str | None:
    """Return a directory in memory, if there is one: thousands of flushes per simulated minute are of no interest."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class _Cluster:
    """All machines of one size."""

    def __init__(self, loop: SimulatedLoop, size: int, folder: Path) -> None:
        self._loop = loop
        self._size = size
        self._folder = folder
        self._asked: Counter[str] = Counter()
        """Requests by machine and action, `broker-1 FETCH`."""
        self._brokers: dict[str, Broker] = {}
        self._consumers: dict[str, list[PushConsumer]] = {}
        """The members of each group, which has the name of its topic."""
        self._namesrv = ""

    async def observe(self) -> Observed:
        one = Observed(self._size)
        await self._start_servers()
        begin = self._loop.time()
        before = self._asked.copy()
        await self._start_consumers()
        await self._until(self._is_all_assigned)
        one.assigned_s = self._loop.time() - begin
        one.start_requests = self._asked - before
        # An idle interval.
        await asyncio.sleep(SETTLE_S)
        before, namesrv_bytes = self._asked.copy(), self._bytes_to_namesrvs()
        await asyncio.sleep(STEADY_S)
        one.steady = self._asked - before
        one.namesrv_bytes = (self._bytes_to_namesrvs() - namesrv_bytes) / STEADY_S / NAMESRVS
        # A member of the wide group leaves.
        before, begin = self._asked.copy(), self._loop.time()
        leaving = self._consumers[WIDE_GROUP].pop()
        await leaving.close()
        await self._until(lambda: self._is_assigned(WIDE_GROUP))
        one.left_s = self._loop.time() - begin
        await asyncio.sleep(1)
        one.left_requests = self._asked - before
        # A broker joins, on which the wide topic gets queues.
        begin = self._loop.time()
        await self._start_broker(self._size, [WIDE_TOPIC])
        one.joined_s = await self._each(lambda consumer: self._has_route(consumer, f"broker-{self._size}"), begin)
        await self._until(lambda: self._is_assigned(WIDE_GROUP))
        one.joined_s.append(self._loop.time() - begin)
        # A broker loses its power.
        begin = self._loop.time()
        self._loop.kill("broker-0")
        one.killed_s = await self._each(lambda consumer: not self._has_route(consumer, "broker-0"), begin)
        await self._until(lambda: self._is_assigned(WIDE_GROUP))
        one.killed_s.append(self._loop.time() - begin)
        # A name server loses its power; routes are refreshed from the others.
        self._loop.kill("namesrv-0")
        await asyncio.sleep(60)
        for consumer in self._consumers[WIDE_GROUP]:
            try:
                await consumer.instance.routes.refresh(WIDE_TOPIC)
            except MQError:
                one.namesrv_killed_errors += 1
        await self._stop()
        return one

    # Machines.

    async def _start_servers(self) -> None:
        self._namesrvs: list[Namesrv] = []
        for number in range(NAMESRVS):
            with on_machine(f"namesrv-{number}"):
                server = Namesrv("127.0.0.1", 0, interceptors=[self._counting(f"namesrv-{number}")])
                await server.start()
            self._namesrvs.append(server)
        self._namesrv = ";".join(f"127.0.0.1:{server.port}" for server in self._namesrvs)
        topics: list[list[str]] = [[WIDE_TOPIC] for _ in range(self._size)]
        for number in range(self._narrow_groups()):
            for step in range(BROKERS_OF_TOPIC):
                topics[(number + step) % self._size].append(f"Topic{number}")
        for number, of_broker in enumerate(topics):
            await self._start_broker(number, of_broker)

    async def _start_broker(self, number: int, topics: list[str]) -> None:
        name = f"broker-{number}"
        config = BrokerConfig(
            broker_name=name, bind_address="127.0.0.1", broker_ip1="127.0.0.1", listen_port=0, ha_listen_port=0,
            namesrv_addr=self._namesrv,
        )  # fmt: skip
        with on_machine(name):
            store = StoreConfig(store_path_root_dir=self._folder / name, **SMALL)
            broker = Broker(config, store, interceptors=[self._counting(name)])
            await broker.start()
            self._brokers[name] = broker
            async with AdminClient(self._namesrv) as admin:
                for topic in topics:
                    queues = 1 if topic == WIDE_TOPIC else 4
                    created = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
                    await admin.topics.create_or_update(broker.address, created)

    async def _start_consumers(self) -> None:
        names = {f"Topic{number}": MEMBERS for number in range(self._narrow_groups())}
        for topic, members in (names | {WIDE_TOPIC: _wide_members(self._size)}).items():
            group = WIDE_GROUP if topic == WIDE_TOPIC else topic
            self._consumers[group] = [await self._start_consumer(group, topic, n) for n in range(members)]

    async def _start_consumer(self, group: str, topic: str, number: int) -> PushConsumer:
        async def listen(message: MessageExt) -> None:
            """No message is sent."""

        with on_machine(f"client-{group}-{number}"):
            consumer = PushConsumer(group, self._namesrv)
            consumer.subscribe(topic)
            consumer.listen(listen)
            await consumer.open()
        return consumer

    async def _stop(self) -> None:
        for consumer in self._all_consumers():
            await consumer.close()
        for broker in self._brokers.values():
            await broker.stop()
        for server in self._namesrvs:
            await server.stop()

    def _narrow_groups(self) -> int:
        return self._size * (CLIENTS_PER_GROUP - 1) // MEMBERS

    # Observation.

    def _counting(self, machine: str) -> Interceptor:
        asked = self._asked

        class Counting:
            def check_for(self, action: Action) -> Check:
                key = f"{machine} {action.name}"

                def count(caller: Caller, resource: Resource) -> None:
                    # A heartbeat is checked for its group, and for each topic of it.
                    if action is not Action.HEARTBEAT or not resource.topic:
                        asked[key] += 1

                return count

        return Counting()

    def _all_consumers(self) -> list[PushConsumer]:
        return [consumer for members in self._consumers.values() for consumer in members]

    def _bytes_to_namesrvs(self) -> int:
        return sum(self._loop.bytes_to[f"namesrv-{number}"] for number in range(NAMESRVS))

    def _is_assigned(self, group: str) -> bool:
        """Tell whether each queue of the group's topic belongs to exactly one member."""
        members = self._consumers[group]
        topic = WIDE_TOPIC if group == WIDE_GROUP else group
        live = {name for name in self._brokers if not self._loop.is_killed(name)}
        route = members[0].instance.routes.known(topic)
        if route is None:
            return False
        expected = Counter(queue for queue in route.read_queues if queue.broker_name in live)
        return Counter(queue for member in members for queue in member.queues) == expected

    def _is_all_assigned(self) -> bool:
        return all(map(self._is_assigned, self._consumers))

    def _has_route(self, consumer: PushConsumer, broker: str) -> bool:
        return broker in consumer.instance.routes.brokers

    async def _each(self, condition: Callable[[PushConsumer], bool], begin: float) -> list[float]:
        """Return for each member of the wide group when the condition first held, in seconds from `begin`."""
        held: dict[int, float] = {}
        members = self._consumers[WIDE_GROUP]

        def all_held() -> bool:
            for number, consumer in enumerate(members):
                if number not in held and condition(consumer):
                    held[number] = self._loop.time() - begin
            return len(held) == len(members)

        await self._until(all_held)
        return list(held.values())

    async def _until(self, condition: Callable[[], bool]) -> None:
        end = self._loop.time() + PATIENCE_S
        while not condition():
            if self._loop.time() > end:
                raise RuntimeError(f"{self._size} groups: not reached within {PATIENCE_S:g} simulated seconds")
            await asyncio.sleep(POLL_S)
