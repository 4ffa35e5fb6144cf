"""Adapter of requests about topics.

UPDATE_AND_CREATE_TOPIC (17), GET_ALL_TOPIC_CONFIG (21), GET_TOPIC_STATS_INFO (202), DELETE_TOPIC_IN_BROKER (215),
QUERY_CONSUME_QUEUE (321).
"""

from __future__ import annotations

from rucola.access import Action, Caller, Resource
from rucola.broker.services.topics import TopicService
from rucola.domain.topic import TopicConfig
from rucola.message.properties import is_true
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.query import ConsumeQueueData, QueryConsumeQueueRequestHeader, QueryConsumeQueueResponseBody
from rucola.protocol.topic import CreateTopicRequestHeader, TableVersionHeader, TopicRequestHeader, topic_stats_steps
from rucola.remoting.connection import Answer, Connection, Reply
from rucola.remoting.endpoints import Endpoint
from rucola.slices import in_slices


def _topic(header: CreateTopicRequestHeader | TopicRequestHeader | QueryConsumeQueueRequestHeader) -> Resource:
    return Resource(header.topic)


class TopicAdapter:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    def endpoints(self) -> tuple[Endpoint, ...]:
        create, named, units = CreateTopicRequestHeader, TopicRequestHeader, QueryConsumeQueueRequestHeader
        return (
            Endpoint(RequestCode.UPDATE_AND_CREATE_TOPIC, Action.ALTER_TOPIC, self.create_or_update, create, _topic),
            Endpoint(RequestCode.GET_ALL_TOPIC_CONFIG, Action.QUERY, self.all, TableVersionHeader),
            Endpoint(RequestCode.GET_TOPIC_STATS_INFO, Action.QUERY, self.queue_ends, named, _topic),
            Endpoint(RequestCode.DELETE_TOPIC_IN_BROKER, Action.DELETE_TOPIC, self.delete, named, _topic),
            Endpoint(RequestCode.QUERY_CONSUME_QUEUE, Action.QUERY, self.consume_queue, units, _topic),
        )

    async def create_or_update(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: CreateTopicRequestHeader
    ) -> Answer:
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
        return command.response(ResponseCode.SUCCESS)

    def all(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: TableVersionHeader
    ) -> Reply:
        table = self._service.all()
        if header.table_version is None:
            return command.response(ResponseCode.SUCCESS, body=encode_body(table))
        version = table.data_version.token
        body = b"" if version == header.table_version else encode_body(table)
        return command.response(ResponseCode.SUCCESS, TableVersionHeader(table_version=version), body)

    async def queue_ends(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: TopicRequestHeader
    ) -> Answer:
        ends = await self._service.queue_ends(header.topic)
        return command.response(ResponseCode.SUCCESS, body=await in_slices(topic_stats_steps(ends)))

    async def delete(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: TopicRequestHeader
    ) -> Answer:
        await self._service.delete(header.topic)
        return command.response(ResponseCode.SUCCESS)

    def consume_queue(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: QueryConsumeQueueRequestHeader
    ) -> Reply:
        found = self._service.consume_queue(
            header.topic, header.queue_id, header.index, header.count, header.consumer_group
        )
        if found is None:
            return command.response(
                ResponseCode.SUCCESS,
                remark=f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!",
            )
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
        return command.response(ResponseCode.SUCCESS, body=encode_body(body))
