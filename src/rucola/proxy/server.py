"""Proxy: the gRPC port, and its brokers."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from typing import Self

from rucola.admin.client import AdminClient
from rucola.broker.grpc.discovery import discovery_methods
from rucola.broker.grpc.routes import endpoints_of
from rucola.client.connection_options import ConnectionOptions
from rucola.http2.server import GrpcServer
from rucola.proxy.brokers import REQUEST_TIMEOUT_MS, Brokers
from rucola.proxy.config import ProxyConfig
from rucola.proxy.forward import Forwarder
from rucola.proxy.telemetry import TelemetryStreams
from rucola.remoting.addresses import address_of
from rucola.remoting.budget import ServerBudget
from rucola.remoting.exposure import check_exposure
from rucola.remoting.metrics_config import MetricsExporterType, metrics_extra, serve_metrics
from rucola.remoting.tls import ServerTls


class Proxy:
    """A gRPC server before the brokers that the name servers of `cluster` know: `async with Proxy(...)`.

    Its credentials, which may ask brokers for their settings, are needed if they have accounts; calls of clients have
    their own. `listening` is a socket to accept connections on, in place of the address of `config`.
    """

    def __init__(self, cluster: ConnectionOptions, config: ProxyConfig, listening: socket.socket | None = None) -> None:
        self.config = config
        self.brokers = Brokers(AdminClient(cluster, timeout_ms=REQUEST_TIMEOUT_MS))
        self._tls = ServerTls.of(config.tls)
        self._telemetry = TelemetryStreams(self.brokers)
        budget = ServerBudget(config.connection_limits)
        self.server = GrpcServer(
            config.bind_address, config.grpc_server_port, {}, tls=self._tls, budget=budget, listening=listening
        )
        self.metrics_port = 0
        """The port of the metrics endpoint, if there is one."""
        self._running = AsyncExitStack()

    @property
    def address(self) -> str:
        return address_of((self.config.bind_address, self.server.port))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Find the brokers, and listen. Raises MQError if no name server answers, or the port cannot be used."""
        check_exposure(
            "the proxy",
            self.config.bind_address,
            is_tls_enforced=self.config.tls.is_enforced,
            has_access_control=self.brokers.admin.connection.credentials is not None,
            insecure=self.config.insecure,
            access_control="credentials for brokers with accounts",
        )
        async with AsyncExitStack() as running:
            running.push_async_callback(self.brokers.admin.close)
            self.server.bind()
            running.push_async_callback(self.server.stop)
            running.push_async_callback(self.brokers.close)
            await self.brokers.start()
            forwarder = Forwarder(
                self.brokers, endpoints_of(self.config.bind_address, self.server.port), self._telemetry.end
            )
            self.server.methods = {
                **forwarder.methods(),
                **self._telemetry.methods(),
                **discovery_methods(lambda: bool(self.brokers.connected)),
            }
            if self.config.metrics_exporter_type is MetricsExporterType.PROM:
                with metrics_extra():
                    from rucola.proxy.metrics import ProxyCollector
                collector = ProxyCollector(self.server, self.brokers, forwarder, self._telemetry)
                metrics = await serve_metrics(self.config, collector.collect, self._tls)
                running.push_async_callback(metrics.stop)
                self.metrics_port = metrics.port
            running.push_async_callback(forwarder.close)
            await self.server.start()
            running.push_async_callback(self.server.stop)  # while the brokers are still connected
            running.callback(self._telemetry.end_all)
            running.callback(forwarder.answer_receives)
            running.push_async_callback(self.server.go_away)
            self._running = running.pop_all()

    async def stop(self) -> None:
        """Let open calls finish, and close all connections; idempotent."""
        await self._running.aclose()

    async def reload(self) -> None:
        """Read the certificates again. ConfigError; the last good ones stay in use."""
        if self._tls is not None:
            self._tls.reload()
