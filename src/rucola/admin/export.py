"""ExportAdmin: documents that describe a cluster, in the layout of Apache's export commands.

    metadata   topics and groups of several masters; queue numbers of equal names are added up
    configs    number of servers, and the settings of each master that matter for operation
    metrics    disk usage, rates, daily counts and clients of each master, and their totals

System topics and groups are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rucola.admin.brokers import BrokerAdmin, shortest_rate
from rucola.admin.cluster import ClusterAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.requests import AdminRequests, gather_fail_fast
from rucola.admin.topics import TopicAdmin
from rucola.domain.group import SYSTEM_GROUPS, SubscriptionGroupConfig
from rucola.domain.statistics import TOPIC_PUT_NUMS
from rucola.domain.topic import TopicConfig
from rucola.domain.version import VERSION_TEXT
from rucola.errors import MQError
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, TRANS_HALF_TOPIC, is_system_topic
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import version_text
from rucola.protocol.route import TopicList

CONFIG_KEYS = (
    "autoCreateSubscriptionGroup", "autoCreateTopicEnable", "brokerClusterName", "brokerId", "brokerName", "brokerRole",
    "fileReservedTime", "filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel",
    "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS",
)  # fmt: skip


class ExportAdmin:
    def __init__(
        self,
        requests: AdminRequests,
        cluster: ClusterAdmin,
        brokers: BrokerAdmin,
        topics: TopicAdmin,
        groups: GroupAdmin,
    ) -> None:
        self._requests = requests
        self._cluster = cluster
        self._brokers = brokers
        self._topics = topics
        self._groups = groups

    async def metadata(
        self, addresses: list[str], *, with_special: bool = False
    ) -> tuple[dict[str, TopicConfig], dict[str, SubscriptionGroupConfig]]:
        """Return topics and groups of masters by name; `with_special` adds retry topics and dead letter queues."""
        topics: dict[str, TopicConfig] = {}
        groups: dict[str, SubscriptionGroupConfig] = {}
        for broker_topics in await gather_fail_fast(
            self._user_topics(address, with_special=with_special) for address in addresses
        ):
            for name, topic in broker_topics.items():
                # Masters of a cluster share a topic: its queues are the sum of theirs.
                if name in topics:
                    topic.read_queue_nums += topics[name].read_queue_nums
                    topic.write_queue_nums += topics[name].write_queue_nums
                topics[name] = topic
        for broker_groups in await gather_fail_fast(map(self._user_groups, addresses)):
            for name, group in broker_groups.items():
                if name in groups:
                    group.retry_queue_nums += groups[name].retry_queue_nums
                groups[name] = group
        return dict(sorted(topics.items())), dict(sorted(groups.items()))

    async def configs(self, cluster: str) -> dict[str, Any]:
        """Return the number of servers of a cluster and the CONFIG_KEYS of its masters."""
        masters = await self._cluster.masters(cluster)
        info = await self._cluster.info()
        addresses = [info.broker_addr_table[name].broker_addrs for name in info.cluster_addr_table[cluster]]
        tables = await gather_fail_fast(map(self._brokers.config, masters.values()))
        configs = dict(zip(masters, tables, strict=True))
        return {
            "brokerConfigs": {
                name: {key: config[key] for key in CONFIG_KEYS if key in config} for name, config in configs.items()
            },
            "clusterScale": {
                "masterBrokerSize": len(masters),
                "namesrvSize": len(self._requests.name_servers),
                "slaveBrokerSize": sum(map(len, addresses)) - len(masters),
            },
        }

    async def metrics(self, cluster: str) -> dict[str, Any]:
        masters = await self._cluster.masters(cluster)
        metrics = await gather_fail_fast(map(self._metrics, masters.values()))
        report: dict[str, Any] = dict(zip(masters, metrics, strict=True))
        quotas = [broker["runtimeQuota"] for broker in report.values()]
        return {
            "evaluateReport": report,
            "totalData": {
                "totalOneDayNum": _totals(quota["oneDayNum"] for quota in quotas),
                "totalTps": _totals(quota["tps"] for quota in quotas),
            },
        }

    async def _metrics(self, address: str) -> dict[str, Any]:
        figures = await self._brokers.runtime_stats(address)
        config = await self._brokers.config(address)
        groups = await self._user_groups(address)
        half_tps, half_count = await self._brokers.rate(address, TOPIC_PUT_NUMS, TRANS_HALF_TOPIC)
        delayed_tps, delayed_count = await self._brokers.rate(address, TOPIC_PUT_NUMS, SCHEDULE_TOPIC)

        # Brokers report totals at the last two midnights; the difference is yesterday's count.
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

    async def _client_versions(self, groups: dict[str, SubscriptionGroupConfig]) -> list[str]:
        """Return the members' distinct languages and versions, such as `JAVA%V4_9_8`."""
        versions = set()
        for group in groups:
            try:
                connection = await self._groups.consumer_connection(group)
            except MQError:
                continue
            versions |= {f"{client.language}%{version_text(client.version)}" for client in connection.connection_set}
        return sorted(versions)

    async def _user_topics(self, address: str, *, with_special: bool) -> dict[str, TopicConfig]:
        response = await self._requests.invoke(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        # By name as well: a broker of Apache 4.9 counts only the topics that it creates itself.
        system = set(decode_body(TopicList, response.body).topic_list)
        special = () if with_special else (RETRY_PREFIX, DLQ_PREFIX)
        topics = await self._topics.configs(address)
        return {
            name: topic
            for name, topic in topics.items()
            if name not in system and not is_system_topic(name) and not name.startswith(special)
        }

    async def _user_groups(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        groups = await self._groups.configs(address)
        return {name: group for name, group in groups.items() if name not in SYSTEM_GROUPS}


def _totals(tables: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Add up the values of equal names: the sum of `normalInTps` is `totalNormalInTps`."""
    totals: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            total = f"total{name[0].upper()}{name[1:]}"
            totals[total] = totals.get(total, 0) + value
    return totals
