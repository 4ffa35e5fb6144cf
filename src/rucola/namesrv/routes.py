"""The route table: which broker has which topic, as brokers registered it.

A broker registers its address under a broker name and an id, master (0) or slave, with all or only its changed topics.
Only a master's topics count. A registration expires after `BROKER_EXPIRY_MS`. With its last address a broker name and
its topics leave all routes at once; `sweep_steps` frees their memory. Registered topics are replaced only if the data
version changed, so that a revoked permission stays revoked; missing topics are always added. A master that registers
again with an equal body, by its digest, is only refreshed, until one of its topics is deleted.

The tables:

    live      address      -> broker name and id, replication address, data version, last registration
    brokers   broker name  -> cluster, addresses by id, queues by topic
    topics    topic        -> brokers that have queues of it
    masters   broker name  -> epoch and address of its newest master, of masters with epochs (Rucola's)

Invariants: every address in `brokers` is in `live` under the same name and id (a replaced address stays in `live` until
it expires); every broker name has an address; a broker is in `topics` under exactly the topics of which it has queues;
brokers removed from `brokers` have no address and are in `gone` until swept; every topic has a broker. Registrations
beyond maxBrokers or maxTopics of namesrv.conf are refused.

A master with an epoch is refused if another address was master of its name in the same or a later epoch, even if that
broker has left: it may have messages that the refused one lacks. A master without epoch (Apache's) replaces the other;
that both are alive is logged.

Calls pass the time, and a registration its `owner`, any object (the server passes connections), by which everything
that it registered can be removed.

Corresponds to `RouteInfoManager` of Apache RocketMQ 4.9.8. Deliberate differences: the latest registration decides the
cluster of a broker name; an address is registered once, even after its broker changed its name; a broker that
unregisters removes only its own address, not its successor's under the same id; granting write permission again leaves
the other permissions unchanged; if the first registration had only changed topics, the next one with the same data
version adds the others (Apache has no route for them until the next change).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from rucola import refusals, slices
from rucola.access import Refused
from rucola.domain.role import MASTER_ID
from rucola.domain.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RegisterBrokerBody,
    TopicRouteData,
)
from rucola.domain.topic import (
    MAX_NAME_LENGTH,
    PERM_WRITE,
    TOPIC_FLAG_UNIT,
    TOPIC_FLAG_UNIT_SUB,
    DataVersion,
    TopicConfig,
)
from rucola.namesrv.config import NamesrvConfig

logger = logging.getLogger(__name__)

BROKER_EXPIRY_MS = 120_000
"""Lifetime of a registration; brokers register every 30 s."""
MAX_MASTERS = 65_536
"""The most broker names whose last master is remembered; the oldest are forgotten."""


@dataclass(slots=True)
class _Live:
    broker_name: str
    broker_id: int
    ha_server_addr: str
    data_version: DataVersion
    filter_servers: list[str]
    registered_ms: int
    owner: object
    digest: bytes | None = None
    """Of the body, once all its topics have a route and as long as none of them is deleted."""

    def is_same_registration(self, other: _Live) -> bool:
        mine = self.broker_name, self.broker_id, self.data_version
        return mine == (other.broker_name, other.broker_id, other.data_version)


@dataclass(slots=True, eq=False)
class _Broker:
    """A broker name. Without an address it has been removed: a later broker of that name is a new object."""

    name: str
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    queues: dict[str, QueueData] = field(default_factory=dict)


class Registration(NamedTuple):
    """A broker that registers. `master_epoch` is the epoch of a master that has epochs."""

    broker_addr: str
    broker_name: str
    broker_id: int
    cluster_name: str
    ha_server_addr: str
    master_epoch: int | None = None


class RouteTable:
    """The route tables of a name server. Results are snapshots, which the caller may keep.

    With `keeps_addresses`, a second address for a registered name and id is refused until the first one unregisters,
    disconnects or expires, unless it is the master of a newer epoch. Otherwise it replaces the first one, as in Apache
    RocketMQ. `on_gone` is called when a broker was removed and `sweep_steps` has work.
    """

    def __init__(
        self,
        limits: Callable[[], NamesrvConfig] = NamesrvConfig,
        *,
        keeps_addresses: bool = False,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = limits
        self._on_gone = on_gone
        self._keeps_addresses = keeps_addresses
        self._live: dict[str, _Live] = {}
        self._brokers: dict[str, _Broker] = {}
        self._topics: dict[str, tuple[_Broker, ...]] = {}
        self._gone: list[_Broker] = []
        self._queues_count = 0
        self._conflicts: set[tuple[str, int]] = set()
        """Broker names and ids that two addresses register, logged once."""
        self._masters: dict[str, tuple[int, str]] = {}
        self._refused: set[str] = set()
        """Addresses that registered as master with an outdated epoch, logged once."""

    # Brokers.

    def registration_steps(
        self,
        registration: Registration,
        body: RegisterBrokerBody,
        now_ms: int,
        owner: object = None,
        digest: bytes = b"",
    ) -> Generator[None, None, tuple[str, str] | None]:
        """Register a broker or refresh its registration, a generator of small steps (see `rucola.slices`).

        Returns the replication address and the address of a slave's master, otherwise None. Stops if the address is
        removed or registers other topics between two steps. Raises Refused for a second address (see the class) and
        beyond a bound; concurrent registrations may exceed a bound together only while they add topics.
        """
        address, broker_name, broker_id, cluster, ha_server_addr, _ = registration
        _check_lengths(brokerName=broker_name, clusterName=cluster, brokerAddr=address, haServerAddr=ha_server_addr)
        topics = body.topic_config_serialize_wrapper
        self._admit(address, broker_name, broker_id, topics.topic_config_table.keys())
        before = self._live.get(address)
        if before is None:
            logger.info("broker %s at %s registered in cluster %s", broker_name, address, cluster)
        elif before.broker_name != broker_name:
            self._remove(address, f"is {broker_name} now")
            before = None
        # 1. The broker name, its cluster, and the address under the broker's id.
        broker = self._brokers.setdefault(broker_name, _Broker(broker_name, cluster))
        broker.cluster = cluster
        is_new = broker_id not in broker.addresses
        if before is not None and broker.addresses.get(before.broker_id) == address:
            del broker.addresses[before.broker_id]
        if before is not None and before.broker_id == broker_id:
            self._note_conflict(broker_name, broker_id, broker.addresses.get(broker_id, address), address)
        broker.addresses[broker_id] = address

        # 2. The address itself.
        registered = self._live[address] = _Live(
            broker_name, broker_id, ha_server_addr, topics.data_version, body.filter_server_list, now_ms, owner
        )
        # 3. The topics, of a master only: all of a new version, otherwise those that have no route yet.
        if broker_id == MASTER_ID:
            is_changed = is_new or before is None or before.data_version != topics.data_version
            yield from self._add_topics(broker, address, registered, topics.topic_config_table, is_changed)
            registered.digest = digest
            return None
        master = broker.addresses.get(MASTER_ID)
        return None if master is None else (self._live[master].ha_server_addr, master)

    def _admit(self, address: str, broker_name: str, broker_id: int, topics: Set[str]) -> None:
        """Raise Refused beyond a bound or for a second address, before any change."""
        limit = self._limits().max_brokers
        if address not in self._live and len(self._live) >= limit:
            raise _beyond(broker_name, address, f"{len(self._live)} others are registered", limit, "maxBrokers")
        if broker_id == MASTER_ID:
            self._check_room(address, broker_name, topics)
        if self._keeps_addresses:
            self._check_address(address, broker_name, broker_id)

    def _add_topics(
        self, broker: _Broker, address: str, registered: _Live, topics: Mapping[str, TopicConfig], is_changed: bool
    ) -> Generator[None, None, None]:
        for topic in topics.values():
            # Between two steps, the address may have registered again, with the same topics or with others.
            live = self._live.get(address)
            if not broker.addresses or live is None or not live.is_same_registration(registered):
                return
            name = topic.topic_name
            if name not in broker.queues:
                self._check_room(address, broker.name, {name})
                self._topics[name] = (*self._topics.get(name, ()), broker)
                self._queues_count += 1
                broker.queues[name] = _queue_data(broker.name, topic)
            elif is_changed:
                broker.queues[name] = _queue_data(broker.name, topic)
            yield

    def _check_room(self, address: str, broker_name: str, topics: Set[str]) -> None:
        limit = self._limits().max_topics
        if self._queues_count + len(topics) > limit:
            broker = self._brokers.get(broker_name)
            count = len(topics - broker.queues.keys() if broker is not None else topics)
            if self._queues_count + count > limit:
                raise _beyond(broker_name, address, f"{count} topics beside {self._queues_count}", limit, "maxTopics")

    def _check_address(self, address: str, broker_name: str, broker_id: int) -> None:
        """Raise Refused if another address has this name and id, except for the newest master."""
        broker = self._brokers.get(broker_name)
        known = address if broker is None else broker.addresses.get(broker_id, address)
        if known != address and not (broker_id == MASTER_ID and self.newest_master(broker_name)[1] == address):
            raise _logged(
                Refused(refusals.ADDRESS_TAKEN, broker=broker_name, broker_id=broker_id, known=known, address=address)
            )

    def admit_master(self, address: str, broker_name: str, epoch: int) -> None:
        """Record a master's epoch before its registration; Refused if another address had it or a later one."""
        _check_lengths(brokerName=broker_name, brokerAddr=address)
        newest, at = self.newest_master(broker_name)
        # After epoch 5 at A, B is refused with 5 or less and admitted with 6, while A may register with 5 again.
        if epoch > newest or at == address:
            while len(self._masters) >= MAX_MASTERS and broker_name not in self._masters:
                del self._masters[next(iter(self._masters))]
            self._masters[broker_name] = max(epoch, newest), address
            self._refused.discard(address)
            return
        details = {"masterEpoch": str(newest), "masterAddr": at}
        refused = Refused(
            refusals.EPOCH_TAKEN, details=details,
            address=address, broker=broker_name, epoch=epoch, master=at, newest=newest,
        )  # fmt: skip
        if address not in self._refused and len(self._refused) < MAX_MASTERS:
            self._refused.add(address)
            logger.error("refused a second master: %s. Start %s with brokerRole=SLAVE", refused, address)
        raise refused

    def newest_master(self, broker_name: str) -> tuple[int, str]:
        """Return epoch and address of a broker name's newest master; (0, "") without epochs."""
        return self._masters.get(broker_name, (0, ""))

    def unregister(self, address: str) -> None:
        """Remove a broker; an unknown address is ignored."""
        if address in self._live:
            self._remove(address, "unregistered")

    def is_registered(self, registration: Registration, digest: bytes, owner: object) -> bool:
        """Return whether a master's last registration had the same values, and its topics still have their routes."""
        address, name, broker_id, cluster, ha_server_addr, _ = registration
        live = self._live.get(address)
        return (
            live is not None
            and live.digest == digest
            and (live.broker_name, live.broker_id, live.ha_server_addr) == (name, broker_id, ha_server_addr)
            and live.owner is owner
            and self._is_complete(address, live)
            and self._brokers[name].cluster == cluster
        )

    def _is_complete(self, address: str, live: _Live) -> bool:
        """Whether a broker has all routes that it registered: with its address, and of a master with its topics."""
        broker = self._brokers.get(live.broker_name)
        is_found = broker is not None and broker.addresses.get(live.broker_id) == address
        return is_found and (live.digest is not None or live.broker_id != MASTER_ID)

    def refresh(self, address: str, now_ms: int) -> None:
        self._live[address].registered_ms = now_ms

    def data_version(self, address: str) -> DataVersion | None:
        live = self._live.get(address)
        return live.data_version if live else None

    def confirm(self, address: str, version: DataVersion, now_ms: int) -> bool:
        """Refresh a registration if it has this version and all its routes; return whether it has."""
        live = self._live.get(address)
        if live is None or live.data_version != version:
            return False
        live.registered_ms = now_ms
        return self._is_complete(address, live)

    # Connections and time.

    def remove_owned(self, owner: object) -> None:
        """Remove every address that `owner` registered last."""
        for address in [address for address, live in self._live.items() if live.owner is owner]:
            self._remove(address, "lost its connection")

    def remove_expired(self, now_ms: int) -> list[object]:
        """Remove expired brokers; return their owners."""
        expired = [address for address, live in self._live.items() if live.registered_ms + BROKER_EXPIRY_MS < now_ms]
        owners = [self._live[address].owner for address in expired]
        for address in expired:
            self._remove(address, f"did not register for {BROKER_EXPIRY_MS} ms")
        return owners

    # Reads.

    @property
    def broker_count(self) -> int:
        return len(self._live)

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the brokers and queues of a topic; None if no broker has it."""
        brokers = [broker for broker in self._topics.get(topic, ()) if broker.addresses]
        if not brokers:
            return None
        filter_servers = {
            address: self._live[address].filter_servers
            for broker in brokers
            for address in broker.addresses.values()
            if self._live[address].filter_servers
        }
        return TopicRouteData(
            broker_datas=list(map(_broker_data, brokers)),
            filter_server_table=filter_servers,
            queue_datas=[broker.queues[topic] for broker in brokers],
        )

    def clusters(self) -> ClusterInfo:
        """Return all brokers, and the broker names of each cluster."""
        names: dict[str, list[str]] = {}
        for name, broker in self._brokers.items():
            names.setdefault(broker.cluster, []).append(name)
        return ClusterInfo(
            broker_addr_table={name: _broker_data(broker) for name, broker in self._brokers.items()},
            cluster_addr_table=names,
        )

    def topics(self) -> list[str]:
        return slices.run(self.topics_steps())

    def topics_steps(self, accepts: Callable[[QueueData], bool] | None = None) -> Generator[None, None, list[str]]:
        """Find the topics whose queues on some broker `accepts` accepts, or all. A generator of small steps."""
        if accepts is None and not self._gone:
            return list(self._topics)
        found: list[str] = []
        for topic, brokers in list(self._topics.items()):
            if any(broker.addresses and (accepts is None or accepts(broker.queues[topic])) for broker in brokers):
                found.append(topic)
            yield
        return found

    def topics_of_cluster_steps(self, cluster: str) -> Generator[None, None, list[str]]:
        """Find the topics of a cluster. A generator of small steps."""
        return self.topics_steps(lambda queues: self._is_of_cluster(queues.broker_name, cluster))

    def _is_of_cluster(self, broker_name: str, cluster: str) -> bool:
        broker = self._brokers.get(broker_name)  # it may be removed between two steps
        return broker is not None and broker.cluster == cluster

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the cluster and broker names, which are topics, and the address of a broker with more of them."""
        clusters = self.clusters().cluster_addr_table
        names = dict.fromkeys(name for cluster, brokers in clusters.items() for name in (cluster, *brokers))
        first = next(iter(self._brokers.values()), None)
        return list(names), min(first.addresses.items())[1] if first else None

    # Changes by operators.

    def set_writable_steps(self, broker_name: str, writable: bool) -> Generator[None, None, int]:
        """Grant or revoke write permission until changed topics are registered; return the count. In small steps."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            return 0
        count = 0
        for topic in list(broker.queues):
            yield
            data = broker.queues.get(topic)
            if data is not None:
                perm = data.perm | PERM_WRITE if writable else data.perm & ~PERM_WRITE
                broker.queues[topic] = replace(data, perm=perm)
                count += 1
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic on one cluster's brokers or all, until a broker registers it again."""
        brokers = self._topics.get(topic, ())
        deleted = {broker for broker in brokers if cluster is None or broker.cluster == cluster}
        for broker in deleted:
            del broker.queues[topic]
            if (master := self._live.get(broker.addresses.get(MASTER_ID, ""))) is not None:
                master.digest = None
        self._removed_queues(deleted, topic)

    def sweep_steps(self) -> Generator[None, None, None]:
        """Free the queues of removed brokers in small steps; several sweeps may run concurrently."""
        while self._gone:
            broker = self._gone[-1]
            if not broker.queues:
                self._gone.pop()
                continue
            topic, _ = broker.queues.popitem()
            self._removed_queues({broker}, topic)
            yield

    def _removed_queues(self, brokers: Set[_Broker], topic: str) -> None:
        if brokers:
            self._queues_count -= len(brokers)
            self._topics[topic] = tuple(broker for broker in self._topics[topic] if broker not in brokers)
            if not self._topics[topic]:
                del self._topics[topic]

    def _note_conflict(self, broker_name: str, broker_id: int, present: str, address: str) -> None:
        """Log that an address registers again with an id that `present` has since taken: both are alive."""
        if present != address and (broker_name, broker_id) not in self._conflicts:
            self._conflicts.add((broker_name, broker_id))
            logger.error(
                "broker %s: %s and %s both register with id %d; clients see the one that registered last, and both "
                "accept requests. Stop one of them: two masters of one name store different messages",
                broker_name, present, address, broker_id,
            )  # fmt: skip

    def _remove(self, address: str, why: str) -> None:
        live = self._live.pop(address)
        self._conflicts.discard((live.broker_name, live.broker_id))
        logger.info("broker %s at %s %s", live.broker_name, address, why)
        broker = self._brokers.get(live.broker_name)
        if broker is None or broker.addresses.get(live.broker_id) != address:
            return  # another address was registered under its name and id
        del broker.addresses[live.broker_id]
        if broker.addresses:
            return
        del self._brokers[live.broker_name]
        if broker.queues:
            self._gone.append(broker)
            self._on_gone()


def is_unit(queues: QueueData) -> bool:
    return bool(queues.topic_sys_flag & TOPIC_FLAG_UNIT)


def is_unit_sub(queues: QueueData) -> bool:
    return bool(queues.topic_sys_flag & TOPIC_FLAG_UNIT_SUB)


def is_unit_sub_only(queues: QueueData) -> bool:
    return is_unit_sub(queues) and not is_unit(queues)


def _beyond(broker_name: str, address: str, found: str, limit: int, key: str) -> Refused:
    return _logged(
        Refused(refusals.BROKER_BEYOND_LIMIT, broker=broker_name, address=address, found=found, limit=limit, key=key)
    )


def _logged(refused: Refused) -> Refused:
    logger.warning("refused a registration: %s", refused)
    return refused


def _check_lengths(**fields: str) -> None:
    """Raise Refused for a name or address longer than any broker's."""
    for field_name, text in fields.items():
        if len(text) > MAX_NAME_LENGTH:
            raise Refused(refusals.FIELD_TOO_LONG, field=field_name, size=len(text), limit=MAX_NAME_LENGTH)


def _broker_data(broker: _Broker) -> BrokerData:
    return BrokerData(
        broker_addrs=dict(sorted(broker.addresses.items())), broker_name=broker.name, cluster=broker.cluster
    )


def _queue_data(broker_name: str, topic: TopicConfig) -> QueueData:
    return _shared(broker_name, topic.perm, topic.read_queue_nums, topic.topic_sys_flag, topic.write_queue_nums)


@lru_cache(maxsize=4096)
def _shared(broker_name: str, perm: int, read_queue_nums: int, topic_sys_flag: int, write_queue_nums: int) -> QueueData:
    """Return one object for all topics of a broker with the same settings, which are nearly all."""
    return QueueData(
        broker_name=broker_name,
        perm=perm,
        read_queue_nums=read_queue_nums,
        topic_sys_flag=topic_sys_flag,
        write_queue_nums=write_queue_nums,
    )
