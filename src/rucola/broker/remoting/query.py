"""Adapter of QUERY_MESSAGE (12) and VIEW_MESSAGE_BY_ID (33)."""

from __future__ import annotations

from rucola.access import Action, Resource
from rucola.broker.services.query import KeyQuery, QueryService
from rucola.message.properties import is_true
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.query import QueryMessageRequestHeader, QueryMessageResponseHeader, ViewMessageRequestHeader
from rucola.remoting.connection import Answer
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


def _topic(header: QueryMessageRequestHeader) -> Resource:
    return Resource(header.topic)


class QueryAdapter:
    def __init__(self, service: QueryService) -> None:
        self._service = service

    def endpoints(self) -> Endpoints:
        by_key, by_id = QueryMessageRequestHeader, ViewMessageRequestHeader
        return (
            Endpoint(RequestCode.QUERY_MESSAGE, Action.READ, self.query, by_key, _topic),
            Endpoint(RequestCode.VIEW_MESSAGE_BY_ID, Action.READ, self.view, by_id),
        )

    async def query(self, request: Request[QueryMessageRequestHeader]) -> Answer:
        header = request.content
        query = KeyQuery(
            header.topic,
            header.key,
            header.max_num,
            header.begin_timestamp,
            header.end_timestamp,
            header.before_physical_offset,
            is_true(header.unique_key_query),
        )
        found = await self._service.by_key(request.caller, query)
        reach = QueryMessageResponseHeader(
            index_last_update_timestamp=found.index_last_update_timestamp,
            index_last_update_phyoffset=found.index_last_update_physical_offset,
        )
        if header.before_physical_offset is not None:
            reach.index_begin_timestamp, reach.index_end_timestamp = found.index_range or (-1, -1)
        if not found.records:
            return request.command.response(
                ResponseCode.QUERY_NOT_FOUND, reach, remark="can not find message, maybe time range not correct"
            )
        return request.success(reach, b"".join(found.records))

    async def view(self, request: Request[ViewMessageRequestHeader]) -> Answer:
        record = await self._service.by_physical_offset(request.caller, request.content.offset)
        return request.success(body=record)
