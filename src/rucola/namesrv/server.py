"""The name server: tables, services and adapters behind one socket.

A broker whose connection closes is removed at once. A broker that stops registering is removed by a scan, which also
closes its connection, so that the broker notices and registers again.

Corresponds to `NamesrvController` and `BrokerHousekeepingService` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rucola.access import Interceptor
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.kv import KVConfig
from rucola.namesrv.remoting import ConfigurationAdapter, KVAdapter, RouteAdapter
from rucola.namesrv.routes import RouteTable
from rucola.namesrv.services import ConfigurationService, KVService, RouteService
from rucola.remoting.connection import Connection
from rucola.remoting.endpoints import processor_table
from rucola.remoting.exposure import check_exposure
from rucola.remoting.server import RemotingServer
from rucola.remoting.tls import ServerTls

SCAN_INTERVAL_S = 10


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Namesrv:
    """A name server: `async with Namesrv("127.0.0.1", 0) as namesrv`, or `start` and `stop`.

    `host` and `port` override those of `config`, and `reload` reads `config_file` again. With port 0 the system chooses
    one, and `port` has it after the start. Each of `interceptors` sees every request (see `rucola.access`). `routes`
    may be read on the server's event loop. ConfigError if the certificates that `config.tls` names cannot be used.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        config: NamesrvConfig | None = None,
        config_file: Path | None = None,
        clock_ms: Callable[[], int] = _monotonic_ms,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        config = config or NamesrvConfig()
        config = dataclasses.replace(
            config,
            bind_address=config.bind_address if host is None else host,
            listen_port=config.listen_port if port is None else port,
        )
        self.routes = RouteTable()
        self._tls = ServerTls.of(config.tls)
        self._clock_ms = clock_ms
        self._kv_config = KVConfig(config.kv_config_path)
        self._configuration = ConfigurationService(config, config_file)
        adapters = (
            RouteAdapter(RouteService(self.routes, self._kv_config, self._configuration, clock_ms)),
            KVAdapter(KVService(self._kv_config)),
            ConfigurationAdapter(self._configuration),
        )
        endpoints = [endpoint for adapter in adapters for endpoint in adapter.endpoints()]
        self._server = RemotingServer(
            config.bind_address,
            config.listen_port,
            processor_table(endpoints, interceptors),
            tls=self._tls,
            on_close=self._closed,
        )
        self._scanning: asyncio.Task[None] | None = None

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._server.connections)

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Read the key-value table and listen. Raises ConfigError, or RemotingError if the address is in use."""
        config = self._configuration.config
        check_exposure(
            "the name server",
            config.bind_address,
            is_tls_enforced=config.tls.is_enforced,
            has_access_control=config.has_access_control,
            insecure=config.insecure,
        )
        self._kv_config.load()
        await self._server.start()
        self._configuration.config = dataclasses.replace(self._configuration.config, listen_port=self.port)
        self._scanning = asyncio.create_task(self._scan())

    async def reload(self) -> None:
        """Load the certificates, and read `config_file` again. ConfigError, and then what failed is unchanged."""
        self.reload_certificates()
        self._configuration.reload()

    def reload_certificates(self) -> None:
        """Load the certificates now, if there are any. ConfigError, and then the ones before stay in use."""
        if self._tls is not None:
            self._tls.reload()

    async def stop(self) -> None:
        """Stop listening and close every connection."""
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
        """Remove the brokers whose registration has expired, and close their connections."""
        for owner in self.routes.remove_expired(self._clock_ms()):
            if isinstance(owner, Connection):
                owner.close()

    async def _scan(self) -> None:
        while True:
            idle_s = self._configuration.config.server_channel_max_idle_time_seconds
            await asyncio.sleep(min(SCAN_INTERVAL_S, idle_s / 2) if idle_s > 0 else SCAN_INTERVAL_S)
            self.drop_silent_brokers()
            if idle_s > 0:
                self._server.close_idle(idle_s * 1000)

    def _closed(self, connection: Connection) -> None:
        self.routes.remove_owned(connection)
