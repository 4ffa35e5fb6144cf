"""Routes: the brokers and queues of topics. Corresponds to classes of `RouteInfoManager` of Apache RocketMQ 4.9.8."""

from __future__ import annotations

import msgspec

from rucola.domain.topic import TopicConfigSerializeWrapper

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""The namespace of a name server's key-value table with the `order_topic_conf` of each ordered topic."""


class BrokerData(msgspec.Struct, rename="camel", kw_only=True):
    # "host:port" by broker id.
    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str


class QueueData(msgspec.Struct, rename="camel", kw_only=True):
    """A topic's queues on one broker name; `perm` is a sum of PERM_ values."""

    broker_name: str
    perm: int
    read_queue_nums: int
    # Bits TOPIC_FLAG_UNIT and TOPIC_FLAG_UNIT_SUB.
    topic_sys_flag: int = 0
    write_queue_nums: int


class TopicRouteData(msgspec.Struct, rename="camel", kw_only=True):
    """`order_topic_conf` has the form `broker-a:4;broker-b:4`."""

    broker_datas: list[BrokerData] = []
    # Filter servers by broker address, for filtering by an uploaded class.
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []


class ClusterInfo(msgspec.Struct, rename="camel", kw_only=True):
    """Brokers by broker name, and broker names by cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class RegisterBrokerBody(msgspec.Struct, rename="camel", kw_only=True):
    """The registration of a broker: all its topics."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper
