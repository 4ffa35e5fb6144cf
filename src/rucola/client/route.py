"""Where a topic lives: routes from the name servers, kept and renewed.

Every name server knows every broker, so one answer is enough: the server that answered last is asked first, and the
next one when it fails or has not answered after a moment (`HEDGE_MS`). A server that hangs costs that moment once, and
is asked last from then on. A route, once known, is kept when name servers are away or have just started and know
nothing yet; only a newer route takes its place.

Concurrent callers that need the route of one topic share one lookup, and each waits for as long as its own timeout
allows. The lookup goes on without them, so that callers with less time than it takes find its result later.

From a route follow

    write queues   of every broker name that allows writing and has a master, 0 .. writeQueueNums - 1
    read queues    of every broker name that allows reading, 0 .. readQueueNums - 1

both ordered by broker name and queue id. Where the route carries an order configuration (`broker-a:4;broker-b:4`),
that alone says what the write queues are.

To a topic that does not exist yet one sends along the route of TBW102, the topic of every broker that makes topics
on demand: such a route is `borrowed`. It is exchanged for the topic's own as soon as a refresh finds one.

Answers to `MQClientInstance.updateTopicRouteInfoFromNameServer` and `TopicPublishInfo` of Apache RocketMQ 4.9.8.
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
from rucola.errors import BrokerError, ConfigError, MQError, RemotingConnectError, RemotingTimeout, TopicNotFound
from rucola.message.topics import AUTO_CREATE_TOPIC
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.queue import MessageQueue
from rucola.protocol.route import MASTER_ID, GetRouteInfoRequestHeader, TopicRouteData
from rucola.protocol.topic import PERM_READ, PERM_WRITE
from rucola.remoting.client import RemotingClient
from rucola.remoting.deadline import Deadline
from rucola.remoting.single_flight import SingleFlight

logger = logging.getLogger(__name__)

DEFAULT_TOPIC_QUEUE_NUMS = 4
"""How many queues a topic gets that is made by sending to it; also sent as `defaultTopicQueueNums`."""

NAMESRV_TIMEOUT_MS = 3000
HEDGE_MS = 500
"""How long a name server may take before the next one is asked as well."""


class TopicRoute(msgspec.Struct, frozen=True):
    """What a client needs of a topic's route. `brokers` maps broker name and broker id to "host:port"."""

    topic: str
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]]
    is_default: bool = False


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """The route of `topic` that a name server's answer describes."""
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
    """The route by which to send to `topic` while it does not exist, from the route of TBW102."""
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
    return tuple(MessageQueue(topic, name, queue_id) for name, count in counts for queue_id in range(count))


def _order_conf(topic: str, conf: str) -> list[tuple[str, int]]:
    counts = []
    for part in conf.split(";"):
        name, separator, count = part.partition(":")
        if separator and count.isdigit():
            counts.append((name, int(count)))
        else:
            logger.warning(
                "topic %s: its order configuration %r holds %r, which is not broker:count", topic, conf, part
            )
    return counts


class NameServers:
    """The name servers of a cluster, asked by hedged requests.

    `addresses` reads "host:port;host:port". ConfigError when it names none.
    """

    def __init__(self, addresses: str, remoting: RemotingClient) -> None:
        self.addresses = [address for part in addresses.replace(",", ";").split(";") if (address := part.strip())]
        if not self.addresses:
            raise ConfigError("no name server is named: write namesrv='host:9876;host:9876' or set NAMESRV_ADDR")
        self._remoting = remoting
        self._first = random.randrange(len(self.addresses))

    async def invoke(self, command: RemotingCommand, timeout_ms: float = NAMESRV_TIMEOUT_MS) -> RemotingCommand:
        """Return the first answer, whatever its code. RemotingConnectError names every server's failure."""
        deadline = Deadline(timeout_ms)
        count = len(self.addresses)
        turns = [turn % count for turn in range(self._first, self._first + count)]

        def ask(address: str) -> Callable[[], Coroutine[Any, Any, RemotingCommand]]:
            return lambda: self._remoting.invoke(address, command, deadline.left_ms)

        try:
            index, answer = await hedged(
                [ask(self.addresses[turn]) for turn in turns], min(HEDGE_MS, timeout_ms / (count + 1))
            )
        except ExceptionGroup as group:
            reasons = "; ".join(map(str, group.exceptions))
            raise RemotingConnectError(f"no name server answers: {reasons}") from None
        self._first = turns[index]
        return answer


class TopicRoutes:
    """The routes of every topic that a client deals with, from the name servers.

    `on_change` is called with each route that is new or differs from the one before.
    """

    def __init__(self, name_servers: NameServers, on_change: Callable[[TopicRoute], None]) -> None:
        self.name_servers = name_servers
        self._on_change = on_change
        self._routes: dict[str, TopicRoute] = {}
        self._lookups: SingleFlight[tuple[str, bool], TopicRoute] = SingleFlight()
        self._brokers: dict[str, dict[int, str]] = {}

    def known(self, topic: str) -> TopicRoute | None:
        """The route at hand, without asking anybody; it may be borrowed."""
        return self._routes.get(topic)

    async def find(self, topic: str, timeout_ms: float = NAMESRV_TIMEOUT_MS) -> TopicRoute:
        """Return the topic's own route, looked up if it is not at hand. TopicNotFound if no name server knows one."""
        route = self._routes.get(topic)
        return route if route is not None and not route.is_default else await self.refresh(topic, timeout_ms)

    async def find_all(self, topics: Iterable[str]) -> None:
        """Look up the routes of these topics, concurrently. Topics that do not exist are skipped."""

        async def find(topic: str) -> None:
            with suppress(TopicNotFound):
                await self.find(topic)

        await asyncio.gather(*map(find, topics))

    async def find_for_sending(self, topic: str, timeout_ms: float = 2 * NAMESRV_TIMEOUT_MS) -> TopicRoute:
        """Return a route with a queue to write to: the topic's own, or else one borrowed from TBW102.

        TopicNotFound if the topic does not exist and brokers create none on demand, or if none of its queues may be
        written to.
        """
        route = self._routes.get(topic)
        if route is None or not route.write_queues:
            route = await self._share(topic, lambda: self._look_up_for_sending(topic), timeout_ms, to_send=True)
        if not route.write_queues:
            alone = ", ".join(sorted(name for name, addresses in route.brokers.items() if MASTER_ID not in addresses))
            why = f"the master of {alone} is not there" if alone else "see its `perm` in updateTopic"
            raise TopicNotFound(f"topic {topic} has no queue that may be written to: {why}")
        return route

    async def refresh(self, topic: str, timeout_ms: float = NAMESRV_TIMEOUT_MS) -> TopicRoute:
        """Look up the topic's own route now, or wait for a lookup that runs already.

        On an error (RemotingError, TopicNotFound) the route at hand stays.
        """
        return await self._share(topic, lambda: self._look_up(topic), timeout_ms)

    def close(self) -> None:
        """Cancel the lookups that still run."""
        self._lookups.close()

    async def refresh_all(self) -> None:
        """Renew every route at hand. What cannot be renewed stays and is tried again next time."""
        for topic, route in list(self._routes.items()):
            try:
                await self.refresh(topic)
            except TopicNotFound as error:
                if not route.is_default:
                    logger.warning("the route of a known topic is gone from the name servers: %s", error)
            except MQError as error:
                logger.warning("cannot renew the route of topic %s: %s", topic, error)
                return

    @property
    def brokers(self) -> dict[str, dict[int, str]]:
        """The addresses of every broker in the routes at hand, by broker name and broker id."""
        return self._brokers

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of a broker; None where no route at hand names it."""
        return self._brokers.get(broker_name, {}).get(broker_id)

    async def _ask(self, topic: str) -> TopicRouteData:
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
        answer = await self.name_servers.invoke(request)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(
                f"no name server knows a route for topic {topic}: create it with `rucola admin updateTopic`"
            )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, "the name server")
        return decode_body(TopicRouteData, answer.body)

    async def _share(
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
        route = topic_route(topic, await self._ask(topic))
        self._keep(route)
        return route

    async def _look_up_for_sending(self, topic: str) -> TopicRoute:
        try:
            return await self.refresh(topic)
        except TopicNotFound as not_found:
            try:
                default = topic_route(AUTO_CREATE_TOPIC, await self._ask(AUTO_CREATE_TOPIC))
            except TopicNotFound:
                raise not_found from None
            route = default_topic_route(topic, default)
            self._keep(route)
            return route

    def _keep(self, route: TopicRoute) -> None:
        if self._routes.get(route.topic) == route:
            return
        self._routes.pop(route.topic, None)
        self._routes[route.topic] = route  # the newest last, so that its addresses win
        brokers: dict[str, dict[int, str]] = {}
        for kept in self._routes.values():
            brokers.update(kept.brokers)
        self._brokers = brokers
        self._on_change(route)
