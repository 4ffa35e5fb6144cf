"""Adapter of requests about topics.

UPDATE_AND_CREATE_TOPIC (17), GET_ALL_TOPIC_CONFIG (21), GET_TOPIC_STATS_INFO (202), DELETE_TOPIC_IN_BROKER (215),
QUERY_CONSUME_QUEUE (321).
"""

from __future__ import annotations

from rucola.access import Action, Resource
from rucola.broker.services.topics import TopicService
from rucola.domain.group import SubscriptionGroupWrapper
from rucola.domain.topic import TopicConfig, TopicConfigSerializeWrapper
from rucola.message.properties import is_true
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.query import ConsumeQueueData, QueryConsumeQueueRequestHeader, QueryConsumeQueueResponseBody
from rucola.protocol.topic import CreateTopicRequestHeader, TableVersionHeader, TopicRequestHeader, topic_stats_steps
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request
from rucola.slices import in_slices


def _topic(header: CreateTopicRequestHeader | TopicRequestHeader | QueryConsumeQueueRequestHeader) -> Resource:
    return Resource(header.topic)


def table_copy(
    request: Request[TableVersionHeader], table: TopicConfigSerializeWrapper | SubscriptionGroupWrapper
) -> RemotingCommand:
    """Return a table, without entries if the request has its version, or as Apache does if it names none."""
    if request.content.table_version is None:
        return request.success(body=table)
    version = table.data_version.token
    body = b"" if version == request.content.table_version else table
    return request.success(TableVersionHeader(table_version=version), body)


class TopicAdapter:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    def endpoints(self) -> Endpoints:
        create, named, units = CreateTopicRequestHeader, TopicRequestHeader, QueryConsumeQueueRequestHeader
        return (
            Endpoint(RequestCode.UPDATE_AND_CREATE_TOPIC, Action.ALTER_TOPIC, self.create_or_update, create, _topic),
            Endpoint(RequestCode.GET_ALL_TOPIC_CONFIG, Action.QUERY, self.all, TableVersionHeader),
            Endpoint(RequestCode.GET_TOPIC_STATS_INFO, Action.QUERY, self.queue_ends, named, _topic),
            Endpoint(RequestCode.DELETE_TOPIC_IN_BROKER, Action.DELETE_TOPIC, self.delete, named, _topic),
            Endpoint(RequestCode.QUERY_CONSUME_QUEUE, Action.QUERY, self.consume_queue, units, _topic),
        )

    async def create_or_update(self, request: Request[CreateTopicRequestHeader]) -> Answer:
        header = request.content
        await self._service.create_or_update(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag,
                order=is_true(header.order),
            )
        )
        return request.success()

    def all(self, request: Request[TableVersionHeader]) -> Reply:
        return table_copy(request, self._service.all())

    async def queue_ends(self, request: Request[TopicRequestHeader]) -> Answer:
        ends = await self._service.queue_ends(request.content.topic)
        return request.success(body=await in_slices(topic_stats_steps(ends)))

    async def delete(self, request: Request[TopicRequestHeader]) -> Answer:
        await self._service.delete(request.content.topic)
        return request.success()

    def consume_queue(self, request: Request[QueryConsumeQueueRequestHeader]) -> Reply:
        header = request.content
        found = self._service.consume_queue(
            header.topic, header.queue_id, header.index, header.count, header.consumer_group
        )
        if found is None:
            remark = f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
            return request.command.response(ResponseCode.SUCCESS, remark=remark)
        body = QueryConsumeQueueResponseBody(
            filter_data=found.filter_data,
            max_queue_index=found.end,
            min_queue_index=found.begin,
            queue_data=[
                ConsumeQueueData(physic_offset=physical_offset, physic_size=size, tags_code=code)
                for physical_offset, size, code in found.units
            ],
            subscription_data=found.subscription,
        )
        return request.success(body=body)
