"""ExportAdmin: a cluster's settings and figures as whole documents, laid out as Apache's export commands write them.

    metadata   topics and groups of all masters; queues of a topic, and retry queues of a group, are added up
    configs    how many servers there are, and those settings of each master that tell clusters apart
    metrics    disk, rates, day counts and clients of each master, and the sums of rates and counts

Topics and groups of the system are left out, topics for retries and dead letters only unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rucola.admin.cluster import ClusterAdmin, shortest_rate
from rucola.admin.groups import GroupAdmin
from rucola.admin.requests import each
from rucola.admin.topics import TopicAdmin
from rucola.errors import BrokerError, MQError
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import VERSION_TEXT, version_text
from rucola.protocol.group import SYSTEM_GROUPS
from rucola.protocol.route import TopicList
from rucola.protocol.stats import TOPIC_PUT_NUMS
from rucola.protocol.topic import SubscriptionGroupConfig, TopicConfig

CONFIG_KEYS = (
    "autoCreateSubscriptionGroup", "autoCreateTopicEnable", "brokerClusterName", "brokerId", "brokerName", "brokerRole",
    "fileReservedTime", "filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel",
    "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS",
)  # fmt: skip
"""The settings that are exported, as far as a broker has them."""


class ExportAdmin(ClusterAdmin, TopicAdmin, GroupAdmin):
    """Part of AdminClient."""

    async def export_metadata(
        self, addresses: list[str], *, with_special: bool = False
    ) -> tuple[dict[str, TopicConfig], dict[str, SubscriptionGroupConfig]]:
        """Topics and groups of these masters, by name."""
        topics: dict[str, TopicConfig] = {}
        groups: dict[str, SubscriptionGroupConfig] = {}
        of_masters = await each(self._user_topics(address, with_special=with_special) for address in addresses)
        for of_master in of_masters:
            for name, topic in of_master.items():
                if name in topics:
                    topic.read_queue_nums += topics[name].read_queue_nums
                    topic.write_queue_nums += topics[name].write_queue_nums
                topics[name] = topic
        for groups_of_master in await each(map(self._user_groups, addresses)):
            for name, group in groups_of_master.items():
                if name in groups:
                    group.retry_queue_nums += groups[name].retry_queue_nums
                groups[name] = group
        return dict(sorted(topics.items())), dict(sorted(groups.items()))

    async def export_configs(self, cluster: str) -> dict[str, Any]:
        """How large the cluster is, and how its masters are set."""
        masters = await self.fetch_masters_of_cluster(cluster)
        info = await self.examine_cluster_info()
        addresses = [info.broker_addr_table[name].broker_addrs for name in info.cluster_addr_table[cluster]]
        tables = await each(map(self.get_broker_config, masters.values()))
        configs = dict(zip(masters, tables, strict=True))
        return {
            "brokerConfigs": {
                name: {key: config[key] for key in CONFIG_KEYS if key in config} for name, config in configs.items()
            },
            "clusterScale": {
                "masterBrokerSize": len(masters),
                "namesrvSize": len(self._name_servers.addresses),
                "slaveBrokerSize": sum(map(len, addresses)) - len(masters),
            },
        }

    async def export_metrics(self, cluster: str) -> dict[str, Any]:
        """What the cluster's masters bear at the moment and in a day."""
        masters = await self.fetch_masters_of_cluster(cluster)
        report: dict[str, Any] = dict(zip(masters, await each(map(self._metrics, masters.values())), strict=True))
        quotas = [broker["runtimeQuota"] for broker in report.values()]
        return {
            "evaluateReport": report,
            "totalData": {
                "totalOneDayNum": _totals(quota["oneDayNum"] for quota in quotas),
                "totalTps": _totals(quota["tps"] for quota in quotas),
            },
        }

    async def _metrics(self, address: str) -> dict[str, Any]:
        figures = await self.fetch_broker_runtime_stats(address)
        config = await self.get_broker_config(address)
        groups = await self._user_groups(address)
        half_tps, half_count = await self._put_nums(address, TRANS_HALF_TOPIC)
        delayed_tps, delayed_count = await self._put_nums(address, SCHEDULE_TOPIC)

        def of_day(kind: str) -> int:
            morning, before = (int(figures.get(f"msg{kind}Total{day}Morning", 0)) for day in ("Today", "Yesterday"))
            return morning - before

        return {
            "runtimeEnv": {
                "cpuNum": config.get("clientCallbackExecutorThreads"),
                "totalMemKBytes": figures.get("totalMemKBytes"),
            },
            "runtimeQuota": {
                "diskRatio": {name: figures.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
                "groupSize": len(groups),
                "messageAverageSize": figures.get("putMessageAverageSize"),
                "oneDayNum": {
                    "normalOneDayInNum": of_day("Put"),
                    "normalOneDayOutNum": of_day("Get"),
                    "scheduleOneDayInNum": delayed_count,
                    "transOneDayInNum": half_count,
                },
                "topicSize": len(await self._user_topics(address, with_special=False)),
                "tps": {
                    "normalInTps": shortest_rate(figures.get("putTps", "")),
                    "normalOutTps": shortest_rate(figures.get("getTransferedTps", "")),
                    "scheduleInTps": delayed_tps,
                    "transInTps": half_tps,
                },
            },
            "runtimeVersion": {"clientInfo": await self._client_versions(groups), "rocketmqVersion": VERSION_TEXT},
        }

    async def _put_nums(self, address: str, topic: str) -> tuple[float, int]:
        """Rate of the last minute and count of the last day of what came into a topic; 0 where nothing was counted."""
        try:
            data = await self.view_broker_stats_data(address, TOPIC_PUT_NUMS, topic)
        except BrokerError:
            return 0.0, 0
        return data.stats_minute.tps, data.day_count

    async def _client_versions(self, groups: dict[str, SubscriptionGroupConfig]) -> list[str]:
        """Language and version of every consumer, such as `JAVA%V4_9_8`, each once."""
        found = set()
        for group in groups:
            try:
                connection = await self.examine_consumer_connection_info(group)
            except MQError:
                continue
            found |= {f"{one.language}%{version_text(one.version)}" for one in connection.connection_set}
        return sorted(found)

    async def _user_topics(self, address: str, *, with_special: bool) -> dict[str, TopicConfig]:
        answer = await self._ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        system = set(decode_body(TopicList, answer.body).topic_list)
        special = () if with_special else (RETRY_PREFIX, DLQ_PREFIX)
        topics = await self.examine_topic_config(address)
        return {name: topic for name, topic in topics.items() if name not in system and not name.startswith(special)}

    async def _user_groups(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        groups = await self.examine_subscription_group_config(address)
        return {name: group for name, group in groups.items() if name not in SYSTEM_GROUPS}


def _totals(tables: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The sums of equal names: `normalInTps` gives `totalNormalInTps`."""
    totals: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            total = f"total{name[0].upper()}{name[1:]}"
            totals[total] = totals.get(total, 0) + value
    return totals
