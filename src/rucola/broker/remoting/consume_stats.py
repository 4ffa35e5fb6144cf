"""Adapter of the statistics of consumer groups.

GET_CONSUME_STATS (208), QUERY_CONSUME_TIME_SPAN (303), QUERY_CORRECTION_OFFSET (308), GET_BROKER_CONSUME_STATS (317).
"""

from __future__ import annotations

from rucola.access import Action, Resource
from rucola.broker.services.consume_stats import ConsumeStatsService
from rucola.message.properties import is_true
from rucola.protocol.codes import RequestCode
from rucola.protocol.group import (
    GetConsumeStatsInBrokerRequestHeader,
    QueryConsumeTimeSpanBody,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetBody,
    QueryCorrectionOffsetRequestHeader,
    consume_stats_list_steps,
)
from rucola.protocol.topic import GetConsumeStatsRequestHeader, consume_stats_steps
from rucola.remoting.connection import Answer
from rucola.remoting.endpoints import Endpoint, Endpoints, Request
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

    def endpoints(self) -> Endpoints:
        code, query, of_broker = RequestCode, Action.QUERY, GetConsumeStatsInBrokerRequestHeader
        spans, least = QueryConsumeTimeSpanRequestHeader, QueryCorrectionOffsetRequestHeader
        return (
            Endpoint(code.GET_CONSUME_STATS, query, self.of_group, GetConsumeStatsRequestHeader, _of_group),
            Endpoint(code.QUERY_CONSUME_TIME_SPAN, query, self.time_spans, spans, _spanned),
            Endpoint(code.QUERY_CORRECTION_OFFSET, query, self.least_offsets, least, _compared),
            Endpoint(code.GET_BROKER_CONSUME_STATS, query, self.of_broker, of_broker),
        )

    async def of_group(self, request: Request[GetConsumeStatsRequestHeader]) -> Answer:
        stats = await self._service.of_group(request.content.consumer_group, request.content.topic)
        return request.success(body=await in_slices(consume_stats_steps(stats)))

    async def time_spans(self, request: Request[QueryConsumeTimeSpanRequestHeader]) -> Answer:
        spans = await self._service.time_spans(request.content.group, request.content.topic)
        return request.success(body=QueryConsumeTimeSpanBody(consume_time_span_set=spans))

    async def least_offsets(self, request: Request[QueryCorrectionOffsetRequestHeader]) -> Answer:
        header = request.content
        excluded = set((header.filter_groups or "").split(","))
        least = await self._service.least_offsets(header.topic, header.compare_group, excluded)
        return request.success(body=QueryCorrectionOffsetBody(correction_offsets=least))

    async def of_broker(self, request: Request[GetConsumeStatsInBrokerRequestHeader]) -> Answer:
        stats = await self._service.of_broker(is_true(request.content.is_order))
        return request.success(body=await in_slices(consume_stats_list_steps(stats)))
