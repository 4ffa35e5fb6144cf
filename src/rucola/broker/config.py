"""BrokerConfig: what a broker is told, by the keys of Apache's broker.conf.

A field's name is the key in snake case (`broker_cluster_name` for `brokerClusterName`). Keys that belong to the
store are fields of `rucola.store.StoreConfig`; `from_properties` gives each key to the one that has it. Keys of
Apache's that mean nothing here (thread pools, buffer pools) are accepted and reported as unused, so that an
existing broker.conf works as it is.

Answers to `BrokerConfig` and `MessageStoreConfig` of Apache RocketMQ 4.9.8.
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
from rucola.message.host import encode_host
from rucola.protocol.route import MASTER_ID
from rucola.protocol.topic import PERM_READ, PERM_WRITE
from rucola.remoting.client import host_and_port
from rucola.store.config import StoreConfig


class MetricsExporterType(Enum):
    """Whom a broker tells its metrics."""

    DISABLE = 0
    PROM = 1
    """Prometheus, which asks for them."""


@dataclass(slots=True)
class BrokerConfig:
    """A broker's name, addresses and habits. Times are in milliseconds.

    `broker_ip1` is the address that clients are told; where it is empty, the address that the broker is bound to,
    or one of this machine's that others may reach. `broker_ip2` is where slaves reach it, `broker_ip1` unless it says
    otherwise. `ha_listen_port` -1 is the one after `listen_port`, or any free one where that is 0.
    `metrics_prom_exporter_host` is where metrics are asked for; empty, it is the address that the broker is bound to.
    """

    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = dataclasses.field(default_factory=socket.gethostname)
    broker_id: int = 0
    broker_ip1: str = dataclasses.field(default="", metadata={"key": "brokerIP1"})
    bind_address: str = "0.0.0.0"
    listen_port: int = 10911
    broker_ip2: str = dataclasses.field(default="", metadata={"key": "brokerIP2"})
    ha_listen_port: int = -1
    ha_master_address: str = ""
    ha_send_heartbeat_interval: int = 5000
    ha_housekeeping_interval: int = 20_000
    ha_transfer_batch_size: int = 32 * 1024
    ha_slave_fallbehind_max: int = 256 * 1024 * 1024
    slave_timeout: int = 3000
    slave_read_enable: bool = False
    namesrv_addr: str = ""
    broker_permission: int = PERM_READ | PERM_WRITE
    default_topic_queue_nums: int = 8
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    trace_on: bool = True
    region_id: str = "DefaultRegion"
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
    flush_consumer_offset_interval: int = 5000
    register_name_server_period: int = 30_000
    register_broker_timeout_mills: int = 6000
    reject_transaction_message: bool = False
    transaction_time_out: int = 6000
    transaction_check_interval: int = 60_000
    transaction_check_max: int = 15
    enable_property_filter: bool = False
    filter_support_retry: bool = False
    filter_data_clean_time_span: int = 24 * 3600 * 1000
    store_reply_message_enable: bool = True
    max_msgs_num_batch: int = 64
    default_query_max_num: int = 32
    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    metrics_prom_exporter_host: str = ""
    metrics_prom_exporter_port: int = 5557

    def __post_init__(self) -> None:
        if not self.broker_ip1:
            self.broker_ip1 = own_address() if self.bind_address in ("0.0.0.0", "::") else self.bind_address
        if not self.broker_ip2:
            self.broker_ip2 = self.broker_ip1
        if self.ha_listen_port < 0:
            self.ha_listen_port = self.listen_port + 1 if self.listen_port else 0

    @property
    def namesrv_addresses(self) -> list[str]:
        """The name servers, as written in `a:9876;b:9876`."""
        return [address for part in re.split("[;,]", self.namesrv_addr) if (address := part.strip())]

    @property
    def region_fields(self) -> dict[str, str]:
        """What every answer to a producer says of this broker."""
        return {properties.MSG_REGION: self.region_id, properties.TRACE_ON: str(self.trace_on).lower()}

    @property
    def store_host(self) -> bytes:
        """Where clients reach this broker, as it stands in every record and offsetMsgId."""
        return encode_host(f"{self.broker_ip1}:{self.listen_port}")


def own_address() -> str:
    """An IPv4 address of this machine that others may reach; the loopback address where there is none.

    Nothing is sent: the route of an unsent datagram names the address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def from_properties(properties: Mapping[str, str], **defaults: Any) -> tuple[BrokerConfig, StoreConfig, list[str]]:
    """The two configurations that the keys of a broker.conf give, and the keys that neither uses.

    `defaults` are fields of either by name, for what the properties leave open. ConfigError names a key whose value
    cannot be read.
    """
    broker = settings.fill(BrokerConfig, properties, **_of(BrokerConfig, defaults))
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
    store = settings.fill(StoreConfig, properties, **_of(StoreConfig, defaults))
    if not store.is_slave:
        broker.broker_id = MASTER_ID
    elif broker.broker_id <= MASTER_ID:
        raise ConfigError(f"brokerId={broker.broker_id}: a slave (brokerRole=SLAVE) needs one above 0, of its own")
    return broker, store, settings.unknown((BrokerConfig, StoreConfig), properties)


def _of(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: fields[field.name] for field in dataclasses.fields(kind) if field.name in fields}
