"""Topics, groups and their statistics: what operators ask a broker.

UPDATE_AND_CREATE_TOPIC (17), GET_ALL_TOPIC_CONFIG (21), GET_TOPIC_STATS_INFO (202), GET_CONSUME_STATS (208),
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), QUERY_TOPIC_CONSUME_BY_WHO (300).

Answers to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola import fastjson
from rucola.broker.clients import Clients
from rucola.broker.config import BrokerConfig
from rucola.broker.registration import Registration
from rucola.broker.tables.groups import SubscriptionGroupTable
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.broker.tables.topics import TopicConfigTable
from rucola.errors import InvalidMessage
from rucola.message.topics import check_group, check_topic, is_system_topic
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand, is_true
from rucola.protocol.queue import MessageQueue
from rucola.protocol.topic import (
    ConsumeStats,
    CreateTopicRequestHeader,
    GetConsumeStatsRequestHeader,
    OffsetWrapper,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
    TopicRequestHeader,
    encode_consume_stats,
    encode_topic_stats,
)
from rucola.remoting.connection import Answer, Connection, Processor, Reply
from rucola.store.message_store import MessageStore


class TopicProcessor:
    """Answers from the tables and the store."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsetTable,
        clients: Clients,
        registration: Registration,
        clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._registration = registration
        self._clock = clock

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_and_create_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.get_all_topic_config,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_and_create_subscriptiongroup,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.get_all_subscriptiongroup_config,
            RequestCode.GET_TOPIC_STATS_INFO: self.get_topic_stats_info,
            RequestCode.GET_CONSUME_STATS: self.get_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.query_topic_consume_by_who,
        }

    async def update_and_create_topic(self, connection: Connection, command: RemotingCommand) -> Answer:
        header = command.decode_header(CreateTopicRequestHeader)
        check_topic(header.topic)
        if is_system_topic(header.topic):
            raise InvalidMessage(f"The topic[{header.topic}] is conflict with system topic.")
        self._topics.put(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag,
                order=is_true(header.order),
            ),
            self._clock(),
        )
        await self._registration.settled()
        return command.response(ResponseCode.SUCCESS)

    def get_all_topic_config(self, connection: Connection, command: RemotingCommand) -> Reply:
        return command.response(ResponseCode.SUCCESS, body=encode_body(self._topics.wrapper()))

    def update_and_create_subscriptiongroup(self, connection: Connection, command: RemotingCommand) -> Reply:
        group = decode_body(SubscriptionGroupConfig, command.body)
        check_group(group.group_name)
        self._groups.put(group, self._clock())
        return command.response(ResponseCode.SUCCESS)

    def get_all_subscriptiongroup_config(self, connection: Connection, command: RemotingCommand) -> Reply:
        return command.response(ResponseCode.SUCCESS, body=encode_body(self._groups.wrapper()))

    def get_topic_stats_info(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(TopicRequestHeader)
        topic = self._topics.get(header.topic)
        if topic is None:
            return command.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{header.topic}] not exist")
        offsets: dict[MessageQueue, TopicOffset] = {}
        for queue_id in range(topic.write_queue_nums):
            max_offset = max(0, self._store.max_offset(header.topic, queue_id))
            newest_ms = self._store.store_time(header.topic, queue_id, max_offset - 1) if max_offset else 0
            offsets[MessageQueue(header.topic, self._config.broker_name, queue_id)] = TopicOffset(
                last_update_timestamp=max(0, newest_ms),
                max_offset=max_offset,
                min_offset=max(0, self._store.min_offset(header.topic, queue_id)),
            )
        return command.response(ResponseCode.SUCCESS, body=encode_topic_stats(offsets))

    def get_consume_stats(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(GetConsumeStatsRequestHeader)
        stats = ConsumeStats()
        members = self._clients.consumers.get(header.consumer_group)
        for name in [header.topic] if header.topic else self._offsets.topics_of(header.consumer_group):
            topic = self._topics.get(name)
            if topic is None or (members is not None and members.subscriptions and name not in members.subscriptions):
                continue
            for queue_id in range(topic.read_queue_nums):
                queue = MessageQueue(name, self._config.broker_name, queue_id)
                stats.offset_table[queue] = self._place(header.consumer_group, name, queue_id)
        return command.response(ResponseCode.SUCCESS, body=encode_consume_stats(stats))

    def _place(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        """A group's place in a queue."""
        consumed = max(0, self._offsets.get(group, topic, queue_id))
        last_ms = self._store.store_time(topic, queue_id, consumed - 1) if consumed else 0
        return OffsetWrapper(
            broker_offset=max(0, self._store.max_offset(topic, queue_id)),
            consumer_offset=consumed,
            last_timestamp=max(0, last_ms),
        )

    def query_topic_consume_by_who(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(TopicRequestHeader)
        groups = dict.fromkeys([*self._clients.groups_of(header.topic), *self._offsets.groups_of(header.topic)])
        return command.response(ResponseCode.SUCCESS, body=fastjson.dumps({"groupList": list(groups)}))
