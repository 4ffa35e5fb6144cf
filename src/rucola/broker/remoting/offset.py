"""Offsets: a group's progress (14, 15), a queue's ends (30, 31), the offset at a time (29), the oldest time (32); all
groups' progress (43), and that of delayed delivery (45).

A group that asks for its progress on a queue where it has none is told 0 as long as the queue still holds its first
message, and not so far back that it counts as no longer in memory (accessMessageInMemoryMaxRatio): a young queue is
consumed from the beginning whatever ConsumeFromWhere says. Otherwise it is told QUERY_NOT_FOUND, and the client
decides.

Answers to `ConsumerManageProcessor` and parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from rucola import fastjson
from rucola.broker.delivery.delay import ScheduleMessageService
from rucola.broker.tables.offsets import ConsumerOffsetTable
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.offset import (
    EarliestStoreTimeResponseHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rucola.remoting.connection import Connection, Processor, Reply
from rucola.store.message_store import MessageStore


class OffsetProcessor:
    """Answers from the consumer offsets and the ConsumeQueues."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsetTable, delayed: ScheduleMessageService) -> None:
        self._store = store
        self._offsets = offsets
        self._delayed = delayed

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_consumer_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset_by_timestamp,
            RequestCode.GET_MAX_OFFSET: self.get_max_offset,
            RequestCode.GET_MIN_OFFSET: self.get_min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.get_earliest_msg_storetime,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.get_all_consumer_offset,
            RequestCode.GET_ALL_DELAY_OFFSET: self.get_all_delay_offset,
        }

    def query_consumer_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(QueryConsumerOffsetRequestHeader)
        queue_offset = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if queue_offset < 0:
            if self._is_old(header.topic, header.queue_id):
                return command.response(
                    ResponseCode.QUERY_NOT_FOUND,
                    remark=f"Not found: {header.consumer_group} has no offset on {header.topic}:{header.queue_id}, "
                    "maybe this group consumer boot first",
                )
            queue_offset = 0
        return command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=queue_offset))

    def _is_old(self, topic: str, queue_id: int) -> bool:
        """Whether a new group decides for itself where it begins: the queue's first message is gone, or far back.

        Of a queue that is young it gets all, even if it would begin at the end: what came before it is not lost on it.
        """
        store = self._store
        if store.min_offset(topic, queue_id) > 0:
            return True
        first = store.units(topic, queue_id, 0, 1)
        return bool(first) and store.config.is_on_disk(store.max_physical_offset - first[0][0])

    def update_consumer_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(UpdateConsumerOffsetRequestHeader)
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return command.response(ResponseCode.SUCCESS)

    def search_offset_by_timestamp(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(SearchOffsetRequestHeader)
        queue_offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=queue_offset))

    def get_max_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(QueueRequestHeader)
        queue_offset = self._store.max_offset(header.topic, header.queue_id)
        return command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=queue_offset))

    def get_min_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(QueueRequestHeader)
        queue_offset = self._store.min_offset(header.topic, header.queue_id)
        return command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=queue_offset))

    def get_earliest_msg_storetime(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(QueueRequestHeader)
        timestamp = self._store.earliest_store_time(header.topic, header.queue_id)
        return command.response(ResponseCode.SUCCESS, EarliestStoreTimeResponseHeader(timestamp=timestamp))

    def get_all_consumer_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        return command.response(ResponseCode.SUCCESS, body=fastjson.dumps({"offsetTable": self._offsets.table()}))

    def get_all_delay_offset(self, connection: Connection, command: RemotingCommand) -> Reply:
        body = fastjson.dumps({"offsetTable": dict(self._delayed.offsets())})
        return command.response(ResponseCode.SUCCESS, body=body)
