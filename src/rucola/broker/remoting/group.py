"""Consumer groups: their settings, how far they have come, and moving them elsewhere.

UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), DELETE_SUBSCRIPTIONGROUP (207),
GET_CONSUME_STATS (208), INVOKE_BROKER_TO_RESET_OFFSET (222), QUERY_TOPIC_CONSUME_BY_WHO (300), QUERY_CONSUME_TIME_SPAN
(303), QUERY_CORRECTION_OFFSET (308), CLONE_GROUP_OFFSET (314), GET_BROKER_CONSUME_STATS (317).

A reset is carried out by the clients of the group, which begin anew at the offsets they are sent and commit them. A
group without clients is not reset here: the answer CONSUMER_NOT_ONLINE tells the operator to commit other offsets for
it with UPDATE_CONSUMER_OFFSET.

Answers to parts of `AdminBrokerProcessor` and `Broker2Client` of Apache RocketMQ 4.9.8. Deliberate differences: each
client is sent the form of the offsets that its language reads, whatever the operator's language is; a queue on which
the group never committed is reset with the others.
"""

from __future__ import annotations

import time

from rucola import fastjson
from rucola.broker.remoting.topic import MAX_QUEUE_NUMS, check_range
from rucola.broker.state import BrokerState
from rucola.message.topics import check_group
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import LanguageCode, RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand, is_true
from rucola.protocol.group import (
    LATEST,
    CloneGroupOffsetRequestHeader,
    ConsumeStatsList,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumeStatsInBrokerRequestHeader,
    QueryConsumeTimeSpanBody,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetBody,
    QueryCorrectionOffsetRequestHeader,
    QueueTimeSpan,
    ResetOffsetRequestHeader,
    encode_consume_stats_list,
    encode_offset_table,
)
from rucola.protocol.queue import MessageQueue
from rucola.protocol.topic import (
    ConsumeStats,
    GetConsumeStatsRequestHeader,
    OffsetWrapper,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRequestHeader,
    encode_consume_stats,
)
from rucola.remoting.connection import Answer, Connection, Processor, Reply

MAX_LONG = 2**63 - 1


class GroupProcessor:
    """Answers from the tables, the store and the list of clients."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_and_create_subscriptiongroup,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.get_all_subscriptiongroup_config,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_subscriptiongroup,
            RequestCode.GET_CONSUME_STATS: self.get_consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.get_broker_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.query_topic_consume_by_who,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.query_consume_time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self.query_correction_offset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_group_offset,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
        }

    # Settings.

    async def update_and_create_subscriptiongroup(self, connection: Connection, command: RemotingCommand) -> Answer:
        group = decode_body(SubscriptionGroupConfig, command.body)
        check_group(group.group_name)
        check_range("retryQueueNums", group.retry_queue_nums, MAX_QUEUE_NUMS)
        self._state.groups.put(group, self._state.clock())
        await self._state.persistence.wait_persisted()
        return command.response(ResponseCode.SUCCESS)

    def get_all_subscriptiongroup_config(self, connection: Connection, command: RemotingCommand) -> Reply:
        return command.response(ResponseCode.SUCCESS, body=encode_body(self._state.groups.wrapper()))

    async def delete_subscriptiongroup(self, connection: Connection, command: RemotingCommand) -> Answer:
        header = command.decode_header(DeleteSubscriptionGroupRequestHeader)
        self._state.groups.remove(header.group_name, self._state.clock())
        if is_true(header.remove_offset):
            self._state.offsets.remove_group(header.group_name)
        self._state.stats.remove_group(header.group_name)
        await self._state.persistence.wait_persisted()
        return command.response(ResponseCode.SUCCESS)

    # How far groups have come.

    def get_consume_stats(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(GetConsumeStatsRequestHeader)
        stats = ConsumeStats()
        for topic in [header.topic] if header.topic else self._state.offsets.topics_of(header.consumer_group):
            of_topic = self._progress(header.consumer_group, topic)
            if of_topic is not None:
                stats.consume_tps += of_topic.consume_tps
                stats.offset_table |= of_topic.offset_table
        return command.response(ResponseCode.SUCCESS, body=encode_consume_stats(stats))

    def get_broker_consume_stats(self, connection: Connection, command: RemotingCommand) -> Reply:
        only_ordered = is_true(command.decode_header(GetConsumeStatsInBrokerRequestHeader).is_order)
        found = ConsumeStatsList(broker_addr=f"{self._state.config.broker_ip1}:{self._state.config.listen_port}")
        for group in self._state.groups:
            progress = [
                stats
                for topic in self._state.offsets.topics_of(group.group_name)
                if (stats := self._progress(group.group_name, topic, only_ordered)) is not None
            ]
            found.groups[group.group_name] = progress
            found.total_diff += sum(
                at.broker_offset - at.consumer_offset for stats in progress for at in stats.offset_table.values()
            )
        return command.response(ResponseCode.SUCCESS, body=encode_consume_stats_list(found))

    def _progress(self, group: str, topic: str, only_ordered: bool = False) -> ConsumeStats | None:
        """A group's places in a topic; None for a topic that is gone, or that the group's clients left."""
        config = self._state.topics.get(topic)
        if config is None or not self._is_subscribed(group, topic) or (only_ordered and not config.order):
            return None
        return ConsumeStats(
            consume_tps=self._state.stats.consume_tps(group, topic, self._state.clock()),
            offset_table={
                self._queue(topic, queue_id): self._place(group, topic, queue_id)
                for queue_id in range(config.read_queue_nums)
            },
        )

    def _is_subscribed(self, group: str, topic: str) -> bool:
        """Whether the group's clients subscribe to the topic; where none is there, they may."""
        members = self._state.clients.consumers.get(group)
        return members is None or not members.subscriptions or topic in members.subscriptions

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._state.config.broker_name, queue_id)

    def _place(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        """A group's place in a queue."""
        consumed = max(0, self._state.offsets.get(group, topic, queue_id))
        last_ms = self._state.store.store_time(topic, queue_id, consumed - 1) if consumed else 0
        return OffsetWrapper(
            broker_offset=max(0, self._state.store.max_offset(topic, queue_id)),
            consumer_offset=consumed,
            last_timestamp=max(0, last_ms),
        )

    def query_topic_consume_by_who(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(TopicRequestHeader)
        groups = dict.fromkeys(
            [*self._state.clients.groups_of(header.topic), *self._state.offsets.groups_of(header.topic)]
        )
        return command.response(ResponseCode.SUCCESS, body=fastjson.dumps({"groupList": list(groups)}))

    def query_consume_time_span(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(QueryConsumeTimeSpanRequestHeader)
        config = self._state.topics.get(header.topic)
        if config is None:
            return _no_topic(command, header.topic)
        spans = [self._time_span(header.group, header.topic, queue_id) for queue_id in range(config.write_queue_nums)]
        return command.response(
            ResponseCode.SUCCESS, body=encode_body(QueryConsumeTimeSpanBody(consume_time_span_set=spans))
        )

    def _time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._state.store
        end = store.max_offset(topic, queue_id)
        oldest_ms = store.earliest_store_time(topic, queue_id)
        newest_ms = store.store_time(topic, queue_id, end - 1)
        consumed = self._state.offsets.get(group, topic, queue_id)
        consumed_ms = store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else oldest_ms
        next_ms = store.store_time(topic, queue_id, max(consumed, store.min_offset(topic, queue_id)))
        return QueueTimeSpan(
            consume_time_stamp=consumed_ms,
            consume_time_stamp_str=_text(consumed_ms),
            delay_time=self._state.clock() - next_ms if consumed < end and next_ms >= 0 else 0,
            max_time_stamp=newest_ms,
            max_time_stamp_str=_text(newest_ms),
            message_queue=self._queue(topic, queue_id),
            min_time_stamp=oldest_ms,
            min_time_stamp_str=_text(oldest_ms),
        )

    def query_correction_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        """The least offset of all groups but some on each queue.

        It is the greatest number there is where the group to compare with is behind it.
        """
        header = command.decode_header(QueryCorrectionOffsetRequestHeader)
        passed_over = set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        for group in self._state.offsets.groups_of(header.topic):
            if group in passed_over:
                continue
            for queue_id, offset in self._state.offsets.of(group, header.topic).items():
                if offset >= self._state.store.min_offset(header.topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, MAX_LONG))
        for queue_id, offset in self._state.offsets.of(header.compare_group, header.topic).items():
            if least.get(queue_id, MAX_LONG) > offset:
                least[queue_id] = MAX_LONG
        return command.response(
            ResponseCode.SUCCESS, body=encode_body(QueryCorrectionOffsetBody(correction_offsets=least))
        )

    # Moving groups.

    def clone_group_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(CloneGroupOffsetRequestHeader)
        for topic in [header.topic] if header.topic else self._state.offsets.topics_of(header.src_group):
            if self._state.topics.get(topic) is None:
                continue
            if is_true(header.offline) or self._is_subscribed(header.src_group, topic):
                self._state.offsets.clone(header.src_group, header.dest_group, topic)
        return command.response(ResponseCode.SUCCESS)

    def reset_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(ResetOffsetRequestHeader)
        config = self._state.topics.get(header.topic)
        if config is None:
            return command.response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        if not self._state.offsets.of(header.group, header.topic):
            return command.response(ResponseCode.SYSTEM_ERROR, remark=f"THe consumer group <{header.group}> not exist")
        members = self._state.clients.consumers.get(header.group)
        if members is None:
            return command.response(
                ResponseCode.CONSUMER_NOT_ONLINE,
                remark=f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}",
            )
        offsets = self._offsets_at(header, config)
        forms = {as_list: encode_offset_table(offsets, as_list=as_list) for as_list in (False, True)}
        for client, member in members.members.items():
            body = forms[member.language == LanguageCode.CPP.name]
            client.send(RemotingCommand.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body))
        return command.response(ResponseCode.SUCCESS, body=forms[False])

    def _offsets_at(self, header: ResetOffsetRequestHeader, config: TopicConfig) -> dict[MessageQueue, int]:
        """Where a reset leads in every queue, or in the one that it names with an offset."""
        if header.queue_id is not None and header.offset is not None:
            return {self._queue(header.topic, header.queue_id): header.offset}
        offsets: dict[MessageQueue, int] = {}
        for queue_id in range(config.write_queue_nums):
            committed = self._state.offsets.get(header.group, header.topic, queue_id)
            if header.timestamp == LATEST:
                offset = self._state.store.max_offset(header.topic, queue_id)
            else:
                offset = max(0, self._state.store.offset_by_time(header.topic, queue_id, header.timestamp))
            if committed >= 0 and not is_true(header.is_force):
                offset = min(offset, committed)
            offsets[self._queue(header.topic, queue_id)] = offset
        return offsets


def _no_topic(command: RemotingCommand, topic: str) -> RemotingCommand:
    return command.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist")


def _text(timestamp_ms: int) -> str:
    """A time as Apache writes it for people; empty where there is none."""
    if timestamp_ms < 0:
        return ""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{milliseconds:03}"
