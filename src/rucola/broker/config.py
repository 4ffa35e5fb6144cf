"""BrokerConfig: the settings of a broker, with the keys of Apache's broker.conf.

A field has the name of its key in snake case (`broker_cluster_name` for `brokerClusterName`). Keys of the store are
fields of `rucola.store.config.StoreConfig`; `from_properties` distributes the keys of one file to both. Apache's keys
without a meaning here (thread pools, buffer pools) are accepted and reported as unused, so that an existing broker.conf
works unchanged.

Corresponds to `BrokerConfig` and `MessageStoreConfig` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rucola import settings
from rucola.errors import ConfigError, RemotingConnectError
from rucola.message import properties
from rucola.message.delay import parse_delay_levels
from rucola.message.host import encode_host
from rucola.protocol.route import MASTER_ID
from rucola.protocol.topic import PERM_READ, PERM_WRITE
from rucola.remoting.client import host_and_port
from rucola.store.config import StoreConfig


class MetricsExporterType(Enum):
    """Export of metrics."""

    DISABLE = 0
    PROM = 1
    """An HTTP endpoint that Prometheus scrapes."""


@dataclass(slots=True)
class BrokerConfig:
    """Name, addresses and behaviour of a broker. Times are in milliseconds.

    Defaults that depend on others:

        broker_ip1 (announced to clients)     bind_address, or an address of this machine if bound to all
        broker_ip2 (announced to slaves)      broker_ip1
        ha_listen_port                        listen_port + 1, or any free port if listen_port is 0
        metrics_prom_exporter_host            bind_address
    """

    # Identity: a master has id 0; its slaves have the same name, and unique ids above 0.
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = dataclasses.field(default_factory=socket.gethostname)
    broker_id: int = 0
    # Addresses for clients (1) and slaves (2), and the ports of both.
    broker_ip1: str = dataclasses.field(default="", metadata={"key": "brokerIP1"})
    bind_address: str = "0.0.0.0"
    listen_port: int = 10911
    broker_ip2: str = dataclasses.field(default="", metadata={"key": "brokerIP2"})
    ha_listen_port: int = -1
    # Replication, see docs/high-availability.md.
    ha_master_address: str = ""
    ha_send_heartbeat_interval: int = 5000
    ha_housekeeping_interval: int = 20_000
    ha_transfer_batch_size: int = 32 * 1024
    ha_slave_fallbehind_max: int = 256 * 1024 * 1024
    slave_timeout: int = 3000
    slave_read_enable: bool = False
    # Name servers; permission; topics and groups that exist from the start or that requests may create.
    namesrv_addr: str = ""
    broker_permission: int = PERM_READ | PERM_WRITE
    default_topic_queue_nums: int = 8
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    # Message trace.
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    trace_on: bool = True
    region_id: str = "DefaultRegion"
    # Requests: long polling, idle connections, and flow control (wait_time_*, see `broker.flow_control`).
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    server_channel_max_idle_time_seconds: int = 120
    os_page_cache_busy_time_out_mills: int = 1000
    broker_fast_failure_enable: bool = False
    wait_time_mills_in_send_queue: int = 200
    wait_time_mills_in_pull_queue: int = 5000
    wait_time_mills_in_transaction_queue: int = 3000
    wait_time_mills_in_heartbeat_queue: int = 31_000
    notify_consumer_ids_changed_enable: bool = True
    # Periodic tasks, see `broker.background.scheduler`.
    flush_consumer_offset_interval: int = 5000
    register_name_server_period: int = 30_000
    register_broker_timeout_mills: int = 6000
    # Transactions, see `broker.delivery.transactions`.
    reject_transaction_message: bool = False
    transaction_time_out: int = 6000
    transaction_check_interval: int = 60_000
    transaction_check_max: int = 15
    # Filters by properties (SQL92).
    enable_property_filter: bool = False
    filter_support_retry: bool = False
    filter_data_clean_time_span: int = 24 * 3600 * 1000
    # Request/reply, and limits of batches and of queries by key.
    store_reply_message_enable: bool = True
    max_msgs_num_batch: int = 64
    default_query_max_num: int = 32
    # Metrics, see `broker.metrics`.
    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    metrics_prom_exporter_host: str = ""
    metrics_prom_exporter_port: int = 5557

    def __post_init__(self) -> None:
        if not self.broker_ip1:
            self.broker_ip1 = local_address() if self.bind_address in ("0.0.0.0", "::") else self.bind_address
        if not self.broker_ip2:
            self.broker_ip2 = self.broker_ip1
        if self.ha_listen_port < 0:
            self.ha_listen_port = self.listen_port + 1 if self.listen_port else 0

    @property
    def namesrv_addresses(self) -> list[str]:
        """The addresses of the name servers, separated by semicolons or commas in `namesrvAddr`."""
        return [address for part in re.split("[;,]", self.namesrv_addr) if (address := part.strip())]

    @property
    def region_fields(self) -> dict[str, str]:
        """Header fields of every response to a producer: region and trace switch."""
        return {properties.MSG_REGION: self.region_id, properties.TRACE_ON: str(self.trace_on).lower()}

    @property
    def store_host(self) -> bytes:
        """The address of this broker as encoded in records and offsetMsgIds."""
        return encode_host(f"{self.broker_ip1}:{self.listen_port}")


def local_address() -> str:
    """Return an IPv4 address of this machine that others can reach.

    Without a default route, that is the loopback address. Connecting a UDP socket sends nothing, but makes the
    kernel select the source address of the default route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def from_properties(properties: Mapping[str, str], **defaults: Any) -> tuple[BrokerConfig, StoreConfig, list[str]]:
    """Parse a broker.conf: return both configurations, and the keys that neither uses.

    `defaults` are field names of either, with the values of absent keys. Raises ConfigError, which names the key,
    for an invalid value.
    """
    broker = settings.fill(BrokerConfig, properties, **_fields_of(BrokerConfig, defaults))
    for address in broker.namesrv_addresses:
        try:
            host_and_port(address)
        except RemotingConnectError as error:
            raise ConfigError(f"namesrvAddr: {error}") from None
    if broker.ha_master_address:
        try:
            host_and_port(broker.ha_master_address)
        except RemotingConnectError as error:
            raise ConfigError(f"haMasterAddress: {error}") from None
    if broker.ha_transfer_batch_size < 1:
        raise ConfigError(f"haTransferBatchSize={broker.ha_transfer_batch_size}: expected 1 or more")
    store = settings.fill(StoreConfig, properties, **_fields_of(StoreConfig, defaults))
    parse_delay_levels(store.message_delay_level)
    # A master always has id 0, whatever brokerId says: clients find the master by it.
    if not store.is_slave:
        broker.broker_id = MASTER_ID
    elif broker.broker_id <= MASTER_ID:
        raise ConfigError(f"brokerId={broker.broker_id}: a slave (brokerRole=SLAVE) needs a unique id above 0")
    return broker, store, settings.unknown((BrokerConfig, StoreConfig), properties)


def _fields_of(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: fields[field.name] for field in dataclasses.fields(kind) if field.name in fields}
