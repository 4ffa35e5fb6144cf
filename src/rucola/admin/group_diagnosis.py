"""GroupDiagnosis: why a consumer group is behind.

Each finding has a reason for programs, and the fields from which a command that repairs it is made:

    reason                meaning                                              fields
    BROKER_SILENT         a broker does not answer: its queues are missing     brokerName error
    CONSUME_DISABLED      a broker refuses the group                           brokerName address retryQueueNums
                                                                               retryMaxTimes
    TOPIC_NOT_READABLE    a topic permits no reads on a broker                 topic brokerName address
    NO_CLIENT             messages wait, and no client is connected            backlog
    CLIENT_ID_SHARED      several clients have one id, and so one queue each   clientId addresses
                          of them is consumed by none
    CLIENT_SILENT         a client does not answer its broker                  clientId error
    SUBSCRIPTIONS_DIFFER  the clients subscribe differently: each replaces     clientIds
                          what the others subscribed to
    NOT_SUBSCRIBED        no client subscribes to a topic with a backlog       topic backlog
    TOO_FEW_QUEUES        more clients than queues: some have none             topic clients queues
    QUEUE_UNASSIGNED      no client consumes a queue with a backlog            topic brokerName queueId backlog
    QUEUE_STUCK           a client has messages of a queue and finishes none   topic brokerName queueId clientId cached
                                                                               idleMs
    CLIENT_FULL           a client has fetched as many messages as it may      topic brokerName queueId clientId cached
    CONSUME_FAILS         the listener of a client fails                       topic clientId failedTps failedLastHour
    ONE_QUEUE             one queue has most of the backlog: its messages      topic brokerName queueId backlog total
                          share a key, or its client is slow
    POP_BLOCKED           nobody receives the next messages of a queue by POP  topic brokerName queueId inFlight why
    DISK_FULL             the disk of a broker is nearly full                  brokerName used
    SLOW                  none of these, and messages wait                     backlog consumeTps consumeRt

Up to MAX_CLIENTS clients are asked. Brokers that do not answer do not reduce the number for others.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rucola.admin.brokers import BrokerAdmin
from rucola.admin.cluster import ClusterAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.requests import gather_to_completion, masters_of
from rucola.admin.topics import TopicAdmin
from rucola.domain.client import ConsumerConnection
from rucola.domain.diagnosis import Finding
from rucola.domain.group import SubscriptionGroupConfig
from rucola.domain.pop import PopQueueStatus
from rucola.domain.queue import MessageQueue
from rucola.domain.statistics import OffsetWrapper
from rucola.domain.topic import PERM_READ
from rucola.errors import ConfigError, MQError, TopicNotFound
from rucola.message.topics import is_system_topic
from rucola.protocol.connections import ConsumerRunningInfo

MAX_CLIENTS: Final = 20
STUCK_MS: Final = 60_000
FULL_COUNT: Final = 1000
"""Default of a client's `pullThresholdForQueue`."""
DISK_RATIO: Final = 0.85
MOST: Final = 0.8
"""Share of the backlog that one queue has if it is most of it."""


@dataclass(slots=True)
class _Observed:
    """What brokers and clients say about a group."""

    group: str
    masters: dict[str, str]
    failures: dict[str, MQError] = field(default_factory=dict)
    """By broker name."""
    configs: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    disks: dict[str, float] = field(default_factory=dict)
    offsets: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0
    connections: list[ConsumerConnection] = field(default_factory=list)
    infos: dict[str, ConsumerRunningInfo] = field(default_factory=dict)
    silent: dict[str, MQError] = field(default_factory=dict)
    pop: dict[MessageQueue, PopQueueStatus] = field(default_factory=dict)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    """Topic and broker name."""

    def backlog(self, queue: MessageQueue) -> int:
        return max(0, self.offsets[queue].broker_offset - self.offsets[queue].consumer_offset)

    @property
    def behind(self) -> dict[MessageQueue, int]:
        return {queue: backlog for queue in sorted(self.offsets) if (backlog := self.backlog(queue))}

    @property
    def clients(self) -> dict[str, set[str]]:
        """Addresses by client id; each broker has its own connection of a client, from the same host."""
        addresses: dict[str, set[str]] = {}
        for one in self.connections:
            for client in one.connection_set:
                addresses.setdefault(client.client_id, set())
            for client_id, found in one.shared_client_ids.items():
                addresses[client_id] |= set(found)
        return addresses

    @property
    def subscribed(self) -> set[str]:
        return {topic for one in self.connections for topic in one.subscription_table}

    @property
    def is_pushed(self) -> bool:
        """Whether clients say what they consume: those that only pull need not."""
        return any(one.consume_type == "CONSUME_PASSIVELY" for one in self.connections)

    @property
    def knows_all_queues(self) -> bool:
        """Whether every client has said which queues it consumes."""
        return self.is_pushed and bool(self.infos) and not self.silent and self.infos.keys() == self.clients.keys()


class GroupDiagnosis:
    def __init__(self, cluster: ClusterAdmin, brokers: BrokerAdmin, topics: TopicAdmin, groups: GroupAdmin) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._topics = topics
        self._groups = groups

    async def check(self, group: str) -> list[Finding]:
        """Return the findings about a group; none if it has no backlog and nothing hinders it."""
        brokers = (await self._cluster.info()).broker_addr_table
        seen = _Observed(group, masters_of(brokers.values()))
        for name in brokers.keys() - seen.masters.keys():
            seen.failures[name] = ConfigError(f"broker {name} has no master", subject=name)
        await gather_to_completion(self._observe_broker(seen, name) for name in sorted(seen.masters))
        await gather_to_completion(self._observe_topic(seen, topic) for topic in {one.topic for one in seen.offsets})
        await self._observe_clients(seen)
        found = [finding for check in CHECKS for finding in check(seen)]
        if not found and seen.behind:
            rates = [status.consume_rt for info in seen.infos.values() for status in info.status_table.values()]
            fields = {"consumeTps": round(seen.consume_tps, 1), "consumeRt": round(max(rates, default=0.0), 1)}
            found.append(Finding("SLOW", group, {"backlog": sum(seen.behind.values())} | fields))
        return found

    async def _observe_broker(self, seen: _Observed, name: str) -> None:
        address = seen.masters[name]
        try:
            stats = await self._groups.consume_stats_at(address, seen.group)
            seen.offsets |= stats.offset_table
            seen.consume_tps += stats.consume_tps
            configs = await self._groups.configs(address)
            if seen.group in configs:
                seen.configs[name] = configs[seen.group]
            seen.disks[name] = float((await self._brokers.runtime_stats(address)).get("commitLogDiskRatio", 0))
            connection = await self._groups.find_consumer_connection(seen.group, address)
            if connection is not None:
                seen.connections.append(connection)
                if connection.message_model == "BROADCASTING":  # its clients keep their offsets themselves
                    seen.offsets = {queue: at for queue, at in seen.offsets.items() if queue not in stats.offset_table}
        except MQError as error:
            seen.failures[name] = error

    async def _observe_topic(self, seen: _Observed, topic: str) -> None:
        try:
            route = await self._topics.route(topic)
        except TopicNotFound:
            return
        seen.unreadable += [(topic, data.broker_name) for data in route.queue_datas if not data.perm & PERM_READ]

    async def _observe_clients(self, seen: _Observed) -> None:
        async def observe(client_id: str) -> None:
            try:
                seen.infos[client_id] = await self._groups.running_info(seen.group, client_id)
            except MQError as error:
                seen.silent[client_id] = error

        await gather_to_completion(observe(client_id) for client_id in sorted(seen.clients)[:MAX_CLIENTS])
        try:
            seen.pop = await self._groups.pop_queues(seen.group)
        except MQError:
            pass  # the broker that fails is reported already


def _of_queue(queue: MessageQueue) -> dict[str, Any]:
    return {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}


def _silent_brokers(seen: _Observed) -> Iterator[Finding]:
    for name, error in sorted(seen.failures.items()):
        yield Finding("BROKER_SILENT", name, {"brokerName": name, "error": str(error)})


def _settings(seen: _Observed) -> Iterator[Finding]:
    for name, config in sorted(seen.configs.items()):
        if not config.consume_enable:
            numbers = {"retryQueueNums": config.retry_queue_nums, "retryMaxTimes": config.retry_max_times}
            where = {"brokerName": name, "address": seen.masters[name]}
            yield Finding("CONSUME_DISABLED", seen.group, where | numbers)
    for topic, name in sorted(seen.unreadable):
        fields = {"topic": topic, "brokerName": name, "address": seen.masters.get(name, "")}
        yield Finding("TOPIC_NOT_READABLE", topic, fields)


def _clients(seen: _Observed) -> Iterator[Finding]:
    if not seen.clients:
        if seen.behind and not seen.failures:
            yield Finding("NO_CLIENT", seen.group, {"backlog": sum(seen.behind.values())})
        return
    for client_id, addresses in seen.clients.items():
        if addresses:
            yield Finding("CLIENT_ID_SHARED", client_id, {"clientId": client_id, "addresses": sorted(addresses)})
    for client_id, error in sorted(seen.silent.items()):
        yield Finding("CLIENT_SILENT", client_id, {"clientId": client_id, "error": str(error)})
    by_subscription = defaultdict(list)
    for client_id, info in sorted(seen.infos.items()):
        by_subscription[info.subscriptions].append(client_id)
    if len(by_subscription) > 1:
        yield Finding("SUBSCRIPTIONS_DIFFER", seen.group, {"clientIds": [ids[0] for ids in by_subscription.values()]})


def _topics(seen: _Observed) -> Iterator[Finding]:
    backlogs, queues = Counter[str](), Counter[str]()
    for queue in seen.offsets:
        queues[queue.topic] += 1
        backlogs[queue.topic] += seen.backlog(queue)
    for topic, backlog in sorted(backlogs.items()):
        if not backlog or not seen.is_pushed or is_system_topic(topic):
            continue
        if topic not in seen.subscribed:
            yield Finding("NOT_SUBSCRIBED", topic, {"topic": topic, "backlog": backlog})
        elif len(seen.clients) > queues[topic] and not seen.failures:
            yield Finding(
                "TOO_FEW_QUEUES", topic, {"topic": topic, "clients": len(seen.clients), "queues": queues[topic]}
            )


def _queues(seen: _Observed) -> Iterator[Finding]:
    now_ms = time.time_ns() // 1_000_000
    holders = {queue: name for name, info in sorted(seen.infos.items()) for queue in info.mq_table}
    for queue, backlog in seen.behind.items():
        client_id = holders.get(queue)
        if client_id is None:
            if seen.knows_all_queues and queue.topic in seen.subscribed and queue not in seen.pop:
                yield Finding("QUEUE_UNASSIGNED", str(queue), _of_queue(queue) | {"backlog": backlog})
            continue
        held = seen.infos[client_id].mq_table[queue]
        fields = _of_queue(queue) | {"clientId": client_id, "cached": held.cached_msg_count}
        # A client that has finished none since it has the queue does not say since when: 0.
        idle_ms = now_ms - held.last_consume_timestamp if held.last_consume_timestamp else 0
        if held.cached_msg_count and (idle_ms >= STUCK_MS or not held.last_consume_timestamp):
            yield Finding("QUEUE_STUCK", str(queue), fields | {"idleMs": idle_ms})
        elif held.cached_msg_count >= FULL_COUNT:
            yield Finding("CLIENT_FULL", str(queue), fields)
    total = sum(seen.behind.values())
    if len(seen.offsets) > 1:
        for queue, backlog in seen.behind.items():
            if total > FULL_COUNT and backlog >= MOST * total:
                yield Finding("ONE_QUEUE", str(queue), _of_queue(queue) | {"backlog": backlog, "total": total})


def _failures(seen: _Observed) -> Iterator[Finding]:
    for client_id, info in sorted(seen.infos.items()):
        for topic, status in sorted(info.status_table.items()):
            if status.consume_failed_tps > 0:
                rates = {"failedTps": round(status.consume_failed_tps, 1), "failedLastHour": status.consume_failed_msgs}
                yield Finding("CONSUME_FAILS", client_id, {"topic": topic, "clientId": client_id} | rates)
    for queue, held in sorted(seen.pop.items()):
        if held.blocked:
            fields = _of_queue(queue) | {"inFlight": held.in_flight, "why": held.blocked}
            yield Finding("POP_BLOCKED", str(queue), fields)


def _disks(seen: _Observed) -> Iterator[Finding]:
    for name, ratio in sorted(seen.disks.items()):
        if ratio >= DISK_RATIO:
            yield Finding("DISK_FULL", name, {"brokerName": name, "used": f"{ratio:.0%}"})


CHECKS: Final[tuple[Callable[[_Observed], Iterator[Finding]], ...]] = (
    _silent_brokers, _settings, _clients, _topics, _queues, _failures, _disks,
)  # fmt: skip
"""The checks; the likeliest cause comes first."""
