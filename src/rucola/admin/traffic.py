"""TrafficAdmin: what comes into topics and goes out to groups, put together from the brokers' statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rucola.admin.cluster import ClusterAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.requests import each, masters_of
from rucola.admin.topics import TopicAdmin
from rucola.errors import BrokerError
from rucola.protocol.stats import GROUP_GET_NUMS, TOPIC_PUT_NUMS, group_key


@dataclass(slots=True)
class Traffic:
    """Messages a second in the last minute, and messages in the last 24 hours or since the brokers began to count."""

    tps: float = 0.0
    day_count: int = 0


@dataclass(slots=True)
class GroupTraffic:
    """What a group gets of a topic; `accumulation` is how many messages are before it."""

    consumer_group: str
    accumulation: int
    out: Traffic


@dataclass(slots=True)
class TopicTraffic:
    """What comes into a topic, and what each of its groups gets of it."""

    topic: str
    came: Traffic
    groups: list[GroupTraffic]


class TrafficAdmin(ClusterAdmin, TopicAdmin, GroupAdmin):
    """Part of AdminClient."""

    async def examine_topic_traffic(self, topic: str) -> TopicTraffic:
        """Rates and counts of a topic and of the groups that consume it, or have."""
        addresses = masters_of((await self.examine_topic_route(topic)).broker_datas).values()
        groups = []
        for group in await self.query_topic_consume_by_who(topic):
            out = await self._traffic(addresses, GROUP_GET_NUMS, group_key(topic, group))
            table = (await self.examine_consume_stats(group, topic)).offset_table
            ahead = sum(at.broker_offset - at.consumer_offset for at in table.values())
            groups.append(GroupTraffic(group, max(0, ahead), out))
        return TopicTraffic(topic, await self._traffic(addresses, TOPIC_PUT_NUMS, topic), groups)

    async def _traffic(self, addresses: Iterable[str], name: str, key: str) -> Traffic:
        async def at(address: str) -> Traffic:
            try:
                data = await self.view_broker_stats_data(address, name, key)
            except BrokerError:
                return Traffic()  # nothing was counted there
            return Traffic(data.stats_minute.tps, data.day_count)

        found = await each(map(at, addresses))
        return Traffic(sum(one.tps for one in found), sum(one.day_count for one in found))
