"""The metrics settings that brokers, name servers and proxies share, and the endpoint that follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from rucola.errors import ConfigError, missing_extra
from rucola.remoting.exposure import check_metrics_exposure
from rucola.remoting.tls import ServerTls
from rucola.remoting.tls_config import TlsConfig

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from rucola.remoting.metrics_server import MetricsServer


class MetricsExporterType(Enum):
    """Export of metrics."""

    DISABLE = 0
    PROM = 1
    """An HTTP endpoint that Prometheus scrapes."""


class MetricsConfig(Protocol):
    """The settings of a server that decide about its endpoint."""

    @property
    def metrics_prom_exporter_host(self) -> str: ...

    @property
    def metrics_prom_exporter_port(self) -> int: ...

    @property
    def insecure(self) -> bool: ...

    @property
    def tls(self) -> TlsConfig: ...


@contextmanager
def metrics_extra() -> Iterator[None]:
    """Import in this context what needs the extra `metrics`. ConfigError without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"metricsExporterType=PROM: {missing_extra(error, 'metrics')}") from None


async def serve_metrics(
    config: MetricsConfig,
    collect: Callable[[], Iterable[Metric | None]],
    tls: ServerTls | None,
    unready: Callable[[], str] = lambda: "",
) -> MetricsServer:
    """Serve /metrics, /ready and /live.

    Raises ConfigError if other machines must not reach it, RemotingError for an address in use.
    """
    from rucola.remoting.metrics_server import MetricsServer

    host = config.metrics_prom_exporter_host
    check_metrics_exposure(host, is_mutual_tls=config.tls.is_mutual, insecure=config.insecure)
    metrics = MetricsServer(host, config.metrics_prom_exporter_port, collect, tls, unready)
    await metrics.start()
    return metrics
