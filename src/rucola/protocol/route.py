"""Who has which topic: a name server's answers and a broker's registration.

Codes: REGISTER_BROKER (103), UNREGISTER_BROKER (104), GET_ROUTEINFO_BY_TOPIC (105), GET_BROKER_CLUSTER_INFO (106),
GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), QUERY_DATA_VERSION (322).

A route names the brokers that have a topic, each with its addresses by broker id (0 is the master), and how many
queues each offers. Java's name server quotes the broker ids for newer clients and leaves them bare for older ones;
every client takes both.
"""

from __future__ import annotations

from rucola.protocol.body import Body
from rucola.protocol.command import Header
from rucola.protocol.topic import TopicConfigSerializeWrapper

MASTER_ID = 0


class BrokerData(Body, kw_only=True):
    """One broker name: a master and its slaves."""

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str


class QueueData(Body, kw_only=True):
    """The queues of a topic on one broker name."""

    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int = 0
    write_queue_nums: int


class TopicRouteData(Body, kw_only=True):
    """The body of GET_ROUTEINFO_BY_TOPIC. `order_topic_conf` reads `broker-a:4;broker-b:4`."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []


class ClusterInfo(Body, kw_only=True):
    """The body of GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(Body, kw_only=True):
    """The body of the requests that list topics."""

    broker_addr: str | None = None
    topic_list: list[str] = []


class GetRouteInfoRequestHeader(Header, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str


class BrokerRequestHeader(Header, kw_only=True):
    """UNREGISTER_BROKER and QUERY_DATA_VERSION: which broker speaks."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


class RegisterBrokerRequestHeader(Header, kw_only=True):
    """REGISTER_BROKER. `body_crc32` is the CRC-32 of the body as sent; `compressed` says that it is zlib."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: int
    compressed: bool | str = "false"
    body_crc32: int = 0


class RegisterBrokerBody(Body, kw_only=True):
    """The body of REGISTER_BROKER: every topic of the broker."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper


class RegisterBrokerResponseHeader(Header, kw_only=True):
    """For a slave: where its master serves clients and replication."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class QueryDataVersionResponseHeader(Header, kw_only=True):
    """Whether the name server's topics differ from the broker's."""

    changed: bool
