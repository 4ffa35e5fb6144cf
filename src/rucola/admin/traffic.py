"""TrafficAdmin: message rates of topics and their consumer groups, summed over all brokers.

Topics, offsets and members are requested once for each broker or group. Only counters and backlogs need a request for
each topic, or each topic of a group; up to `requests.CONCURRENT_REQUESTS` of these are in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from rucola.admin.brokers import BrokerAdmin
from rucola.admin.cluster import ClusterAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.offsets import OffsetAdmin
from rucola.admin.requests import addresses_of, gather_fail_fast
from rucola.admin.topics import TopicAdmin
from rucola.domain.statistics import GROUP_GET_NUMS, TOPIC_PUT_NUMS, group_key


@dataclass(slots=True)
class Traffic:
    """Messages per second in the last minute, and messages in the last 24 hours."""

    tps: float = 0.0
    day_count: int = 0


@dataclass(slots=True)
class GroupTraffic:
    """The messages of a topic that a group receives."""

    consumer_group: str
    # The backlog of the group, in messages; Apache's name.
    accumulation: int = 0
    out: Traffic = field(default_factory=Traffic)


@dataclass(slots=True)
class TopicTraffic:
    """The messages stored in a topic, and received by each of its groups."""

    topic: str
    came: Traffic = field(default_factory=Traffic)
    groups: list[GroupTraffic] = field(default_factory=list)


@dataclass(slots=True)
class _Consumption:
    """The topics of a broker and their consumers, as pairs of topic and group."""

    address: str
    topics: set[str]
    pairs: set[tuple[str, str]]
    broadcasting: set[str]


class TrafficAdmin:
    def __init__(
        self, brokers: BrokerAdmin, cluster: ClusterAdmin, topics: TopicAdmin, groups: GroupAdmin, offsets: OffsetAdmin
    ) -> None:
        self._brokers = brokers
        self._cluster = cluster
        self._topics = topics
        self._groups = groups
        self._offsets = offsets

    async def of_topics(self, topics: Iterable[str]) -> list[TopicTraffic]:
        """Return the traffic of topics, each with the groups that subscribe to it or have committed offsets on it."""
        found = {topic: TopicTraffic(topic) for topic in topics}
        addresses = addresses_of((await self._cluster.info()).broker_addr_table.values())
        brokers = await gather_fail_fast(map(self._consumption, addresses))
        broadcasting = {group for at in brokers for group in at.broadcasting}
        groups: dict[str, list[GroupTraffic]] = {}
        for topic, group in sorted({pair for at in brokers for pair in at.pairs}):
            groups.setdefault(topic, []).append(GroupTraffic(group))
        requests: list[Coroutine[Any, Any, None]] = []
        for at in brokers:
            for topic in at.topics & {*found}:
                of_topic = found[topic]
                of_topic.groups = groups.get(topic, [])
                requests.append(self._count(of_topic.came, at, TOPIC_PUT_NUMS, topic))
                for one in of_topic.groups:
                    requests.append(self._count(one.out, at, GROUP_GET_NUMS, group_key(topic, one.consumer_group)))
                    if one.consumer_group not in broadcasting:  # its members keep their offsets themselves
                        requests.append(self._add_backlog(one, at, topic))
        await gather_fail_fast(requests)
        return list(found.values())

    async def _consumption(self, address: str) -> _Consumption:
        topics, committed, configs = await asyncio.gather(
            self._topics.configs(address), self._offsets.all(address), self._groups.configs(address)
        )
        pairs = {(one.topic, one.group) for one in committed}
        names = sorted({*configs} | {group for _, group in pairs})
        members = await gather_fail_fast(self._groups.find_consumer_connection(name, address) for name in names)
        online = {name: one for name, one in zip(names, members, strict=True) if one is not None}
        pairs |= {(topic, name) for name, one in online.items() for topic in one.subscription_table}
        return _Consumption(
            address, {*topics}, pairs, {name for name, one in online.items() if one.message_model == "BROADCASTING"}
        )

    async def _count(self, traffic: Traffic, at: _Consumption, name: str, key: str) -> None:
        tps, day_count = await self._brokers.rate(at.address, name, key)
        traffic.tps += tps
        traffic.day_count += day_count

    async def _add_backlog(self, traffic: GroupTraffic, at: _Consumption, topic: str) -> None:
        stats = await self._groups.consume_stats_at(at.address, traffic.consumer_group, topic)
        traffic.accumulation += max(0, sum(at.broker_offset - at.consumer_offset for at in stats.offset_table.values()))
