"""RouteTable: which broker has which topic, from what brokers said when they registered.

A broker registers its address under a broker name and an id, master (0) or slave, with all its topics or with those
that changed; only a master's topics count. It has to register again within `BROKER_EXPIRY_MS`, or the table drops it.
A broker name goes with its last address, and takes its topics along. Topics that are known are taken again only with
a new data version, so that a permission taken here stays taken; topics that are not known are taken always.

What the tables hold:

    live      address      -> its place (broker name and id), replication address, data version, last registration
    brokers   broker name  -> cluster, addresses by id
    topics    topic        -> queues by broker name

Invariants: every address in `brokers` is in `live` at that place (an address whose place another has taken stays in
`live` until it goes); no broker name is without an address; every broker name in `topics` is in `brokers`; no topic is
without a broker name.

The table has no clock and knows no sockets: calls are given the time, and a registration an `owner`, any object, so
that everything one owner registered can be dropped when it goes (the server passes connections).

Answers to `RouteInfoManager` of Apache RocketMQ 4.9.8. Deliberate differences: the cluster of a broker name is that of
its newest registration; an address is in one place only, also after its broker changed its name; a broker that
unregisters takes only its own address out, not that of a successor under the same id; giving write permission back
leaves the other permissions alone; where the first registration held only the topics that changed, the next one with
the same data version brings the others (Apache has no route for them until the next change).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from rucola.protocol.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, RegisterBrokerBody, TopicRouteData
from rucola.protocol.topic import PERM_WRITE, DataVersion, TopicConfig

logger = logging.getLogger(__name__)

BROKER_EXPIRY_MS = 120_000


@dataclass(slots=True)
class _Live:
    """One registered address."""

    broker_name: str
    broker_id: int
    ha_server_addr: str
    data_version: DataVersion
    filter_servers: list[str]
    registered_ms: int
    owner: object


@dataclass(slots=True)
class _Broker:
    """One broker name: a master and its slaves, those of them that are there."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)


class RouteTable:
    """The tables of a name server. Structs in its answers are snapshots; the caller may keep them."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}
        self._brokers: dict[str, _Broker] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}

    # What brokers say.

    def register(
        self,
        address: str,
        broker_name: str,
        broker_id: int,
        cluster: str,
        ha_server_addr: str,
        body: RegisterBrokerBody,
        now_ms: int,
        owner: object = None,
    ) -> tuple[str, str] | None:
        """Take a broker in, or hear of it again.

        The answer is for slaves: the master's replication address and its own address, or None.
        """
        before = self._live.get(address)
        if before is None:
            logger.info("broker %s at %s registered in cluster %s", broker_name, address, cluster)
        elif before.broker_name != broker_name:
            self._remove(address, f"is {broker_name} now")
            before = None
        broker = self._brokers.setdefault(broker_name, _Broker(cluster))
        broker.cluster = cluster
        is_new = broker_id not in broker.addresses
        if before is not None and broker.addresses.get(before.broker_id) == address:
            del broker.addresses[before.broker_id]
        broker.addresses[broker_id] = address

        topics = body.topic_config_serialize_wrapper
        if broker_id == MASTER_ID:
            is_changed = is_new or before is None or before.data_version != topics.data_version
            for topic in topics.topic_config_table.values():
                queues = self._topics.setdefault(topic.topic_name, {})
                if is_changed or broker_name not in queues:
                    queues[broker_name] = _queue_data(broker_name, topic)
        self._live[address] = _Live(
            broker_name, broker_id, ha_server_addr, topics.data_version, body.filter_server_list, now_ms, owner
        )
        master = broker.addresses.get(MASTER_ID)
        if broker_id == MASTER_ID or master is None:
            return None
        return self._live[master].ha_server_addr, master

    def unregister(self, address: str) -> None:
        """A broker says goodbye. An address that is not registered is passed over."""
        if address in self._live:
            self._remove(address, "unregistered")

    def data_version(self, address: str) -> DataVersion | None:
        """The version of the topics that a broker registered last."""
        live = self._live.get(address)
        return live.data_version if live else None

    def confirm(self, address: str, version: DataVersion, now_ms: int) -> bool:
        """Whether a broker's topics are those it registered; if so, this counts as a registration."""
        live = self._live.get(address)
        if live is None or live.data_version != version:
            return False
        live.registered_ms = now_ms
        return True

    # What the server notices.

    def remove_owned(self, owner: object) -> None:
        """Drop whatever `owner` registered last."""
        for address in [address for address, live in self._live.items() if live.owner is owner]:
            self._remove(address, "lost its connection")

    def remove_expired(self, now_ms: int) -> list[object]:
        """Drop the brokers that have not registered for longer than BROKER_EXPIRY_MS; return their owners."""
        expired = [address for address, live in self._live.items() if live.registered_ms + BROKER_EXPIRY_MS < now_ms]
        owners = [self._live[address].owner for address in expired]
        for address in expired:
            self._remove(address, f"did not register for {BROKER_EXPIRY_MS} ms")
        return owners

    # What clients and administrators ask.

    def route(self, topic: str) -> TopicRouteData | None:
        """The brokers of a topic; None where no broker has it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        filter_servers = {
            address: self._live[address].filter_servers
            for name in queues
            for address in self._brokers[name].addresses.values()
            if self._live[address].filter_servers
        }
        return TopicRouteData(
            broker_datas=[self._broker_data(name) for name in queues],
            filter_server_table=filter_servers,
            queue_datas=list(queues.values()),
        )

    def clusters(self) -> ClusterInfo:
        """Every broker, and which clusters they form."""
        names: dict[str, list[str]] = {}
        for name, broker in self._brokers.items():
            names.setdefault(broker.cluster, []).append(name)
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in self._brokers}, cluster_addr_table=names
        )

    def topics(self, accepts: Callable[[QueueData], bool] = lambda queues: True) -> list[str]:
        """The topics whose queues, on any broker, `accepts` accepts."""
        return [topic for topic, queues in self._topics.items() if any(map(accepts, queues.values()))]

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics that brokers of a cluster have."""
        return self.topics(lambda queues: self._brokers[queues.broker_name].cluster == cluster)

    def system_topics(self) -> tuple[list[str], str | None]:
        """The names of clusters and brokers, since each is a topic, and the address of a broker that knows more."""
        clusters = self.clusters().cluster_addr_table
        names = dict.fromkeys(name for cluster, brokers in clusters.items() for name in (cluster, *brokers))
        first = next(iter(self._brokers.values()), None)
        return list(names), min(first.addresses.items())[1] if first else None

    # What administrators change.

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Give or take write permission on all topics of a broker name, until it registers changed topics.

        Returns the count of its topics.
        """
        count = 0
        for queues in self._topics.values():
            data = queues.get(broker_name)
            if data is not None:
                perm = data.perm | PERM_WRITE if writable else data.perm & ~PERM_WRITE
                queues[broker_name] = replace(data, perm=perm)
                count += 1
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, on the brokers of one cluster or on all, until a broker registers it again."""
        queues = self._topics.get(topic, {})
        for name in [name for name in queues if cluster is None or self._brokers[name].cluster == cluster]:
            del queues[name]
        if not queues:
            self._topics.pop(topic, None)

    def _broker_data(self, name: str) -> BrokerData:
        broker = self._brokers[name]
        return BrokerData(broker_addrs=dict(sorted(broker.addresses.items())), broker_name=name, cluster=broker.cluster)

    def _remove(self, address: str, why: str) -> None:
        live = self._live.pop(address)
        logger.info("broker %s at %s %s", live.broker_name, address, why)
        broker = self._brokers.get(live.broker_name)
        if broker is None or broker.addresses.get(live.broker_id) != address:
            return  # another address has taken its place
        del broker.addresses[live.broker_id]
        if broker.addresses:
            return
        del self._brokers[live.broker_name]
        for topic, queues in list(self._topics.items()):
            queues.pop(live.broker_name, None)
            if not queues:
                del self._topics[topic]


def _queue_data(broker_name: str, topic: TopicConfig) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=topic.perm,
        read_queue_nums=topic.read_queue_nums,
        topic_sys_flag=topic.topic_sys_flag,
        write_queue_nums=topic.write_queue_nums,
    )
