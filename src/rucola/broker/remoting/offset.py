"""Adapter of requests for offsets.

Consumer offsets (14, 15), ends of queues (30, 31), the offset at a time (29), the earliest time (32); all offsets of
groups (43) and of delayed delivery (45).
"""

from __future__ import annotations

from typing import Any

from rucola import fastjson
from rucola.access import Action, Resource
from rucola.broker.services.offsets import OffsetService
from rucola.broker.state import BrokerState
from rucola.protocol.codes import RequestCode
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
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request
from rucola.slices import in_slices


def _group_and_topic(header: QueryConsumerOffsetRequestHeader | UpdateConsumerOffsetRequestHeader) -> Resource:
    return Resource(header.topic, header.consumer_group)


def _topic(header: QueueRequestHeader | SearchOffsetRequestHeader) -> Resource:
    return Resource(header.topic)


class OffsetAdapter:
    def __init__(self, service: OffsetService, state: BrokerState) -> None:
        self._service = service
        self._state = state
        self._store = state.store
        self._tiered = state.tiered

    def endpoints(self) -> Endpoints:
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

    def consumer_offset(self, request: Request[QueryConsumerOffsetRequestHeader]) -> Reply:
        header = request.content
        return _offset(request, self._service.consumer_offset(header.consumer_group, header.topic, header.queue_id))

    def commit(self, request: Request[UpdateConsumerOffsetRequestHeader]) -> Reply:
        header = request.content
        self._service.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return request.success()

    async def search(self, request: Request[SearchOffsetRequestHeader]) -> Answer:
        header = request.content
        return _offset(request, await self._tiered.offset_by_time(header.topic, header.queue_id, header.timestamp))

    def max_offset(self, request: Request[QueueRequestHeader]) -> Reply:
        return _offset(request, self._store.max_offset(request.content.topic, request.content.queue_id, visible=True))

    async def min_offset(self, request: Request[QueueRequestHeader]) -> Answer:
        return _offset(request, await self._tiered.min_offset(request.content.topic, request.content.queue_id))

    async def earliest_store_time(self, request: Request[QueueRequestHeader]) -> Answer:
        timestamp = await self._tiered.earliest_store_time(request.content.topic, request.content.queue_id)
        return request.success(EarliestStoreTimeResponseHeader(timestamp=timestamp))

    async def all_consumer_offsets(self, request: Request[TableVersionHeader]) -> Answer:
        # The version comes first: what changes while the table is encoded is sent again at the next request.
        version = self._state.offsets.version
        offsets = self._state.offsets.changes_since(request.content.table_version)
        body = await in_slices(offset_table_steps(offsets))
        return request.success(self._copied(request.content, version), body)

    def delay_offsets(self, request: Request[TableVersionHeader]) -> Reply:
        body = fastjson.dumps({"offsetTable": dict(self._state.delayed.progress())})
        return request.success(self._copied(request.content), body)

    def _copied(self, header: TableVersionHeader, version: str | None = None) -> TableCopyHeader | None:
        if header.table_version is None:
            return None
        # Read after the table: everything that it counts as delivered is before this end. Read before it, a
        # message that is delivered in between would be after the end.
        begin, end = self._store.min_physical_offset, self._state.mastership.position
        return TableCopyHeader(table_version=version, log_epoch=end.epoch, log_begin=begin, log_end=end.end)


def _offset(request: Request[Any], offset: int) -> RemotingCommand:
    return request.success(OffsetResponseHeader(offset=offset))
