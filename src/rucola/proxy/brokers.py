"""Brokers: the masters of a cluster, a connection to the gRPC port of each, and the brokers of a topic.

Name servers list the masters (GET_BROKER_CLUSTER_INFO), a master its port (grpcServerPort, GET_BROKER_CONFIG). Name
servers are asked again every 30 s, when a connection is lost, and when a broker does not answer in time, so that the
next master of a broker name is followed: the connection to the one before is closed. A broker that cannot be reached is
tried every second, and calls to it fail at once, until the name servers have not known it for two minutes.

A topic is on the brokers of its route. A missing topic is on those that create topics, as for clients of 4.x.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from rucola.admin.client import AdminClient
from rucola.admin.requests import masters_of
from rucola.client.route import default_topic_route, topic_route
from rucola.errors import BrokerError, ConfigError, MQError, RemotingConnectError, TopicNotFound
from rucola.http2.client import ClientCall, GrpcChannel, NotProcessed
from rucola.http2.grpc import Status
from rucola.message.topics import AUTO_CREATE_TOPIC
from rucola.outages import Outages
from rucola.remoting.client import host_and_port
from rucola.remoting.deadline import Deadline
from rucola.remoting.single_flight import SingleFlight
from rucola.remoting.tls import FollowedContext

logger = logging.getLogger(__name__)

REFRESH_INTERVAL_S: Final = 30.0
RETRY_INTERVAL_S: Final = 1.0
FORGET_S: Final = 120.0
REQUEST_TIMEOUT_MS: Final = 3000
MAX_TOPICS: Final = 10_000
"""Topics whose brokers are remembered."""

Fields = Sequence[tuple[bytes, bytes]]


class BrokersOfTopic(NamedTuple):
    """Names, in order."""

    all: list[str]
    writable: list[str]


class ProxiedBroker:
    """The master of one broker name. `on_connected` is called after each connection."""

    def __init__(self, name: str, address: str, brokers: Brokers) -> None:
        self.name = name
        self.address = address
        """Its address for remoting."""
        self.is_connected = False
        self.failures: Counter[str] = Counter()
        """Calls that failed here, by the status of gRPC."""
        self.known_s = 0.0
        """When the name servers last knew it, in the loop's time."""
        self._brokers = brokers
        self._channel: GrpcChannel | None = None
        self._why = "it is not connected yet"
        self._tried = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    async def call(self, path: str, fields: Fields, timeout_s: float | None) -> ClientCall:
        """Begin a call. Raises NotProcessed."""
        await self._tried.wait()
        if self._channel is None:
            raise NotProcessed(Status.UNAVAILABLE, f"broker {self.name} cannot be reached: {self._why}")
        try:
            return await self._channel.call(path, fields, timeout_s)
        except RemotingConnectError as error:
            raise NotProcessed(Status.UNAVAILABLE, f"broker {self.name}: {error}") from None

    def move(self, address: str) -> None:
        """Connect to another master, unless this is the one."""
        if address != self.address:
            self.address = address
            if self._channel is not None:
                self._channel.abort()

    def close(self) -> asyncio.Task[None]:
        """Close its connection; return the task that does so."""
        self._task.cancel()
        return self._task

    async def wait_tried(self) -> None:
        """Wait until it is connected, or known to be unreachable."""
        await self._tried.wait()

    async def _keep_connected(self) -> None:
        subject = f"broker {self.name}"
        while True:
            address = self.address
            try:
                channel = await self._connect(address)
            except MQError as error:
                self._why = str(error)
                self._brokers.outages.failed(subject, error)
                self._tried.set()
            else:
                if address != self.address:  # `move` in the meantime
                    await channel.close()
                    continue
                self._brokers.outages.succeeded(subject)
                self._channel, self.is_connected = channel, True
                self._tried.set()
                self._brokers.on_connected(self.name)
                try:
                    await channel.wait_lost()
                finally:
                    self._channel, self.is_connected = None, False
                    self._why = "the connection is lost"
                    await channel.close()
            await asyncio.sleep(RETRY_INTERVAL_S)
            await self._brokers.refresh()

    async def _connect(self, address: str) -> GrpcChannel:
        config = await self._brokers.admin.brokers.config(address)
        port = config.get("grpcServerPort", "")
        if not port.isdigit() or config.get("grpcServerEnabled") == "false":
            raise ConfigError(f"the broker at {address} serves no clients of RocketMQ 5 (grpcServerPort)")
        channel = GrpcChannel(host_and_port(address)[0], int(port), self._brokers.tls)
        await channel.connect()
        return channel


class Brokers:
    """`start` and `close` on one event loop; `admin` is closed by its owner."""

    def __init__(self, admin: AdminClient) -> None:
        self.admin = admin
        self.tls: FollowedContext | None = None
        self.outages = Outages(logger)
        self.on_connected: Callable[[str], None] = lambda name: None
        self._brokers: dict[str, ProxiedBroker] = {}
        self._topics: dict[str, tuple[float, BrokersOfTopic]] = {}
        """By topic: when it was looked up, the oldest first, and its brokers."""
        self._lookups: SingleFlight[str, BrokersOfTopic] = SingleFlight()
        self._refreshed_s = 0.0
        self._suspected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find the brokers, and wait until each was tried. Raises MQError if no name server answers."""
        tls = self.admin.connection.tls
        self.tls = None if tls is None else tls.follow()
        await self._refresh()
        self._task = asyncio.get_running_loop().create_task(self._refresh_regularly())
        await asyncio.gather(*(broker.wait_tried() for broker in self._brokers.values()))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._lookups.close()
        await asyncio.gather(*(broker.close() for broker in self._brokers.values()), return_exceptions=True)

    def __iter__(self) -> Iterator[ProxiedBroker]:
        return iter(self._brokers.values())

    @property
    def connected(self) -> list[str]:
        """Names of the brokers with a connection, in order."""
        return sorted(name for name, broker in self._brokers.items() if broker.is_connected)

    async def find(self, name: str) -> ProxiedBroker:
        """Return a broker by its name. Raises NotProcessed."""
        if name not in self._brokers:
            await self.refresh()
        if (broker := self._brokers.get(name)) is None:
            raise NotProcessed(Status.UNAVAILABLE, f"the name servers know no master of broker {name[:128]!r}")
        return broker

    async def any(self) -> str:
        """Return the name of a connected broker. Raises NotProcessed."""
        if not (names := self.connected):
            raise NotProcessed(Status.UNAVAILABLE, "no broker can be reached")
        return names[0]

    async def of_topic(self, topic: str) -> BrokersOfTopic:
        """Return the brokers of a topic, empty if neither it nor a route for missing topics is known.

        Raises NotProcessed if no name server answers and nothing is remembered.
        """
        now_s = asyncio.get_running_loop().time()
        known = self._topics.get(topic)
        if known is not None and now_s - known[0] < REFRESH_INTERVAL_S:
            return known[1]
        purpose = f"cannot look up topic {topic}"
        try:
            deadline = Deadline(2 * REQUEST_TIMEOUT_MS)
            return await self._lookups.run(topic, lambda: self._look_up(topic), deadline, purpose)
        except (MQError, TimeoutError) as error:
            if known is not None:
                return known[1]
            raise NotProcessed(Status.UNAVAILABLE, f"{purpose}: {error}") from None

    def forget_topic(self, topic: str) -> None:
        """Look a topic up again before the next use."""
        self._topics.pop(topic, None)

    async def refresh(self) -> None:
        """Ask for the masters again, unless that was done within the last second."""
        if asyncio.get_running_loop().time() - self._refreshed_s >= RETRY_INTERVAL_S:
            await self._try_refresh()

    async def _try_refresh(self) -> None:
        try:
            await self._refresh()
        except MQError as error:
            self.outages.failed("the name servers", error)
        else:
            self.outages.succeeded("the name servers")

    def suspect(self) -> None:
        """Ask for the masters soon, since one has not answered in time."""
        self._suspected.set()

    async def _look_up(self, topic: str) -> BrokersOfTopic:
        try:
            route = topic_route(topic, await self.admin.topics.route(topic))
        except TopicNotFound:
            try:
                default = topic_route(AUTO_CREATE_TOPIC, await self.admin.topics.route(AUTO_CREATE_TOPIC))
            except TopicNotFound:
                return BrokersOfTopic([], [])
            route = default_topic_route(topic, default)
        except BrokerError:  # an illegal name: brokers say so
            return BrokersOfTopic([], [])
        found = BrokersOfTopic(sorted(route.brokers), sorted({queue.broker_name for queue in route.write_queues}))
        self._topics.pop(topic, None)
        if not route.is_default:  # a message may create it at once
            self._topics[topic] = asyncio.get_running_loop().time(), found
            if len(self._topics) > MAX_TOPICS:
                del self._topics[next(iter(self._topics))]
        return found

    async def _refresh(self) -> None:
        self._refreshed_s = asyncio.get_running_loop().time()
        masters = masters_of((await self.admin.cluster.info()).broker_addr_table.values())
        for name, address in masters.items():
            if name in self._brokers:
                self._brokers[name].move(address)
            else:
                self._brokers[name] = ProxiedBroker(name, address, self)
        for name, broker in list(self._brokers.items()):
            if name in masters or broker.is_connected:
                broker.known_s = self._refreshed_s
            elif self._refreshed_s - broker.known_s > FORGET_S:
                self._brokers.pop(name).close()

    async def _refresh_regularly(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_INTERVAL_S):
                    await self._suspected.wait()
                    await asyncio.sleep(RETRY_INTERVAL_S)
            self._suspected.clear()
            await self._try_refresh()
