"""BrokerConfig: the settings of a broker, with the keys of Apache's broker.conf.

A field has the name of its key in snake case (`broker_cluster_name` for `brokerClusterName`). Keys of the store are
fields of `rucola.store.config.StoreConfig`. Apache's keys without a meaning here (thread pools, buffer pools) are
accepted and reported as unused, so that an existing broker.conf works unchanged.

Corresponds to `BrokerConfig` and `MessageStoreConfig` of Apache RocketMQ 4.9.8. Deliberate difference: a key that
neither system has is an error, while Apache ignores it.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

from rucola import settings
from rucola.broker.apache_settings import WITHOUT_EFFECT
from rucola.coordination.config import CoordinationConfig
from rucola.domain.role import MASTER_ID
from rucola.domain.topic import PERM_READ, PERM_WRITE
from rucola.errors import ConfigError, RemotingConnectError
from rucola.message import properties
from rucola.message.delay import parse_delay_levels
from rucola.message.host import encode_host
from rucola.remoting.budget import ConnectionLimits
from rucola.remoting.client import host_and_port
from rucola.remoting.exposure import LOOPBACK
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.remoting.tls_config import TlsConfig, with_tls_file
from rucola.settings import INT_MAX, Bytes, Count, Interval, Milliseconds, Port, Range, Seconds, Secret
from rucola.store.config import StoreConfig

_REFUSED: Final = {
    "enableDLegerCommitLog": "there is no DLedger log, and messages would not be replicated",
    "enableConsumeQueueExt": "extended units are read and not written; consumers get the same messages without them",
}
"""Switches of Apache's broker.conf that this broker cannot honour, and the consequence of ignoring them."""


LISTEN_PORT: Final = 10911
MIN_LOG_FILE_SIZE: Final = 64 * 1024
GRPC_SERVER_PORT: Final = 8081


class TransferFrom(Enum):
    """The part of the log that a slave without a log gets."""

    begin = 0
    """All of it."""
    last = 1
    """The newest file, as from Apache's master."""


@dataclass(slots=True)
class BrokerConfig:
    """Name, addresses and behaviour of a broker. The docstring of a field is its entry in the reference."""

    # Identity

    broker_cluster_name: str = "DefaultCluster"
    """Cluster that the broker joins. Set it if one name server knows several clusters."""
    broker_name: str = dataclasses.field(default_factory=socket.gethostname)
    """Name of the broker; by default the host name. A master and its slaves have the same name. Set it always: queues,
    offsets and offsetMsgIds of consumers refer to it, so it must not change with the machine.
    """
    broker_id: Annotated[Count, Range(0, INT_MAX)] = 0
    """0 on a master, a unique number above 0 on each slave. A broker with a brokerRole of a master always has 0."""

    # Addresses

    broker_ip1: str = dataclasses.field(default="", metadata={"key": "brokerIP1"})
    """Address announced to clients; by default bindAddress, or an address of this machine if bound to all. Set it if
    clients reach the broker by another address, for example behind NAT or in a container.
    """
    bind_address: str = ""
    """Address on which the broker listens; by default brokerIP1 if that is set, else 127.0.0.1. An address that other
    machines reach, such as 0.0.0.0, needs TLS and access control, or insecure=true.
    """
    listen_port: Port = LISTEN_PORT
    """Port for clients; 0 selects a free port, with a free one two below it for the VIP channel."""
    vip_channel_enabled: bool = True
    """Whether the broker also listens on listenPort - 2, the VIP channel. A slave of Apache needs it to learn topics,
    and clients with sendMessageWithVIPChannel (the default up to 4.5.0) send there. Disable it if the port belongs to
    another process.
    """
    broker_ip2: str = dataclasses.field(default="", metadata={"key": "brokerIP2"})
    """Address announced to slaves; by default brokerIP1. Set it if replication has its own network."""
    grpc_server_enabled: bool = True
    """Whether the broker serves clients of RocketMQ 5, by gRPC. A slave does as soon as it becomes master."""
    grpc_server_port: Annotated[Port, Range(-1, 65_535)] = -1
    """Port for clients of gRPC; by default 8081 if listenPort is 10911, else any free port. Set it on a machine with
    several brokers, since clients keep the address.
    """
    ha_listen_port: Annotated[Port, Range(-1, 65_535)] = -1
    """Port for slaves; by default listenPort + 1, or any free port if listenPort is 0."""
    namesrv_addr: str = ""
    """Addresses of the name servers, `host:port` joined by `;`. Without it clients must know the broker's address."""

    # Security

    insecure: bool = False
    """Whether to serve other machines without TLS and access control. Only for a network of trusted machines."""
    tls: TlsConfig = dataclasses.field(default_factory=TlsConfig)

    # Replication

    ha_master_address: str = ""
    """Address `host:port` from which a slave copies the log; by default the one that the name server returns."""
    ha_send_heartbeat_interval: Interval = 5000
    """Time between two heartbeats on an idle replication connection. Lower it to notice a dead peer sooner."""
    ha_housekeeping_interval: Interval = 20_000
    """Time of silence after which a replication connection is closed. Keep it several heartbeats long."""
    ha_transfer_batch_size: Annotated[Bytes, Range(1, 16 * 1024 * 1024)] = 32 * 1024
    """Maximum size of one transfer to a slave. A slave of Apache reads no more than 32 KiB at once."""
    ha_transfer_from: TransferFrom = TransferFrom.begin
    """Where a master begins for a slave without a log: at its oldest message, or with the newest file of the log. With
    `last`, as with Apache's master, older messages exist only on the master.
    """
    ha_catch_up_rate: Annotated[Bytes, Range(0, 2**62)] = 0
    """Maximum number of bytes per second to a slave that lags by haSlaveFallbehindMax or more; 0 is unlimited. Set it
    if a new slave would slow down clients; above the rate of puts, or it never catches up.
    """
    ha_slave_fallbehind_max: Annotated[Bytes, Range(0, 2**62)] = 256 * 1024 * 1024
    """Lag beyond which a slave does not count as available for SYNC_MASTER. Lower it if producers should see
    SLAVE_NOT_AVAILABLE rather than wait for a slave that is far behind.
    """
    max_slaves: Count = 64
    """Maximum number of replication connections that have sent a report; further ones are closed."""
    slave_timeout: Milliseconds = 3000
    """Time for which a SYNC_MASTER waits for a slave before it answers FLUSH_SLAVE_TIMEOUT."""
    slave_read_enable: bool = False
    """Whether responses send consumers that are far behind to a slave. Enable it to unburden the master's disk."""

    # Election of the master

    coordination: CoordinationConfig = dataclasses.field(default_factory=CoordinationConfig)

    # Topics and groups

    broker_permission: Annotated[Count, Range(2, 6, step=2)] = PERM_READ | PERM_WRITE
    """Permission of the whole broker: 6 read and write, 4 read, 2 write. Set 4 to drain a broker before its removal."""
    default_topic_queue_nums: Annotated[Count, Range(1, 1024)] = 8
    """Maximum number of queues of a topic that a send creates."""
    auto_create_topic_enable: bool = True
    """Whether a send to an unknown topic creates it. Disable it in production, so that a typo is an error."""
    auto_create_subscription_group: bool = True
    """Whether the first pull or heartbeat of an unknown group creates it. Disable it in production, as above."""
    cluster_topic_enable: bool = True
    """Whether the topic with the name of the cluster can be read and written."""
    broker_topic_enable: bool = True
    """Whether the topic with the name of the broker can be read and written."""

    # Message trace

    trace_topic_enable: bool = False
    """Whether the broker creates the trace topic. Enable it on the brokers that store traces."""
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    """Name of the trace topic."""
    trace_on: bool = True
    """Whether producers and consumers with tracing send traces of messages of this broker."""
    region_id: str = "DefaultRegion"
    """Region in the traces of this broker's messages."""

    # Requests and flow control

    long_polling_enable: bool = True
    """Whether a pull that finds nothing is held as long as the client allows. Disabled: shortPollingTimeMills."""
    short_polling_time_mills: Milliseconds = 1000
    """Time for which a pull that finds nothing is held without long polling."""
    server_channel_max_idle_time_seconds: Seconds = 120
    """Time after which an idle connection is closed; 0 never closes one. Clients send a heartbeat every 30 s."""
    os_page_cache_busy_time_out_mills: Milliseconds = 1000
    """Time that a put may take before sends are refused as the disk is too slow; needs brokerFastFailureEnable."""
    broker_fast_failure_enable: bool = False
    """Whether requests are refused, rather than delayed, while the broker is overloaded; see waitTimeMillsIn*Queue."""
    wait_time_mills_in_send_queue: Milliseconds = 200
    """Age beyond which a send is refused under overload. Raise it if producers should wait rather than retry."""
    wait_time_mills_in_pull_queue: Milliseconds = 5000
    """Age beyond which a pull is refused under overload."""
    wait_time_mills_in_transaction_queue: Milliseconds = 3000
    """Age beyond which the end of a transaction is refused under overload."""
    wait_time_mills_in_heartbeat_queue: Milliseconds = 31_000
    """Age beyond which a heartbeat is refused under overload."""
    notify_consumer_ids_changed_enable: bool = True
    """Whether members of a group are notified at once if one joins or leaves. Otherwise they rebalance every 20 s."""
    store_reply_message_enable: bool = True
    """Whether replies to requests are stored as well as sent to the requester."""
    default_query_max_num: Annotated[Count, Range(1, 10_000)] = 32
    """Maximum number of messages in the response to a query by unique key."""

    # Connections and their memory; see docs/limits.md

    connection_limits: ConnectionLimits = dataclasses.field(default_factory=ConnectionLimits)
    max_held_pulls_per_connection: Count = 8192
    """Maximum number of held pulls of one connection; more are refused as busy. A consumer holds one per queue. One
    with a long expression counts as several, one for each 2 KiB that its filter takes: about 20 tags.
    """
    max_held_pulls: Count = 65_536
    """Maximum number of held pulls in total; beyond it, the oldest of a connection that holds at least the average
    number is answered early.
    """

    # Limits

    max_topic_nums: Count = 20_000
    """Number of topics from which requests of clients create none; operators still do. Retry topics count. Dead
    letter queues count, but are always created. Raise it if one broker has more topics.
    """
    max_subscription_group_nums: Count = 10_000
    """Number of consumer groups from which requests of clients create none; operators still do."""
    max_consumer_offsets: Count = 1_000_000
    """Maximum number of consumer offsets, about 100 bytes each; commits for further queues are refused."""
    max_consumer_filters: Count = 10_000
    """Number of SQL92 expressions of groups on topics, from which heartbeats add none; pulls by them are refused.
    Those of groups that have disconnected count for filterDataCleanTimeSpan.
    """
    max_queue_locks: Count = 100_000
    """Maximum number of queues that members of groups have locked to consume in order; locks of more are refused."""
    max_groups_per_client: Count = 256
    """Maximum number of producer and consumer groups of one connection."""
    max_subscriptions_per_heartbeat: Count = 1024
    """Maximum number of subscriptions in one heartbeat, over all of its groups."""
    max_subscription_expression_size: Bytes = 16 * 1024
    """Maximum size of a subscription's expression, and of all SQL92 expressions of a heartbeat (4,096 characters each).
    """
    max_queue_nums_per_topic: Annotated[Count, Range(1, 65_536)] = 8192
    """Maximum number of queues of a topic, read or write. Topics that have more already keep them."""
    max_messages_per_batch: Annotated[Count, Range(1, 1_000_000)] = 16_384
    """Maximum number of messages in one batch; the size of a batch is limited by maxMessageSize. Raise it if producers
    send batches of several megabytes with very small messages.
    """
    max_keys_per_message: Annotated[Count, Range(1, 16_384)] = 2048
    """Maximum number of keys (words of KEYS) of one message; each takes 20 bytes of the index. A message of a message
    trace has the ids and keys of up to 100 (Java) or about 500 messages (Python).
    """
    max_json_body_size: Annotated[Bytes, Range(1024, 16 * 1024 * 1024)] = 256 * 1024
    """Maximum size of a request's body of JSON or settings, such as a heartbeat; messages have maxMessageSize."""

    # Periodic tasks

    flush_consumer_offset_interval: Interval = 5000
    """Time between two writes of the consumer offsets. After a crash, messages consumed since then are redelivered."""
    discard_damaged_config: bool = False
    """Whether a start sets damaged files in `config/` aside and begins without them; the log names what is lost."""
    register_name_server_period: Interval = 30_000
    """Time between two registrations. A name server forgets a broker after two minutes without one."""
    register_broker_timeout_mills: Interval = 6000
    """Time that a registration may take per name server."""
    compressed_register: bool = False
    """Whether registrations are always compressed, which omits the unit flags of topics; by default only above 1 MiB.
    """

    # Transactions

    reject_transaction_message: bool = False
    """Whether transactional messages are refused."""
    transaction_time_out: Milliseconds = 6000
    """Age at which an open transaction is checked first. Raise it if local transactions take longer."""
    transaction_check_interval: Interval = 60_000
    """Time between two checks of open transactions."""
    transaction_check_max: Annotated[Count, Range(0, INT_MAX)] = 15
    """Number of checks after which an open transaction is moved to TRANS_CHECK_MAX_TIME_TOPIC."""

    # Filters by properties (SQL92)

    enable_property_filter: bool = False
    """Whether consumers may select messages by SQL92 expressions over properties, which the broker evaluates."""
    filter_support_retry: bool = False
    """Whether such a filter also applies to messages that are retried."""
    filter_data_clean_time_span: Milliseconds = 24 * 3600 * 1000
    """Time for which the filter of a group without members is kept."""

    # Tiered reads

    tiered_reads: bool = False
    """Whether messages that have left the log are read from the lake; needs deleteOnlyArchived, see
    docs/pipeline-archive.md.
    """
    tiered_read_catalog: str = ""
    """Catalog of the lake, a name in pyiceberg's configuration, if the lake is archived with `--catalog`."""
    tiered_read_timeout: Milliseconds = 5000
    """Time after which a pull that waits for the lake is answered: the client asks again."""

    # Access control

    acl_enable: bool = False
    """Whether requests need an account of plain_acl.yml (ACL 1.0), or a white address; see docs/access-control.md."""
    rocketmq_home: Path | None = None
    """Directory of conf/plain_acl.yml and conf/acl/; by default the environment variable ROCKETMQ_HOME."""
    authentication_enabled: bool = False
    """Whether requests need a user of this broker (ACL 2.0 of RocketMQ 5.3). Not together with aclEnable."""
    authorization_enabled: bool = False
    """Whether policies decide what a user may do; without it, every user may do everything."""
    init_authentication_user: Secret | None = None
    """First super user: `file:PATH` or `env:NAME`, or the JSON itself: {"username":"...","password":"..."}. By default
    from the environment variable ROCKETMQ_INIT_AUTHENTICATION_USER.
    """
    credentials_file: Path | None = None
    """File with the accessKey and secretKey for requests to name servers and the master; by default the environment."""
    audit_log_path: Path | None = None
    """File of the audit log; by default audit/audit.jsonl in the store directory, with access control only."""
    audit_log_max_size: Bytes = 64 * 1024 * 1024
    """Size at which the audit log begins a new file."""
    audit_log_max_files: Count = 8
    """Number of files of the audit log; the oldest is deleted."""

    # Metrics

    metrics_exporter_type: MetricsExporterType = MetricsExporterType.DISABLE
    """PROM serves metrics to Prometheus over HTTP; see docs/metrics.md."""
    metrics_prom_exporter_host: str = ""
    """Address of the metrics endpoint; by default 127.0.0.1. Another one needs mutual TLS, or insecure=true."""
    metrics_prom_exporter_port: Port = 5557
    """Port of the metrics endpoint."""
    metrics_topic_count: Annotated[int, "", Range(0, 100_000)] = 100
    """Topics with metrics of their own, those with the most messages; the others are one, `other`."""
    metrics_group_count: Annotated[int, "", Range(0, 100_000)] = 100
    """Groups on a topic with metrics of their own, those with the greatest backlogs; the others are one, `other`."""

    def __post_init__(self) -> None:
        settings.check(self)
        if not self.bind_address:
            self.bind_address = self.broker_ip1 or LOOPBACK
        if not self.broker_ip1:
            self.broker_ip1 = local_address() if self.bind_address in ("0.0.0.0", "::") else self.bind_address  # noqa: S104 - compares
        if not self.metrics_prom_exporter_host:
            self.metrics_prom_exporter_host = LOOPBACK
        if not self.broker_ip2:
            self.broker_ip2 = self.broker_ip1
        if self.grpc_server_port < 0:
            self.grpc_server_port = GRPC_SERVER_PORT if self.listen_port == LISTEN_PORT else 0
        if self.ha_listen_port < 0:
            self.ha_listen_port = self.listen_port + 1 if self.listen_port else 0

    @property
    def has_access_control(self) -> bool:
        """Whether every request needs an account with the right permission, or a white address."""
        return self.acl_enable or (self.authentication_enabled and self.authorization_enabled)

    @property
    def namesrv_addresses(self) -> list[str]:
        """The addresses in `namesrvAddr`, separated by semicolons or commas."""
        return [address for part in re.split("[;,]", self.namesrv_addr) if (address := part.strip())]

    @property
    def region_fields(self) -> dict[str, str]:
        """Header fields of every response to a producer."""
        return {properties.MSG_REGION: self.region_id, properties.TRACE_ON: str(self.trace_on).lower()}

    @property
    def store_host(self) -> bytes:
        """The address of this broker as encoded in records and offsetMsgIds."""
        return encode_host(f"{self.broker_ip1}:{self.listen_port}")


def local_address() -> str:
    """IPv4 address of this machine that others can reach, else loopback.

    Connecting a UDP socket sends nothing, but makes the kernel select the source address of the default route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def from_properties(properties: Mapping[str, str], **defaults: Any) -> tuple[BrokerConfig, StoreConfig, list[str]]:
    """Parse a broker.conf; return both configurations, and its Apache keys without effect here.

    `defaults` are field names of either, for missing keys. Raises ConfigError, which names an invalid or unknown key.
    """
    properties = with_tls_file(properties)
    unused = settings.without_effect((BrokerConfig, StoreConfig), WITHOUT_EFFECT, properties)
    for key, consequence in _REFUSED.items():
        if properties.get(key, "").strip().lower() == "true":
            raise ConfigError(f"{key}=true: {consequence}; remove the key, or set it to false", subject=key)
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
            raise ConfigError(f"haMasterAddress: {error}", subject="haMasterAddress") from None
    _check_access(broker)
    store = settings.fill(StoreConfig, properties, **_fields_of(StoreConfig, defaults))
    parse_delay_levels(store.message_delay_level)
    if broker.coordination.is_enabled:
        broker.coordination.bounds  # noqa: B018 - raises ConfigError
        broker.coordination.access  # noqa: B018 - likewise
        if not store.is_slave:
            raise ConfigError(
                f"etcdEndpoints and brokerRole={store.broker_role.value}: with an election, every broker of the group "
                "begins as brokerRole=SLAVE with a brokerId above 0; etcdMasterRole is what the elected one becomes",
                subject="brokerRole",
            )
        if not broker.ha_listen_port:
            raise ConfigError(
                "etcdEndpoints and haListenPort=0: slaves must know the port before the election",
                subject="haListenPort",
            )
    if store.mapped_file_size_commit_log < MIN_LOG_FILE_SIZE:
        raise ConfigError(
            f"mappedFileSizeCommitLog={store.mapped_file_size_commit_log}: expected {MIN_LOG_FILE_SIZE} bytes or more, "
            "since the properties alone of a message may have half of them; the default is 1 GiB",
            subject="mappedFileSizeCommitLog",
        )
    # A master always has id 0, even if brokerId differs: clients find the master by it.
    if not store.is_slave:
        if broker.broker_id > MASTER_ID and "brokerRole" not in properties:
            raise ConfigError(
                f"brokerId={broker.broker_id} without a brokerRole: set brokerRole=SLAVE if the broker follows a "
                "master, else remove the brokerId",
                subject="brokerId",
            )
        broker.broker_id = MASTER_ID
    elif broker.broker_id <= MASTER_ID:
        raise ConfigError(
            f"brokerId={broker.broker_id}: a slave (brokerRole=SLAVE) needs a unique id above 0", subject="brokerId"
        )
    return broker, store, unused


def _check_access(broker: BrokerConfig) -> None:
    if broker.acl_enable and broker.authentication_enabled:
        raise ConfigError(
            "aclEnable=true and authenticationEnabled=true: choose one version of access control",
            subject="authenticationEnabled",
        )
    if broker.authorization_enabled and not broker.authentication_enabled:
        raise ConfigError(
            "authorizationEnabled=true needs authenticationEnabled=true: users must be known first",
            subject="authorizationEnabled",
        )


def _fields_of(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: fields[field.name] for field in dataclasses.fields(kind) if field.name in fields}
