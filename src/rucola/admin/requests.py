"""Requests to name servers and brokers, shared by all parts of an AdminClient.

Name servers do not replicate to each other: queries go to the first that responds, changes to all of them. Requests
about queues and messages go to the master of every broker name. Requests to several servers run concurrently, so that
unresponsive servers cost one timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from rucola.client.connection_options import ConnectionOptions
from rucola.client.hedging import hedged
from rucola.client.route import HEDGE_MS, NameServers
from rucola.domain.queue import MessageQueue
from rucola.domain.role import MASTER_ID
from rucola.domain.route import BrokerData
from rucola.errors import BrokerError, ConfigError, MQError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header, RemotingCommand
from rucola.remoting.client import RemotingClient

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 5000
CONCURRENT_REQUESTS = 64


class AdminRequests:
    """The connections of an AdminClient. `timeout_ms` bounds each request, connecting included."""

    def __init__(self, connection: ConnectionOptions, timeout_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self.connection = connection.complete()
        # Shared with `_name_servers`, so that each server has one connection.
        self._remoting = RemotingClient(tls=self.connection.tls, credentials=self.connection.credentials)
        self._name_servers = NameServers(self.connection.namesrv, self._remoting)
        self.brokers: Collection[str] | None = None
        """The addresses of brokers that may be asked, besides name servers; None for any."""

    @property
    def namesrv(self) -> str:
        return ";".join(self.name_servers)

    @property
    def name_servers(self) -> list[str]:
        return self._name_servers.addresses

    async def close(self) -> None:
        await self._remoting.close()

    async def invoke(
        self, address: str, code: RequestCode, header: Header | None = None, body: bytes = b"", *, extra_ms: float = 0
    ) -> RemotingCommand:
        """Return the response of one server; `extra_ms` is added to the timeout. BrokerError for an error code."""
        return await self.invoke_command(address, RemotingCommand.request(code, header, body), extra_ms=extra_ms)

    async def invoke_command(self, address: str, request: RemotingCommand, *, extra_ms: float = 0) -> RemotingCommand:
        self._check(address)
        return await self._remoting.invoke_ok(address, request, self.timeout_ms + extra_ms)

    async def invoke_unchecked(self, address: str, code: RequestCode, header: Header) -> RemotingCommand:
        """Return the response of one server, with any code."""
        self._check(address)
        return await self._remoting.invoke(address, RemotingCommand.request(code, header), self.timeout_ms)

    def _check(self, address: str) -> None:
        if self.brokers is not None and address not in self.brokers and address not in self.name_servers:
            raise ConfigError(f"no registered broker has the address {address}", subject=address)

    async def invoke_any(
        self, addresses: Sequence[str], code: RequestCode, header: Header, *, extra_ms: float = 0
    ) -> RemotingCommand:
        """Return the first successful response.

        Tries the next server if one refuses, fails or is slow. If all fail, the error of an unreachable server takes
        precedence over a refusal, because that server might have accepted. ConfigError if `addresses` is empty.
        """
        if not addresses:
            raise ConfigError("no registered broker can answer this request")

        def attempt(address: str) -> Callable[[], Coroutine[Any, Any, RemotingCommand]]:
            return lambda: self.invoke(address, code, header, extra_ms=extra_ms)

        try:
            _, response = await hedged([attempt(address) for address in addresses], HEDGE_MS)
        except ExceptionGroup as failures:
            # Errors are in the order in which they occurred: raise the first unreachable server, or the last refusal.
            unreachable = (error for error in failures.exceptions if not isinstance(error, BrokerError))
            raise next(unreachable, failures.exceptions[-1]) from None
        return response

    async def invoke_name_server(self, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        """Return the first name server's response. BrokerError for an error code."""
        response = await self._name_servers.invoke(RemotingCommand.request(code, header), self.timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, "the name server")
        return response

    async def invoke_all_name_servers(
        self, code: RequestCode, header: Header | None = None, body: bytes = b""
    ) -> list[RemotingCommand]:
        """Return every name server's response, in order, or raise the first failure after all have ended."""
        return await gather_to_completion(self.invoke(address, code, header, body) for address in self.name_servers)


def addresses_of(brokers: Iterable[BrokerData]) -> list[str]:
    """Return one address per broker name: the master's, else a slave's."""
    return [
        data.broker_addrs.get(MASTER_ID) or data.broker_addrs[min(data.broker_addrs)]
        for data in brokers
        if data.broker_addrs
    ]


def masters_of(brokers: Iterable[BrokerData]) -> dict[str, str]:
    """Return the master's address by broker name; broker names without a master are left out."""
    return {data.broker_name: data.broker_addrs[MASTER_ID] for data in brokers if MASTER_ID in data.broker_addrs}


def queue_of_item(item: tuple[MessageQueue, Any]) -> MessageQueue:
    return item[0]


async def gather_fail_fast(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order, or cancel the rest and raise the first failure: for queries."""
    limit = asyncio.Semaphore(CONCURRENT_REQUESTS)
    # A TaskGroup raises a group of errors; callers expect a single MQError.
    try:
        with _closing(requests) as waiting:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_within(limit, request)) for request in waiting]
    except* MQError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def gather_to_completion(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order, or raise the first failure once all have ended: for changes."""
    limit = asyncio.Semaphore(CONCURRENT_REQUESTS)
    with _closing(requests) as waiting:
        results = await asyncio.gather(*(_within(limit, request) for request in waiting), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast(list[T], results)


@contextmanager
def _closing(requests: Iterable[Coroutine[Any, Any, T]]) -> Iterator[list[Coroutine[Any, Any, T]]]:
    """Close requests that were not awaited, since their tasks were cancelled first: others have ended by then."""
    waiting = list(requests)
    try:
        yield waiting
    finally:
        for request in waiting:
            request.close()


async def _within(limit: asyncio.Semaphore, request: Coroutine[Any, Any, T]) -> T:
    async with limit:
        return await request
