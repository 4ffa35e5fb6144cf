"""The name server: tables, services and adapters behind one socket.

A broker whose connection closes is removed at once. A scan removes brokers that stopped registering and closes their
connections, so that they notice and register again.

Corresponds to `NamesrvController` and `BrokerHousekeepingService` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rucola.access import Interceptor
from rucola.acl.access_control import AccessControl, PlainAccounts
from rucola.acl.audit_log import AuditLog
from rucola.acl.plain_acl_files import REFRESH_INTERVAL_MS, PlainAclFiles, acl_home
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.kv import KVConfig
from rucola.namesrv.remoting import ConfigurationAdapter, KVAdapter, RouteAdapter
from rucola.namesrv.routes import RouteTable
from rucola.namesrv.services import ConfigurationService, RouteService
from rucola.remoting.access_gate import AccessGate
from rucola.remoting.budget import ServerBudget
from rucola.remoting.challenges import CHALLENGE_ENDPOINT
from rucola.remoting.connection import Connection
from rucola.remoting.endpoints import processor_table
from rucola.remoting.exposure import check_exposure
from rucola.remoting.metrics_config import MetricsExporterType, metrics_extra, serve_metrics
from rucola.remoting.server import RemotingServer
from rucola.remoting.tls import ServerTls
from rucola.slices import in_slices

if TYPE_CHECKING:
    from rucola.remoting.metrics_server import MetricsServer

logger = logging.getLogger(__name__)

SCAN_INTERVAL_S = 10


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Access:
    def __init__(self, config: NamesrvConfig) -> None:
        self.files = PlainAclFiles(acl_home(config.rocketmq_home), _wall_clock_ms) if config.acl_enable else None
        self.control = AccessControl(PlainAccounts(self.files)) if self.files is not None else None
        path, size, count = config.audit_log_path, config.audit_log_max_size, config.audit_log_max_files
        self.audit = AuditLog(path, size, count, _wall_clock_ms) if path is not None else None
        self.gate = AccessGate(self.control, self.audit) if self.control is not None or self.audit is not None else None


async def _refresh(files: PlainAclFiles) -> None:
    while True:
        await asyncio.sleep(REFRESH_INTERVAL_MS / 1000)
        try:
            await asyncio.to_thread(files.refresh)
        except Exception:
            logger.exception("access control: the accounts could not be read; the last good ones apply")


class Namesrv:
    """A name server: `async with Namesrv("127.0.0.1", 0) as namesrv`, or `start` and `stop`.

    `host` and `port` override `config`; `reload` reads `config_file` again. With port 0, `port` is chosen at start.
    Each of `interceptors` sees every request (see `rucola.access`). `routes` may be read on the server's event loop.
    ConfigError if the certificates of `config.tls` cannot be used.
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
        self._access = _Access(config)
        self._tls = ServerTls.of(config.tls)
        self._clock_ms = clock_ms
        configuration = self._configuration = ConfigurationService(config, config_file)
        self._kv_config = KVConfig(config.kv_config_path, lambda: configuration.config)
        self.routes = RouteTable(lambda: configuration.config, keeps_addresses=config.acl_enable, on_gone=self._sweep)
        self._service = RouteService(self.routes, self._kv_config, self._configuration, clock_ms)
        self._budget = ServerBudget(config.connection_limits)
        adapters = (
            RouteAdapter(self._service),
            KVAdapter(self._kv_config),
            ConfigurationAdapter(self._configuration),
        )
        endpoints = [CHALLENGE_ENDPOINT, *(endpoint for adapter in adapters for endpoint in adapter.endpoints())]
        chain = [*interceptors, *([self._access.control] if self._access.control is not None else [])]
        self._server = RemotingServer(
            config.bind_address,
            config.listen_port,
            processor_table(endpoints, chain, gate=self._access.gate),
            tls=self._tls,
            on_close=self._closed,
            budget=self._budget,
        )
        self._scanning: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._metrics: MetricsServer | None = None

    @property
    def connections(self) -> list[Connection]:
        return list(self._server.connections)

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def metrics_port(self) -> int:
        """The port of the metrics endpoint; 0 if there is none."""
        return 0 if self._metrics is None else self._metrics.port

    async def start(self) -> None:
        """Read the key-value table and listen. ConfigError, or RemotingError if an address is in use."""
        config = self._configuration.config
        check_exposure(
            "the name server",
            config.bind_address,
            is_tls_enforced=config.tls.is_enforced,
            has_access_control=config.has_access_control,
            insecure=config.insecure,
        )
        # Prepare everything that requests need before the port opens.
        try:
            self._kv_config.load()
            if self._access.audit is not None:
                self._access.audit.open()
            await self._start_metrics(config)
            await self._server.start()
        except BaseException:
            await self.stop()
            raise
        self._configuration.config = dataclasses.replace(self._configuration.config, listen_port=self.port)
        self._scanning = asyncio.create_task(self._scan())
        if self._access.files is not None:
            self._refreshing = asyncio.create_task(_refresh(self._access.files))

    async def reload(self) -> None:
        """Load the certificates, and read `config_file` again. After ConfigError the failed part is unchanged."""
        self.reload_certificates()
        self._configuration.reload()

    def reload_certificates(self) -> None:
        """Load the certificates, if any. After ConfigError the previous ones stay in use."""
        if self._tls is not None:
            self._tls.reload()

    async def stop(self) -> None:
        if self._scanning is not None:
            self._scanning.cancel()
            self._scanning = None
        if self._refreshing is not None:
            self._refreshing.cancel()
            self._refreshing = None
        await self._server.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        if self._metrics is not None:
            await self._metrics.stop()
            self._metrics = None
        if self._access.audit is not None:
            await asyncio.to_thread(self._access.audit.close)

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

    def _sweep(self) -> None:
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(in_slices(self.routes.sweep_steps()))

    async def _start_metrics(self, config: NamesrvConfig) -> None:
        """Serve /metrics if enabled. ConfigError without the extra `metrics`, whose import is therefore local."""
        if config.metrics_exporter_type is not MetricsExporterType.PROM:
            return
        with metrics_extra():
            from rucola.namesrv.metrics import NamesrvCollector
        gate = self._access.gate
        collector = NamesrvCollector(
            self._server.connections,
            self.routes,
            self._service,
            self._budget,
            lambda: 0 if gate is None else gate.denied,
        )
        self._metrics = await serve_metrics(config, collector.collect, self._tls)

    async def _scan(self) -> None:
        while True:
            idle_s = self._configuration.config.server_channel_max_idle_time_seconds
            await asyncio.sleep(min(SCAN_INTERVAL_S, idle_s / 2) if idle_s > 0 else SCAN_INTERVAL_S)
            self.drop_silent_brokers()
            if idle_s > 0:
                await self._server.close_idle(idle_s * 1000)

    def _closed(self, connection: Connection) -> None:
        self.routes.remove_owned(connection)
