"""Adapter of requests for offsets.

Consumer offsets (14, 15), ends of queues (30, 31), the offset at a time (29), the earliest time (32); all offsets of
groups (43) and of delayed delivery (45).
"""

from __future__ import annotations

from rucola import fastjson
from rucola.access import Action, Caller, Resource
from rucola.broker.services.offsets import OffsetService
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.offset import (
    EarliestStoreTimeResponseHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    offset_table_steps,
)
from rucola.protocol.topic import TableCopyHeader, TableVersionHeader
from rucola.remoting.connection import Answer, Connection, Reply
from rucola.remoting.endpoints import Endpoint
from rucola.slices import in_slices


def _group_and_topic(header: QueryConsumerOffsetRequestHeader | UpdateConsumerOffsetRequestHeader) -> Resource:
    return Resource(header.topic, header.consumer_group)


def _topic(header: QueueRequestHeader | SearchOffsetRequestHeader) -> Resource:
    return Resource(header.topic)


class OffsetAdapter:
    def __init__(self, service: OffsetService) -> None:
        self._service = service

    def endpoints(self) -> tuple[Endpoint, ...]:
        read, commit = QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
        search, queue, version = SearchOffsetRequestHeader, QueueRequestHeader, TableVersionHeader
        return (
            Endpoint(RequestCode.QUERY_CONSUMER_OFFSET, Action.QUERY, self.consumer_offset, read, _group_and_topic),
            Endpoint(RequestCode.UPDATE_CONSUMER_OFFSET, Action.COMMIT, self.commit, commit, _group_and_topic),
            Endpoint(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, Action.QUERY, self.search, search, _topic),
            Endpoint(RequestCode.GET_MAX_OFFSET, Action.QUERY, self.max_offset, queue, _topic),
            Endpoint(RequestCode.GET_MIN_OFFSET, Action.QUERY, self.min_offset, queue, _topic),
            Endpoint(RequestCode.GET_EARLIEST_MSG_STORETIME, Action.QUERY, self.earliest_store_time, queue, _topic),
            Endpoint(RequestCode.GET_ALL_CONSUMER_OFFSET, Action.QUERY, self.all_consumer_offsets, version),
            Endpoint(RequestCode.GET_ALL_DELAY_OFFSET, Action.QUERY, self.delay_offsets, version),
        )

    def consumer_offset(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: QueryConsumerOffsetRequestHeader
    ) -> Reply:
        return _offset(command, self._service.consumer_offset(header.consumer_group, header.topic, header.queue_id))

    def commit(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: UpdateConsumerOffsetRequestHeader,
    ) -> Reply:
        self._service.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return command.response(ResponseCode.SUCCESS)

    def search(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: SearchOffsetRequestHeader
    ) -> Reply:
        return _offset(command, self._service.by_time(header.topic, header.queue_id, header.timestamp))

    def max_offset(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: QueueRequestHeader
    ) -> Reply:
        return _offset(command, self._service.max_offset(header.topic, header.queue_id))

    def min_offset(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: QueueRequestHeader
    ) -> Reply:
        return _offset(command, self._service.min_offset(header.topic, header.queue_id))

    def earliest_store_time(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: QueueRequestHeader
    ) -> Reply:
        timestamp = self._service.earliest_store_time(header.topic, header.queue_id)
        return command.response(ResponseCode.SUCCESS, EarliestStoreTimeResponseHeader(timestamp=timestamp))

    async def all_consumer_offsets(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: TableVersionHeader
    ) -> Answer:
        # The version comes first: what changes while the table is encoded is sent again at the next request.
        version, offsets = self._service.consumer_offsets_since(header.table_version)
        body = await in_slices(offset_table_steps(offsets))
        return command.response(ResponseCode.SUCCESS, self._copied(header, version), body)

    def delay_offsets(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: TableVersionHeader
    ) -> Reply:
        body = fastjson.dumps({"offsetTable": dict(self._service.delay_offsets())})
        return command.response(ResponseCode.SUCCESS, self._copied(header), body)

    def _copied(self, header: TableVersionHeader, version: str | None = None) -> TableCopyHeader | None:
        if header.table_version is None:
            return None
        # Read after the table: everything that it counts as delivered is before this end. Read before it, a
        # message that is delivered in between would be after the end.
        begin, end = self._service.log_begin(), self._service.log_position()
        return TableCopyHeader(table_version=version, log_epoch=end.epoch, log_begin=begin, log_end=end.end)


def _offset(command: RemotingCommand, offset: int) -> RemotingCommand:
    return command.response(ResponseCode.SUCCESS, OffsetResponseHeader(offset=offset))
