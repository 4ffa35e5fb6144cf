"""Namesrv: the name server behind its socket.

A broker that closes its connection is dropped at once; one that falls silent, when a scan finds it. Its connection is
then closed, so that it notices and registers again.

Answers to `NamesrvController` and `BrokerHousekeepingService` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.kv import KVConfig
from rucola.namesrv.remoting import Processors
from rucola.namesrv.routes import RouteTable
from rucola.remoting.connection import Connection
from rucola.remoting.server import RemotingServer

SCAN_INTERVAL_S = 10


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Namesrv:
    """A name server: `async with Namesrv("127.0.0.1", 0) as namesrv`, or `start` and `stop`.

    `host` and `port`, where given, come before those of `config`; with port 0 the system chooses one, and `port` holds
    it after the start. `routes` may be read on the server's event loop.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        config: NamesrvConfig | None = None,
        clock_ms: Callable[[], int] = _monotonic_ms,
    ) -> None:
        config = config or NamesrvConfig()
        config = dataclasses.replace(
            config,
            bind_address=config.bind_address if host is None else host,
            listen_port=config.listen_port if port is None else port,
        )
        self.routes = RouteTable()
        self._clock_ms = clock_ms
        self._kv_config = KVConfig(Path(config.kv_config_path) if config.kv_config_path else None)
        self._processors = Processors(self.routes, self._kv_config, config, clock_ms)
        self._server = RemotingServer(
            config.bind_address, config.listen_port, self._processors.by_code(), on_close=self._closed
        )
        self._scanning: asyncio.Task[None] | None = None

    @property
    def connections(self) -> list[Connection]:
        """The connections open now."""
        return list(self._server.connections)

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Read the key-value table and begin to serve. ConfigError, or RemotingError when the address is taken."""
        self._kv_config.load()
        await self._server.start()
        self._processors.config = dataclasses.replace(self._processors.config, listen_port=self.port)
        self._scanning = asyncio.create_task(self._scan())

    async def stop(self) -> None:
        """Close every connection and listen no more."""
        if self._scanning is not None:
            self._scanning.cancel()
            self._scanning = None
        await self._server.stop()

    async def __aenter__(self) -> Namesrv:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def drop_silent_brokers(self) -> None:
        """Drop the brokers that have not registered for too long, and close their connections."""
        for owner in self.routes.remove_expired(self._clock_ms()):
            if isinstance(owner, Connection):
                owner.close()

    async def _scan(self) -> None:
        while True:
            idle_s = self._processors.config.server_channel_max_idle_time_seconds
            await asyncio.sleep(min(SCAN_INTERVAL_S, idle_s / 2) if idle_s > 0 else SCAN_INTERVAL_S)
            self.drop_silent_brokers()
            if idle_s > 0:
                self._server.close_idle(idle_s * 1000)

    def _closed(self, connection: Connection) -> None:
        self.routes.remove_owned(connection)
