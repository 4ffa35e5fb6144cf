"""Observability part: the metrics endpoint for Prometheus."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import chain

from rucola.broker.assembly.access import Access
from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.serving import Serving
from rucola.remoting.metrics_config import MetricsExporterType, metrics_extra, serve_metrics


async def start_metrics(
    environment: BrokerEnvironment,
    access: Access,
    serving: Serving,
    connections: Connections,
    running: AsyncExitStack,
) -> None:
    """Serve /metrics if metricsExporterType is PROM. Raises ConfigError without the extra `metrics`."""
    config = environment.config
    if config.metrics_exporter_type is not MetricsExporterType.PROM:
        return
    with metrics_extra():
        from rucola.broker.election_metrics import ElectionCollector
        from rucola.broker.metrics import BrokerCollector
        from rucola.remoting.metrics_server import Collect
    collector = BrokerCollector(
        serving.state,
        serving.services.runtime_info.figures,
        serving.services.roles,
        environment.store_config.store_path_root_dir,
        connections.budget,
        connections.hold,
        access.figures,
    )
    collects: list[Collect] = [collector.collect]
    if environment.coordination is not None:
        figures = environment.coordination.figures
        collects.append(ElectionCollector(config.broker_cluster_name, config.broker_name, figures).collect)
    host, port = config.metrics_prom_exporter_host, config.metrics_prom_exporter_port
    config.metrics_prom_exporter_port = environment.ports.hold(host, port)
    metrics = await serve_metrics(
        config, lambda: chain.from_iterable(collect() for collect in collects), environment.tls
    )
    running.push_async_callback(metrics.stop)
    config.metrics_prom_exporter_port = metrics.port
