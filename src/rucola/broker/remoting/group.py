"""Adapter of requests about consumer groups.

UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), DELETE_SUBSCRIPTIONGROUP (207),
INVOKE_BROKER_TO_RESET_OFFSET (222), QUERY_TOPIC_CONSUME_BY_WHO (300), CLONE_GROUP_OFFSET (314).
"""

from __future__ import annotations

from rucola import fastjson
from rucola.access import Action, Caller, Resource
from rucola.broker.client_calls import OffsetReset
from rucola.broker.services.groups import GroupService
from rucola.domain.group import SubscriptionGroupConfig
from rucola.message.properties import is_true
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.group import (
    CloneGroupOffsetRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    ResetOffsetRequestHeader,
    reset_table_steps,
)
from rucola.protocol.topic import TableVersionHeader, TopicRequestHeader
from rucola.remoting.connection import Answer, Connection, Reply
from rucola.remoting.endpoints import Endpoint
from rucola.slices import in_slices


def _cloned(header: CloneGroupOffsetRequestHeader) -> list[Resource]:
    return [Resource(header.topic or "", group) for group in (header.src_group, header.dest_group)]


def _group(request: SubscriptionGroupConfig | DeleteSubscriptionGroupRequestHeader) -> Resource:
    return Resource(group=request.group_name)


def _reset(header: ResetOffsetRequestHeader) -> Resource:
    return Resource(header.topic, header.group)


def _topic(header: TopicRequestHeader) -> Resource:
    return Resource(header.topic)


class GroupAdapter:
    def __init__(self, service: GroupService) -> None:
        self._service = service

    def endpoints(self) -> tuple[Endpoint, ...]:
        code, alter, delete = RequestCode, Action.ALTER_GROUP, Action.DELETE_GROUP
        query, reset = Action.QUERY, Action.RESET_OFFSET
        group, deleted, moved = SubscriptionGroupConfig, DeleteSubscriptionGroupRequestHeader, ResetOffsetRequestHeader
        return (
            Endpoint(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, alter, self.create_or_update, group, _group),
            Endpoint(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, query, self.all, TableVersionHeader),
            Endpoint(code.DELETE_SUBSCRIPTIONGROUP, delete, self.delete, deleted, _group),
            Endpoint(code.INVOKE_BROKER_TO_RESET_OFFSET, reset, self.reset_offsets, moved, _reset),
            Endpoint(code.QUERY_TOPIC_CONSUME_BY_WHO, query, self.consuming, TopicRequestHeader, _topic),
            Endpoint(code.CLONE_GROUP_OFFSET, reset, self.clone_offsets, CloneGroupOffsetRequestHeader, _cloned),
        )

    async def create_or_update(
        self, connection: Connection, caller: Caller, command: RemotingCommand, group: SubscriptionGroupConfig
    ) -> Answer:
        await self._service.create_or_update(group)
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

    async def delete(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: DeleteSubscriptionGroupRequestHeader,
    ) -> Answer:
        await self._service.delete(header.group_name, is_true(header.remove_offset))
        return command.response(ResponseCode.SUCCESS)

    def consuming(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: TopicRequestHeader
    ) -> Reply:
        body = fastjson.dumps({"groupList": self._service.consuming(header.topic)})
        return command.response(ResponseCode.SUCCESS, body=body)

    async def clone_offsets(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: CloneGroupOffsetRequestHeader
    ) -> Answer:
        await self._service.clone_offsets(header.src_group, header.dest_group, header.topic, is_true(header.offline))
        return command.response(ResponseCode.SUCCESS)

    async def reset_offsets(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: ResetOffsetRequestHeader
    ) -> Answer:
        is_force = is_true(header.is_force)
        request = OffsetReset(header.topic, header.group, header.timestamp, is_force, header.queue_id, header.offset)
        offsets = await self._service.reset_offsets(request)
        return command.response(ResponseCode.SUCCESS, body=await in_slices(reset_table_steps(offsets)))
