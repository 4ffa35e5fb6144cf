"""TrafficAdmin: message rates of a topic and its consumer groups, summed over all brokers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rucola.admin.brokers import BrokerAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.requests import gather_fail_fast, masters_of
from rucola.admin.topics import TopicAdmin
from rucola.domain.statistics import GROUP_GET_NUMS, TOPIC_PUT_NUMS, group_key
from rucola.errors import BrokerError


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
    accumulation: int
    out: Traffic


@dataclass(slots=True)
class TopicTraffic:
    """The messages stored in a topic, and received by each of its groups."""

    topic: str
    came: Traffic
    groups: list[GroupTraffic]


class TrafficAdmin:
    def __init__(self, brokers: BrokerAdmin, topics: TopicAdmin, groups: GroupAdmin) -> None:
        self._brokers = brokers
        self._topics = topics
        self._groups = groups

    async def of_topic(self, topic: str) -> TopicTraffic:
        addresses = masters_of((await self._topics.route(topic)).broker_datas).values()
        groups = []
        for group in await self._topics.consumer_groups(topic):
            outgoing = await self._traffic(addresses, GROUP_GET_NUMS, group_key(topic, group))
            table = (await self._groups.consume_stats(group, topic)).offset_table
            backlog = sum(offsets.broker_offset - offsets.consumer_offset for offsets in table.values())
            groups.append(GroupTraffic(group, max(0, backlog), outgoing))
        return TopicTraffic(topic, await self._traffic(addresses, TOPIC_PUT_NUMS, topic), groups)

    async def _traffic(self, addresses: Iterable[str], name: str, key: str) -> Traffic:
        async def broker_traffic(address: str) -> Traffic:
            try:
                data = await self._brokers.stats(address, name, key)
            except BrokerError:
                return Traffic()  # the broker has counted nothing
            return Traffic(data.stats_minute.tps, data.day_count)

        parts = await gather_fail_fast(map(broker_traffic, addresses))
        return Traffic(sum(part.tps for part in parts), sum(part.day_count for part in parts))
