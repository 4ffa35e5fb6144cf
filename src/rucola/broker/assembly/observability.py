"""Observability part: the metrics endpoint for Prometheus."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import chain

from rucola.broker.assembly.access import Access
from rucola.broker.assembly.connections import Connections
from rucola.broker.assembly.environment import BrokerEnvironment
from rucola.broker.assembly.serving import Serving
from rucola.errors import ConfigError, missing_extra
from rucola.remoting.exposure import check_metrics_exposure
from rucola.remoting.metrics_config import MetricsExporterType


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
    try:
        from rucola.broker.election_metrics import ElectionCollector
        from rucola.broker.metrics import BrokerCollector
        from rucola.remoting.metrics_server import Collect, MetricsServer
    except ModuleNotFoundError as error:
        raise ConfigError(f"metricsExporterType=PROM: {missing_extra(error, 'metrics')}") from None
    collector = BrokerCollector(
        serving.state,
        serving.services.runtime_info.figures,
        serving.services.roles,
        environment.store_config.store_path_root_dir,
        connections.budget,
        connections.hold,
        access.figures,
    )
    host = config.metrics_prom_exporter_host
    check_metrics_exposure(host, is_mutual_tls=config.requires_client_certificates, insecure=config.insecure)
    collects: list[Collect] = [collector.collect]
    if environment.coordination is not None:
        figures = environment.coordination.figures
        collects.append(ElectionCollector(config.broker_cluster_name, config.broker_name, figures).collect)
    metrics = MetricsServer(
        host,
        environment.ports.hold(host, config.metrics_prom_exporter_port),
        lambda: chain.from_iterable(collect() for collect in collects),
        environment.tls,
    )
    await metrics.start()
    running.push_async_callback(metrics.stop)
    config.metrics_prom_exporter_port = metrics.port
