"""Adapter of the statistics of consumer groups.

GET_CONSUME_STATS (208), QUERY_CONSUME_TIME_SPAN (303), QUERY_CORRECTION_OFFSET (308), GET_BROKER_CONSUME_STATS (317).
"""

from __future__ import annotations

from rucola.access import Action, Caller, Resource
from rucola.broker.services.consume_stats import ConsumeStatsService
from rucola.message.properties import is_true
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.group import (
    GetConsumeStatsInBrokerRequestHeader,
    QueryConsumeTimeSpanBody,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetBody,
    QueryCorrectionOffsetRequestHeader,
    consume_stats_list_steps,
)
from rucola.protocol.topic import GetConsumeStatsRequestHeader, consume_stats_steps
from rucola.remoting.connection import Answer, Connection
from rucola.remoting.endpoints import Endpoint
from rucola.slices import in_slices


def _of_group(header: GetConsumeStatsRequestHeader) -> Resource:
    return Resource(header.topic or "", header.consumer_group)


def _spanned(header: QueryConsumeTimeSpanRequestHeader) -> Resource:
    return Resource(header.topic, header.group)


def _compared(header: QueryCorrectionOffsetRequestHeader) -> Resource:
    return Resource(header.topic, header.compare_group)


class ConsumeStatsAdapter:
    def __init__(self, service: ConsumeStatsService) -> None:
        self._service = service

    def endpoints(self) -> tuple[Endpoint, ...]:
        code, query, of_broker = RequestCode, Action.QUERY, GetConsumeStatsInBrokerRequestHeader
        spans, least = QueryConsumeTimeSpanRequestHeader, QueryCorrectionOffsetRequestHeader
        return (
            Endpoint(code.GET_CONSUME_STATS, query, self.of_group, GetConsumeStatsRequestHeader, _of_group),
            Endpoint(code.QUERY_CONSUME_TIME_SPAN, query, self.time_spans, spans, _spanned),
            Endpoint(code.QUERY_CORRECTION_OFFSET, query, self.least_offsets, least, _compared),
            Endpoint(code.GET_BROKER_CONSUME_STATS, query, self.of_broker, of_broker),
        )

    async def of_group(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: GetConsumeStatsRequestHeader
    ) -> Answer:
        stats = await self._service.of_group(header.consumer_group, header.topic)
        return command.response(ResponseCode.SUCCESS, body=await in_slices(consume_stats_steps(stats)))

    async def time_spans(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: QueryConsumeTimeSpanRequestHeader,
    ) -> Answer:
        spans = await self._service.time_spans(header.group, header.topic)
        body = encode_body(QueryConsumeTimeSpanBody(consume_time_span_set=spans))
        return command.response(ResponseCode.SUCCESS, body=body)

    async def least_offsets(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: QueryCorrectionOffsetRequestHeader,
    ) -> Answer:
        excluded = set((header.filter_groups or "").split(","))
        least = await self._service.least_offsets(header.topic, header.compare_group, excluded)
        body = encode_body(QueryCorrectionOffsetBody(correction_offsets=least))
        return command.response(ResponseCode.SUCCESS, body=body)

    async def of_broker(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: GetConsumeStatsInBrokerRequestHeader,
    ) -> Answer:
        stats = await self._service.of_broker(is_true(header.is_order))
        return command.response(ResponseCode.SUCCESS, body=await in_slices(consume_stats_list_steps(stats)))
