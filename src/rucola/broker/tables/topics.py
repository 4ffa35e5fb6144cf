"""Topics of a broker: `config/topics.json`.

A topic is created by an operator, by the first message that a producer sends to it if its default topic may be
inherited from (TBW102 with autoCreateTopicEnable), or by the system (retry and dead letter topics, system topics at the
start). Every change raises the data version and calls `on_change`, which schedules a write and a registration. The
response to a request that changes the table waits for the write; a send that creates a retry topic does not.

Corresponds to `TopicConfigManager` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rucola.broker.config import BrokerConfig
from rucola.broker.limits import Limits
from rucola.broker.tables.settings_table import SettingsTable
from rucola.domain.group import SubscriptionGroupConfig
from rucola.domain.topic import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rucola.message import topics
from rucola.message.topics import retry_topic

SCHEDULE_QUEUE_NUMS = 18
BENCHMARK_QUEUE_NUMS = 1024


class TopicConfigTable(SettingsTable[TopicConfig, TopicConfigSerializeWrapper]):
    def __init__(
        self,
        path: Path,
        config: BrokerConfig,
        on_change: Callable[[], None],
        limits: Limits,
        *,
        enable_lmq: bool = False,
    ) -> None:
        super().__init__(path, TopicConfigSerializeWrapper, on_change, _light_queue if enable_lmq else None)
        self._config = config
        self._limits = limits
        self._own: Final = frozenset(
            {
                config.broker_cluster_name,
                config.broker_name,
                topics.reply_topic(config.broker_cluster_name),
                *([config.msg_trace_topic_name] if config.trace_topic_enable else []),
            }
        )
        self.by_name: Final[Mapping[str, TopicConfig]] = self._table

    def load(self, now_ms: int) -> None:
        """Load the file, and add the system topics. Raises StoreCorrupt if the file cannot be parsed."""
        if not self._read():
            self.data_version = DataVersion(timestamp=now_ms)
        self._add({topic.topic_name: topic for topic in self._missing_system_topics()})

    @property
    def system_topics(self) -> frozenset[str]:
        """The topics of the system and of this broker: cluster, broker name and reply topic."""
        return topics.SYSTEM_TOPICS | self._own

    def is_system_topic(self, topic: str) -> bool:
        """Return whether a topic belongs to the system or this broker: requests may not change it."""
        return topic in self._own or topics.is_system_topic(topic)

    def put(self, topic: TopicConfig, now_ms: int) -> None:
        self._put(topic.topic_name, topic, now_ms)

    def bump_data_version(self, now_ms: int) -> None:
        """Raise the data version as if all topics had changed, since what clients may do with them has."""
        self._changes.clear()
        self.data_version = self.data_version.next(now_ms)
        self._on_change()

    def add_system_topics(self, now_ms: int) -> None:
        """Create missing system topics, after a change of the settings that enable them."""
        for topic in self._missing_system_topics():
            self.put(topic, now_ms)

    def create_from_default(
        self,
        topic: str,
        default_topic: str,
        queue_nums: int,
        topic_sys_flag: int,
        now_ms: int,
        *,
        is_limited: bool = True,
    ) -> TopicConfig | None:
        """Create a topic for its first message; None if `default_topic` may not be inherited from. Raises Refused."""
        created = self.inherited(topic, default_topic, queue_nums, topic_sys_flag)
        if created is None:
            return None
        if is_limited:
            self._limits.check_new_topic(topic, len(self._table))
        self.put(created, now_ms)
        return created

    def inherited(self, topic: str, default_topic: str, queue_nums: int, topic_sys_flag: int = 0) -> TopicConfig | None:
        """Return the settings that a topic would be created with; None if it may not be."""
        # Three conditions: the default topic exists, may be inherited from, and is not disabled by the configuration.
        default = self._table.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return None
        if default_topic == topics.AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            return None
        # A producer may request fewer queues than the default topic has, not more. The permission to inherit is not
        # inherited itself.
        queue_nums = max(0, min(queue_nums, default.write_queue_nums))
        return TopicConfig(
            topic_name=topic,
            perm=default.perm & ~PERM_INHERIT,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            topic_filter_type=default.topic_filter_type,
            topic_sys_flag=topic_sys_flag,
        )

    def ensure(
        self, topic: str, queue_nums: int, now_ms: int, topic_sys_flag: int = 0, *, is_limited: bool = False
    ) -> TopicConfig:
        """Return a retry or dead letter topic, created if missing; `is_limited` raises Refused by maxTopicNums."""
        config = self._table.get(topic)
        if config is None:
            if is_limited:
                self._limits.check_new_topic(topic, len(self._table))
            config = TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_nums,
                write_queue_nums=queue_nums,
                topic_sys_flag=topic_sys_flag,
            )
            self.put(config, now_ms)
        return config

    def ensure_retry_topic(self, group: SubscriptionGroupConfig, now_ms: int, topic_sys_flag: int = 0) -> TopicConfig:
        """Return a group's retry topic, created if it is missing, with at least max(retryQueueNums, 1) queues."""
        queue_nums = max(1, group.retry_queue_nums)
        topic = self.ensure(retry_topic(group.group_name), queue_nums, now_ms, topic_sys_flag)
        if min(topic.read_queue_nums, topic.write_queue_nums) < queue_nums:
            topic = msgspec.structs.replace(
                topic,
                read_queue_nums=max(topic.read_queue_nums, queue_nums),
                write_queue_nums=max(topic.write_queue_nums, queue_nums),
            )
            self.put(topic, now_ms)
        return topic

    def readable_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue for a message that waited for `queue_id`, another if the topic no longer has that queue."""
        config = self._table.get(topic)
        return queue_id % config.read_queue_nums if config is not None and config.read_queue_nums > 0 else queue_id

    def ensure_timer_topic(self, now_ms: int) -> None:
        """Create the topic of timer messages at the first one: Apache's tools would list it as a user's topic."""
        self.ensure(topics.TIMER_TOPIC, 1, now_ms)

    def _missing_system_topics(self) -> list[TopicConfig]:
        return [topic for topic in self._system_topics() if topic.topic_name not in self._table]

    def _system_topics(self) -> Iterator[TopicConfig]:
        config = self._config
        read_write = PERM_READ | PERM_WRITE

        def topic(name: str, queue_nums: int = 1, perm: int = read_write) -> TopicConfig:
            return TopicConfig(topic_name=name, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm)

        yield topic(topics.SELF_TEST_TOPIC)
        if config.auto_create_topic_enable:
            yield topic(topics.AUTO_CREATE_TOPIC, config.default_topic_queue_nums, PERM_INHERIT | read_write)
        yield topic(topics.BENCHMARK_TOPIC, BENCHMARK_QUEUE_NUMS)
        yield topic(config.broker_cluster_name, 16, PERM_INHERIT | (read_write if config.cluster_topic_enable else 0))
        yield topic(config.broker_name, 1, PERM_INHERIT | (read_write if config.broker_topic_enable else 0))
        yield topic(topics.OFFSET_MOVED_EVENT)
        yield topic(topics.SCHEDULE_TOPIC, SCHEDULE_QUEUE_NUMS)
        yield topic(topics.TRANS_HALF_TOPIC)  # Apache's broker creates it with its first check of transactions
        if config.trace_topic_enable:
            yield topic(config.msg_trace_topic_name)
        yield topic(topics.reply_topic(config.broker_cluster_name))


def _light_queue(topic: str) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
