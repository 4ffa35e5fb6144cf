"""Topics and their queues, as operators see them.

UPDATE_AND_CREATE_TOPIC (17), GET_ALL_TOPIC_CONFIG (21), GET_TOPIC_STATS_INFO (202), DELETE_TOPIC_IN_BROKER (215),
QUERY_CONSUME_QUEUE (321).

Answers to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: a topic that was deleted
leaves its ConsumeQueues until their messages expire. Made again before that, it goes on at the queue offsets where it
ended, so what groups have committed on it keeps its meaning. And numbers of queues and permissions that cannot be meant
are refused, since every look at a topic goes over its queues.
"""

from __future__ import annotations

import msgspec

from rucola import fastjson
from rucola.broker.background.registration import Registration
from rucola.broker.state import BrokerState
from rucola.errors import InvalidMessage
from rucola.message.topics import check_topic
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand, is_true
from rucola.protocol.query import ConsumeQueueData, QueryConsumeQueueRequestHeader, QueryConsumeQueueResponseBody
from rucola.protocol.queue import MessageQueue
from rucola.protocol.topic import (
    TOPIC_FILTER_TYPES,
    CreateTopicRequestHeader,
    TopicConfig,
    TopicOffset,
    TopicRequestHeader,
    encode_topic_stats,
)
from rucola.remoting.connection import Answer, Connection, Processor, Reply

MAX_UNITS = 1000
"""The most units in one answer to QUERY_CONSUME_QUEUE."""

MAX_QUEUE_NUMS = 65_536
MAX_PERM = 15
"""Read, write, inherit, and the priority that Apache's brokers know by name only."""


class TopicProcessor:
    """Answers from the tables and the store."""

    def __init__(self, state: BrokerState, registration: Registration) -> None:
        self._state = state
        self._registration = registration

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_and_create_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.get_all_topic_config,
            RequestCode.GET_TOPIC_STATS_INFO: self.get_topic_stats_info,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.QUERY_CONSUME_QUEUE: self.query_consume_queue,
        }

    async def update_and_create_topic(self, connection: Connection, command: RemotingCommand) -> Answer:
        header = command.decode_header(CreateTopicRequestHeader)
        self._check_user_topic(header.topic)
        check_range("readQueueNums", header.read_queue_nums, MAX_QUEUE_NUMS)
        check_range("writeQueueNums", header.write_queue_nums, MAX_QUEUE_NUMS)
        check_range("perm", header.perm, MAX_PERM)
        if header.topic_filter_type not in TOPIC_FILTER_TYPES:
            raise InvalidMessage(
                f"topicFilterType is {header.topic_filter_type!r}; {' or '.join(TOPIC_FILTER_TYPES)} is expected"
            )
        self._state.topics.put(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag,
                order=is_true(header.order),
            ),
            self._state.clock(),
        )
        await self._state.persistence.wait_persisted()
        await self._registration.wait_registered()
        return command.response(ResponseCode.SUCCESS)

    def get_all_topic_config(self, connection: Connection, command: RemotingCommand) -> Reply:
        return command.response(ResponseCode.SUCCESS, body=encode_body(self._state.topics.wrapper()))

    def get_topic_stats_info(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(TopicRequestHeader)
        topic = self._state.topics.get(header.topic)
        if topic is None:
            return command.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{header.topic}] not exist")
        offsets: dict[MessageQueue, TopicOffset] = {}
        for queue_id in range(topic.write_queue_nums):
            max_offset = max(0, self._state.store.max_offset(header.topic, queue_id))
            newest_ms = self._state.store.store_time(header.topic, queue_id, max_offset - 1) if max_offset else 0
            offsets[MessageQueue(header.topic, self._state.config.broker_name, queue_id)] = TopicOffset(
                last_update_timestamp=max(0, newest_ms),
                max_offset=max_offset,
                min_offset=max(0, self._state.store.min_offset(header.topic, queue_id)),
            )
        return command.response(ResponseCode.SUCCESS, body=encode_topic_stats(offsets))

    async def delete_topic(self, connection: Connection, command: RemotingCommand) -> Answer:
        topic = command.decode_header(TopicRequestHeader).topic
        self._check_user_topic(topic)
        self._state.topics.remove(topic, self._state.clock())
        self._state.stats.remove_topic(topic)
        await self._state.persistence.wait_persisted()
        await self._registration.wait_registered()
        return command.response(ResponseCode.SUCCESS)

    def _check_user_topic(self, topic: str) -> None:
        """Raise InvalidMessage unless `topic` can be the name of a topic of users."""
        check_topic(topic)
        if self._state.topics.is_system_topic(topic):
            raise InvalidMessage(f"The topic[{topic}] is conflict with system topic.")

    def query_consume_queue(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(QueryConsumeQueueRequestHeader)
        ends = self._state.store.queues().get((header.topic, header.queue_id))
        if ends is None:
            return command.response(ResponseCode.SYSTEM_ERROR, remark=f"{header.queue_id}@{header.topic} is not exist!")
        body = QueryConsumeQueueResponseBody(min_queue_index=ends[0], max_queue_index=ends[1])
        if header.consumer_group is not None:
            group = self._state.clients.consumers.get(header.consumer_group)
            body.subscription_data = group.subscriptions.get(header.topic) if group else None
            if body.subscription_data is None:
                body.filter_data = f"{header.consumer_group}@{header.topic} is not online!"
            else:
                data = self._state.filters.get(header.topic, header.consumer_group)
                body.filter_data = fastjson.dumps_pretty(msgspec.to_builtins(data))
        if not ends[0] <= header.index < ends[1]:
            return command.response(
                ResponseCode.SUCCESS,
                remark=f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!",
            )
        count = max(0, min(header.count, MAX_UNITS))
        units = self._state.store.units(header.topic, header.queue_id, header.index, count)
        body.queue_data = [
            ConsumeQueueData(physic_offset=physical_offset, physic_size=size, tags_code=code)
            for physical_offset, size, code in units
        ]
        return command.response(ResponseCode.SUCCESS, body=encode_body(body))


def check_range(name: str, value: int, greatest: int) -> None:
    """InvalidMessage unless the value is 0 to `greatest`."""
    if not 0 <= value <= greatest:
        raise InvalidMessage(f"{name} is {value}; 0 to {greatest} are allowed")
