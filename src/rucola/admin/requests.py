"""Asking: the requests of an AdminClient, and what name servers say about where to put them.

Requests about the whole cluster go to the name servers until one answers; changes go to every name server, since they
do not talk to each other. Requests about queues and messages go to the master of every broker name. Several servers are
always asked concurrently, so that one that hangs takes its own timeout and not one for each server behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from rucola.client.hedging import hedged
from rucola.client.route import HEDGE_MS, NameServers
from rucola.errors import BrokerError, ConfigError, MQError, TopicNotFound
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.protocol.queue import MessageQueue
from rucola.protocol.route import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    GetRouteInfoRequestHeader,
    TopicList,
    TopicRouteData,
)
from rucola.remoting.client import RemotingClient

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 5000
CONCURRENT_REQUESTS = 64


class Asking:
    """Connections to a cluster, and its map. The parts of AdminClient stand on it."""

    def __init__(self, namesrv: str, *, timeout_ms: float = REQUEST_TIMEOUT_MS) -> None:
        self.timeout_ms = timeout_ms
        self._remoting = RemotingClient()
        self._name_servers = NameServers(namesrv, self._remoting)

    @property
    def namesrv(self) -> str:
        """The name servers, "host:port;host:port"."""
        return ";".join(self._name_servers.addresses)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._remoting.close()

    # The map of the cluster.

    async def examine_topic_route(self, topic: str) -> TopicRouteData:
        """The brokers that have the topic, and how many queues each offers."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        try:
            answer = await self._ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFound(f"no name server knows a route for topic {topic}") from None
            raise
        return decode_body(TopicRouteData, answer.body)

    async def examine_cluster_info(self) -> ClusterInfo:
        """All clusters, their broker names, and the addresses of each."""
        return decode_body(ClusterInfo, (await self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def fetch_all_topic_list(self) -> list[str]:
        """The names of all topics, sorted."""
        answer = await self._ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_body(TopicList, answer.body).topic_list)

    async def fetch_user_topic_list(self) -> list[str]:
        """The names of all topics but those that groups have for retries and dead letters, sorted."""
        topics = await self.fetch_all_topic_list()
        return [topic for topic in topics if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]

    async def fetch_consumer_groups(self) -> list[str]:
        """The groups that have a retry topic, which is every group that consumed in clustering mode; sorted."""
        topics = await self.fetch_all_topic_list()
        return sorted(topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX))

    async def fetch_masters_of_cluster(self, cluster: str) -> dict[str, str]:
        """The address of every master of a cluster, by broker name. ConfigError where no cluster has the name."""
        info = await self.examine_cluster_info()
        if cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError(f"there is no cluster {cluster}; the name server knows {known}")
        return masters_of(info.broker_addr_table[name] for name in sorted(info.cluster_addr_table[cluster]))

    async def fetch_broker_name(self, address: str) -> str:
        """The name of the broker at an address. ConfigError where no broker is registered there."""
        for data in (await self.examine_cluster_info()).broker_addr_table.values():
            if address in data.broker_addrs.values():
                return data.broker_name
        raise ConfigError(f"no broker is registered at {address}")

    async def fetch_broker_addr(self, name: str) -> str:
        """The address of the master with a broker name. ConfigError where there is none."""
        brokers = (await self.examine_cluster_info()).broker_addr_table
        data = brokers.get(name)
        if data is None or MASTER_ID not in data.broker_addrs:
            known = ", ".join(sorted(brokers)) or "none"
            raise ConfigError(f"there is no broker {name} with a master; the name server knows {known}")
        return data.broker_addrs[MASTER_ID]

    # Asking.

    async def _ask(
        self, address: str, code: RequestCode, header: Header | None = None, body: bytes = b"", *, extra_ms: float = 0
    ) -> RemotingCommand:
        """The answer of one server; `extra_ms` is how much longer than usual it may take."""
        request = RemotingCommand.request(code, header, body)
        return await self._remoting.invoke_ok(address, request, self.timeout_ms + extra_ms)

    async def _ask_namesrv(self, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        """The answer of the first name server that gives one; an error code is an answer."""
        answer = await self._name_servers.invoke(RemotingCommand.request(code, header), self.timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, "the name server")
        return answer

    async def _tell_namesrvs(self, code: RequestCode, header: Header | None = None, body: bytes = b"") -> None:
        """Put a change to every name server; the first failure is raised when all have been told."""
        await settled(self._ask(address, code, header, body) for address in self._name_servers.addresses)

    async def _ask_any(
        self, addresses: Sequence[str], code: RequestCode, header: Header, *, extra_ms: float = 0
    ) -> RemotingCommand:
        """Return the answer of the first server that has one; ask the next if one refuses, fails or is slow.

        If none has one, the failure of a server that could not be asked is raised before a refusal: what that server
        knows is not known.
        """
        if not addresses:
            raise ConfigError("no broker is registered that could be asked")

        def ask(address: str) -> Callable[[], Coroutine[Any, Any, RemotingCommand]]:
            return lambda: self._ask(address, code, header, extra_ms=extra_ms)

        try:
            _, answer = await hedged([ask(address) for address in addresses], HEDGE_MS)
        except ExceptionGroup as failures:
            unasked = (error for error in failures.exceptions if not isinstance(error, BrokerError))
            raise next(unasked, failures.exceptions[-1]) from None
        return answer


def addresses_of(brokers: Iterable[BrokerData]) -> list[str]:
    """One address for every broker name: its master's, or that of a slave where there is no master."""
    return [
        data.broker_addrs.get(MASTER_ID) or data.broker_addrs[min(data.broker_addrs)]
        for data in brokers
        if data.broker_addrs
    ]


def masters_of(brokers: Iterable[BrokerData]) -> dict[str, str]:
    """The master's address by broker name, where there is a master."""
    return {data.broker_name: data.broker_addrs[MASTER_ID] for data in brokers if MASTER_ID in data.broker_addrs}


def first(pair: tuple[MessageQueue, Any]) -> MessageQueue:
    """The queue of a pair, to sort by."""
    return pair[0]


async def each(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results, in order; after the first failure the other requests are cancelled."""
    bound = asyncio.Semaphore(CONCURRENT_REQUESTS)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_bounded(request, bound)) for request in requests]
    except* MQError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def settled(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results, in order; the first failure is raised when every request has ended. For changes."""
    bound = asyncio.Semaphore(CONCURRENT_REQUESTS)
    results = await asyncio.gather(*(_bounded(request, bound) for request in requests), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast(list[T], results)


async def _bounded(request: Coroutine[Any, Any, T], bound: asyncio.Semaphore) -> T:
    async with bound:
        return await request
