"""Settings of a name server, by the keys of Apache's namesrv.conf.

Corresponds to `NamesrvConfig` of Apache RocketMQ 4.9.8. Deliberate difference: a key that neither has is an error,
while Apache ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rucola import settings
from rucola.remoting.budget import ConnectionLimits
from rucola.remoting.exposure import LOOPBACK
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.remoting.netty_settings import NETTY_SERVER_SETTINGS
from rucola.remoting.tls_config import TlsConfig, with_tls_file
from rucola.settings import Bytes, Count, Port, Seconds

WITHOUT_EFFECT: Final = NETTY_SERVER_SETTINGS.keys() | {"clusterTest", "productEnvName"}
"""Keys of Apache's namesrv.conf that have no meaning here."""

_FIXED: Final = {
    "aclEnable", "auditLogMaxFiles", "auditLogMaxSize", "auditLogPath", "bindAddress", "configBlackList",
    "configStorePath", "insecure", "kvConfigPath", "listenPort", "metricsExporterType", "metricsPromExporterHost",
    "metricsPromExporterPort", "rocketmqHome",
}  # fmt: skip
"""Keys that need a restart."""


@dataclass(slots=True, frozen=True)
class NamesrvConfig:
    bind_address: str = LOOPBACK
    """Address on which the name server listens; other machines need TLS and access control, or insecure=true."""
    listen_port: Port = 9876
    """Port on which the name server listens; 0 selects a free port."""
    insecure: bool = False
    """Whether to serve other machines without TLS and access control. Only for a network of trusted machines."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    kv_config_path: Path | None = None
    """File of the key-value table; by default it is kept in memory. Set it if ordered topics are configured in it."""
    config_store_path: Path | None = None
    """File that a changed configuration is written to; by default a change lasts until the name server stops."""
    order_message_enable: bool = False
    """Whether routes include the order configuration of their topic."""
    server_channel_max_idle_time_seconds: Seconds = 120
    """Time after which an idle connection is closed; 0 never closes one."""
    max_topics_per_broker: Count = 100_000
    """Maximum number of topics in the registration of one broker."""
    max_topics: Count = 1_000_000
    """Maximum number of topics of all brokers (counted per broker name), about 300 bytes each. Others are refused."""
    max_brokers: Count = 1024
    """Maximum number of registered addresses of brokers, masters and slaves; further ones are refused."""
    max_kv_size: Bytes = 1024 * 1024
    """Maximum size of the key-value table: its names, keys and values in bytes. A put beyond it is refused."""
    max_kv_entries: Count = 10_000
    """Maximum number of values and namespaces in the key-value table. A put beyond it is refused."""
    acl_enable: bool = False
    """Whether requests need an account (docs/access-control.md); only admins register brokers, one address per id."""
    rocketmq_home: Path | None = None
    """Directory of conf/plain_acl.yml and conf/acl/; by default the environment variable ROCKETMQ_HOME."""
    audit_log_path: Path | None = None
    """File of the audit log; by default there is none."""
    audit_log_max_size: Bytes = 64 * 1024 * 1024
    """Size at which the audit log begins a new file."""
    audit_log_max_files: Count = 8
    """Number of files of the audit log; the oldest is deleted."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys, joined by `;`, that cannot be changed over the network."""
    connection_limits: ConnectionLimits = field(default_factory=lambda: ConnectionLimits(reserved_descriptors=64))

    # Metrics

    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    """PROM serves metrics to Prometheus over HTTP; see docs/metrics.md."""
    metrics_prom_exporter_host: str = LOOPBACK
    """Address of the metrics endpoint. Any other than 127.0.0.1 needs mutual TLS, or insecure=true."""
    metrics_prom_exporter_port: Port = 5558
    """Port of the metrics endpoint; 0 selects a free port."""

    def __post_init__(self) -> None:
        settings.check(self)

    @property
    def fixed_keys(self) -> set[str]:
        listed = {key.strip() for key in self.config_black_list.split(";")}
        return listed | _FIXED | settings.keys_of([ConnectionLimits, TlsConfig])

    @property
    def has_access_control(self) -> bool:
        return self.acl_enable


def from_properties(properties: Mapping[str, str]) -> tuple[NamesrvConfig, list[str]]:
    """Parse a namesrv.conf: return the settings, and Apache's keys without effect here. ConfigError names a bad key."""
    properties = with_tls_file(properties)
    unused = settings.without_effect((NamesrvConfig,), WITHOUT_EFFECT, properties)
    return settings.fill(NamesrvConfig, properties), unused
