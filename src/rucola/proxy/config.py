"""Settings of a proxy, by the keys of a broker's configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rucola import settings
from rucola.broker.config import GRPC_SERVER_PORT
from rucola.remoting.budget import ConnectionLimits
from rucola.remoting.exposure import LOOPBACK
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.remoting.tls_config import TlsConfig, with_tls_file
from rucola.settings import Port


@dataclass(slots=True, frozen=True)
class ProxyConfig:
    bind_address: str = LOOPBACK
    """Address on which the proxy listens; other machines need TLS and accounts, or insecure=true."""
    grpc_server_port: Port = GRPC_SERVER_PORT
    """Port on which the proxy listens; 0 selects a free port."""
    insecure: bool = False
    """Whether to serve other machines without TLS and accounts. Only for a network of trusted machines."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    connection_limits: ConnectionLimits = field(default_factory=lambda: ConnectionLimits(reserved_descriptors=64))
    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    """PROM serves metrics to Prometheus over HTTP; see docs/metrics.md."""
    metrics_prom_exporter_host: str = LOOPBACK
    """Address of the metrics endpoint. Any other than 127.0.0.1 needs mutual TLS, or insecure=true."""
    metrics_prom_exporter_port: Port = 5559
    """Port of the metrics endpoint, the first of several workers; the next one has the next port. 0 for free ports."""

    def __post_init__(self) -> None:
        settings.check(self)


def from_properties(properties: Mapping[str, str]) -> ProxyConfig:
    """Parse a configuration file. ConfigError names a bad key."""
    properties = with_tls_file(properties)
    settings.without_effect((ProxyConfig,), (), properties)
    return settings.fill(ProxyConfig, properties)
