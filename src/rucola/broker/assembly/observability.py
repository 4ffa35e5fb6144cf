"""Observability part: the endpoint for Prometheus and for probes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import chain
from typing import TYPE_CHECKING

from rucola.broker.assembly.access import Access
from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.serving import Serving
from rucola.errors import RemotingError
from rucola.remoting.metrics_config import MetricsExporterType, metrics_extra, serve_metrics

if TYPE_CHECKING:
    from rucola.remoting.metrics_server import Collect, MetricsServer


class Observability:
    """The endpoint, if metricsExporterType is PROM. It says from the start on whether the broker is ready."""

    def __init__(self, environment: BrokerEnvironment, recovered: Callable[[], tuple[int, int]]) -> None:
        self._environment = environment
        self._recovered = recovered
        self._is_ready = False
        self._is_stopping = False
        self._server: MetricsServer | None = None
        self._failure: RemotingError | None = None

    async def open(self, running: AsyncExitStack) -> None:
        """Listen before the store is opened. Raises ConfigError without the extra `metrics`."""
        environment, config = self._environment, self._environment.config
        if config.metrics_exporter_type is not MetricsExporterType.PROM:
            return
        host, port = config.metrics_prom_exporter_host, config.metrics_prom_exporter_port
        with metrics_extra():
            try:
                config.metrics_prom_exporter_port = environment.ports.hold(host, port)
                self._server = await serve_metrics(config, tuple, environment.tls, self._unready)
            except RemotingError as error:
                self._failure = error  # for `serve`: first, the store says whether another broker has it
                return
        running.push_async_callback(self._server.stop)
        config.metrics_prom_exporter_port = self._server.port

    def serve(self, access: Access, serving: Serving, connections: Connections, running: AsyncExitStack) -> None:
        """Serve the metrics until `running` ends. Raises RemotingError if the address is in use."""
        if self._failure is not None:
            raise self._failure
        if self._server is None:
            return
        from rucola.broker.election_metrics import ElectionCollector
        from rucola.broker.metrics import BrokerCollector

        environment, config = self._environment, self._environment.config
        collector = BrokerCollector(
            serving.state,
            serving.services.runtime_info.figures,
            serving.services.roles,
            connections.budget,
            connections.hold,
            access.figures,
            serving.services.pending,
            None if (tls := environment.tls) is None else lambda: tls.expires_ms,
        )
        collects: list[Collect] = [collector.collect]
        if environment.coordination is not None:
            figures = environment.coordination.figures
            collects.append(ElectionCollector(config.broker_cluster_name, config.broker_name, figures).collect)
        self._server.collect = lambda: chain.from_iterable(collect() for collect in collects)
        running.push_async_callback(self._leave, self._server)

    def ready(self) -> None:
        self._is_ready = True

    async def _leave(self, server: MetricsServer) -> None:
        """Collect nothing more: the store is closed before the endpoint."""
        self._is_ready, self._is_stopping = False, True
        await server.clear()

    def _unready(self) -> str:
        if self._is_ready:
            return ""
        if self._is_stopping:
            return "stopping"
        done, end = self._recovered()
        return f"opening the store: the log is read up to {done}, and ends before {end}" if end else "starting"
