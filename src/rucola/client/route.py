"""Topic routes: fetched from the name servers, cached and refreshed.

The name server that responded last is queried first, and the next one if it fails or takes longer than `HEDGE_MS`. Only
a newer route replaces a cached one, not unreachable or just started name servers. Concurrent callers share one lookup,
each with its own timeout; the lookup continues after that, for the cache.

    write queues   of every broker that permits writing and has a master: 0 .. writeQueueNums - 1
    read queues    of every broker that permits reading: 0 .. readQueueNums - 1

are ordered by broker name and queue id. An order configuration (`broker-a:4;broker-b:4`) alone determines the write
queues. A missing topic has the default route, of TBW102, if brokers create topics on demand.

Corresponds to `MQClientInstance.updateTopicRouteInfoFromNameServer` and `TopicPublishInfo` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from rucola.client.hedging import hedged
from rucola.domain.queue import MessageQueue
from rucola.domain.role import MASTER_ID
from rucola.domain.route import TopicRouteData
from rucola.domain.topic import PERM_READ, PERM_WRITE
from rucola.errors import (
    BrokerError,
    ConfigError,
    MQError,
    RemoteProtocolError,
    RemotingConnectError,
    RemotingTimeout,
    TopicNotFound,
)
from rucola.message.topics import AUTO_CREATE_TOPIC
from rucola.name_server_addresses import NAMESRV_VARIABLES, default_name_servers, origin, split
from rucola.outages import Outages
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import GetRouteInfoRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.remoting.deadline import Deadline
from rucola.remoting.single_flight import SingleFlight

logger = logging.getLogger(__name__)

DEFAULT_TOPIC_QUEUE_NUMS = 4

MAX_QUEUES_PER_BROKER = 65_536
MAX_QUEUES = 1_048_576
"""The most queues of one topic, on a broker and in total: a client holds an object for each."""

MAX_ADDRESSES = 4096
"""The most addresses of brokers in one route: a client connects to each."""

NAMESRV_TIMEOUT_MS = 3000
HEDGE_MS = 500


class TopicRoute(msgspec.Struct, frozen=True):
    """Queues and brokers of a topic. `brokers` maps broker name and broker id to "host:port"."""

    topic: str
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]]
    is_default: bool = False
    """Whether this is the route of TBW102, used for a missing topic."""


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Build a route from a name server's response. RemoteProtocolError for too many queues or brokers."""
    count = sum(len(broker.broker_addrs) for broker in data.broker_datas)
    if count > MAX_ADDRESSES:
        raise RemoteProtocolError(
            f"the route of topic {topic} has {count} addresses of brokers; the limit is {MAX_ADDRESSES}"
        )
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    by_name = sorted(data.queue_datas, key=lambda queues: queues.broker_name)
    readable = [(queues.broker_name, queues.read_queue_nums) for queues in by_name if queues.perm & PERM_READ]
    if data.order_topic_conf:
        writable = _order_conf(topic, data.order_topic_conf)
    else:
        writable = [
            (queues.broker_name, queues.write_queue_nums)
            for queues in by_name
            if queues.perm & PERM_WRITE and MASTER_ID in brokers.get(queues.broker_name, {})
        ]
    return TopicRoute(topic, _queues(topic, writable), _queues(topic, readable), brokers)


def default_topic_route(topic: str, default: TopicRoute) -> TopicRoute:
    """Build the route of a missing topic from the route of TBW102."""
    return TopicRoute(
        topic,
        tuple(
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in default.write_queues
            if queue.queue_id < DEFAULT_TOPIC_QUEUE_NUMS
        ),
        (),
        default.brokers,
        is_default=True,
    )


def _queues(topic: str, counts: Sequence[tuple[str, int]]) -> tuple[MessageQueue, ...]:
    total = 0
    for name, count in counts:
        total += max(0, count)
        if count > MAX_QUEUES_PER_BROKER:
            raise RemoteProtocolError(
                f"the route of topic {topic} has {count} queues on broker {name}; the limit is {MAX_QUEUES_PER_BROKER}"
            )
    if total > MAX_QUEUES:
        raise RemoteProtocolError(f"the route of topic {topic} has {total} queues; the limit is {MAX_QUEUES}")
    return tuple(MessageQueue(topic, name, queue_id) for name, count in counts for queue_id in range(count))


def _order_conf(topic: str, conf: str) -> list[tuple[str, int]]:
    counts = []
    for part in conf.split(";"):
        name, separator, count = part.partition(":")
        if separator and count.isdecimal() and len(count) < 10:
            counts.append((name, int(count)))
        else:
            logger.warning(
                "topic %s: ignored %r in the order configuration %r: it is not broker:count", topic, part, conf
            )
    return counts


class NameServers:
    """Name servers, queried by hedged requests: "host:port;host:port", or None for the default. ConfigError if none."""

    def __init__(self, addresses: str | None, remoting: RemotingClient) -> None:
        if addresses is None:
            addresses = default_name_servers()
        self._origin = origin(addresses)
        self.addresses = split(addresses)
        if not self.addresses:
            raise ConfigError(
                f"{addresses!r} names no name server: pass namesrv='host:9876;host:9876', or set "
                f"{' or '.join(NAMESRV_VARIABLES)}"
            )
        self._remoting = remoting
        self._first = random.randrange(len(self.addresses))  # noqa: S311 - spreads load

    async def invoke(self, command: RemotingCommand, timeout_ms: float = NAMESRV_TIMEOUT_MS) -> RemotingCommand:
        """Return the first response, regardless of its code. RemotingConnectError lists the failure of every server."""
        deadline = Deadline(timeout_ms)
        count = len(self.addresses)
        order = [index % count for index in range(self._first, self._first + count)]

        def attempt(address: str) -> Callable[[], Coroutine[Any, Any, RemotingCommand]]:
            return lambda: self._remoting.invoke(address, command, deadline.left_ms)

        try:
            # The pause shrinks with a short timeout, so that every server gets a share of it.
            index, response = await hedged(
                [attempt(self.addresses[index]) for index in order], min(HEDGE_MS, timeout_ms / (count + 1))
            )
        except ExceptionGroup as group:
            reasons = "; ".join(map(str, group.exceptions))
            raise RemotingConnectError(f"no name server answers: {reasons}{self._origin}") from None
        self._first = order[index]
        return response


class TopicRoutes:
    """Cached routes; `on_change` is called with each new or changed one."""

    def __init__(self, name_servers: NameServers, on_change: Callable[[TopicRoute], None]) -> None:
        self.name_servers = name_servers
        self._on_change = on_change
        self._routes: dict[str, TopicRoute] = {}
        self._lookups: SingleFlight[tuple[str, bool], TopicRoute] = SingleFlight()
        """Running lookups by topic and whether a default route will do."""
        self._outages = Outages(logger)
        self._brokers: dict[str, dict[int, str]] = {}
        """By broker name and broker id; replaced as a whole."""

    def known(self, topic: str) -> TopicRoute | None:
        """Return the cached route, which may be a default route, or None. Sends no request."""
        return self._routes.get(topic)

    async def find(self, topic: str, timeout_ms: float = NAMESRV_TIMEOUT_MS) -> TopicRoute:
        """Return the topic's own route, looked up unless cached. TopicNotFound."""
        route = self._routes.get(topic)
        return route if route is not None and not route.is_default else await self.refresh(topic, timeout_ms)

    async def find_all(self, topics: Iterable[str]) -> None:
        """Look up the routes of these topics concurrently. Missing topics are skipped."""

        async def find(topic: str) -> None:
            with suppress(TopicNotFound):
                await self.find(topic)

        await asyncio.gather(*map(find, topics))

    async def find_for_sending(self, topic: str, timeout_ms: float = 2 * NAMESRV_TIMEOUT_MS) -> TopicRoute:
        """Return a route with a write queue: the topic's own, else the default route. TopicNotFound."""
        route = self._routes.get(topic)
        if route is None or not route.write_queues:
            route = await self._shared_lookup(topic, lambda: self._look_up_for_sending(topic), timeout_ms, to_send=True)
        if not route.write_queues:
            without = ", ".join(sorted(name for name, addresses in route.brokers.items() if MASTER_ID not in addresses))
            reason = f"no master of {without} is registered" if without else "see its `perm` in updateTopic"
            raise TopicNotFound(f"topic {topic} has no queue with write permission: {reason}", subject=topic)
        return route

    async def refresh(self, topic: str, timeout_ms: float = NAMESRV_TIMEOUT_MS) -> TopicRoute:
        """Look up the topic's own route now. On RemotingError or TopicNotFound the cached route stays."""
        return await self._shared_lookup(topic, lambda: self._look_up(topic), timeout_ms)

    def close(self) -> None:
        self._lookups.close()

    async def refresh_all(self) -> None:
        for topic, route in list(self._routes.items()):
            try:
                await self.refresh(topic)
            except TopicNotFound as error:
                if not route.is_default:
                    self._outages.failed(f"refresh of the route of topic {topic}", error)
            except MQError as error:
                self._outages.failed("refresh of the routes", error)
                return
            else:
                self._outages.succeeded(f"refresh of the route of topic {topic}")
        self._outages.succeeded("refresh of the routes")

    @property
    def brokers(self) -> dict[str, dict[int, str]]:
        return self._brokers

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        return self._brokers.get(broker_name, {}).get(broker_id)

    async def _request(self, topic: str) -> TopicRouteData:
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
        response = await self.name_servers.invoke(request)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(
                f"no name server knows a route for topic {topic}: create it with `rucola admin updateTopic`",
                subject=topic,
            )
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, "the name server")
        return decode_body(TopicRouteData, response.body)

    async def _shared_lookup(
        self,
        topic: str,
        look_up: Callable[[], Coroutine[Any, Any, TopicRoute]],
        timeout_ms: float,
        *,
        to_send: bool = False,
    ) -> TopicRoute:
        purpose = f"cannot look up the route of topic {topic}"
        try:
            return await self._lookups.run((topic, to_send), look_up, Deadline(timeout_ms), purpose)
        except TimeoutError:
            raise RemotingTimeout(f"{purpose}: no name server answered within {timeout_ms:.0f} ms") from None

    async def _look_up(self, topic: str) -> TopicRoute:
        route = topic_route(topic, await self._request(topic))
        self._cache(route)
        return route

    async def _look_up_for_sending(self, topic: str) -> TopicRoute:
        try:
            return await self.refresh(topic)
        except TopicNotFound as not_found:
            try:
                default = topic_route(AUTO_CREATE_TOPIC, await self._request(AUTO_CREATE_TOPIC))
            except TopicNotFound:
                raise not_found from None
            route = default_topic_route(topic, default)
            self._cache(route)
            return route

    def _cache(self, route: TopicRoute) -> None:
        if self._routes.get(route.topic) == route:
            return
        self._routes.pop(route.topic, None)
        self._routes[route.topic] = route  # moved to the end, so that its addresses override older ones below
        brokers: dict[str, dict[int, str]] = {}
        for cached in self._routes.values():
            brokers.update(cached.brokers)
        self._brokers = brokers
        self._on_change(route)
