"""Adapter of requests about consumer groups.

UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), DELETE_SUBSCRIPTIONGROUP (207),
INVOKE_BROKER_TO_RESET_OFFSET (222), QUERY_TOPIC_CONSUME_BY_WHO (300), CLONE_GROUP_OFFSET (314).
"""

from __future__ import annotations

from rucola import fastjson
from rucola.access import Action, Resource
from rucola.broker.client_calls import OffsetReset
from rucola.broker.remoting.topic import table_copy
from rucola.broker.services.groups import GroupService
from rucola.domain.group import SubscriptionGroupConfig
from rucola.message.properties import is_true
from rucola.protocol.codes import RequestCode
from rucola.protocol.group import (
    CloneGroupOffsetRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    ResetOffsetRequestHeader,
    reset_table_steps,
)
from rucola.protocol.topic import TableVersionHeader, TopicRequestHeader
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request
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

    def endpoints(self) -> Endpoints:
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

    async def create_or_update(self, request: Request[SubscriptionGroupConfig]) -> Answer:
        await self._service.create_or_update(request.content)
        return request.success()

    def all(self, request: Request[TableVersionHeader]) -> Reply:
        return table_copy(request, self._service.all())

    async def delete(self, request: Request[DeleteSubscriptionGroupRequestHeader]) -> Answer:
        await self._service.delete(request.content.group_name, is_true(request.content.remove_offset))
        return request.success()

    def consuming(self, request: Request[TopicRequestHeader]) -> Reply:
        return request.success(body=fastjson.dumps({"groupList": self._service.consuming(request.content.topic)}))

    async def clone_offsets(self, request: Request[CloneGroupOffsetRequestHeader]) -> Answer:
        header = request.content
        await self._service.clone_offsets(header.src_group, header.dest_group, header.topic, is_true(header.offline))
        return request.success()

    async def reset_offsets(self, request: Request[ResetOffsetRequestHeader]) -> Answer:
        header = request.content
        is_force = is_true(header.is_force)
        reset = OffsetReset(header.topic, header.group, header.timestamp, is_force, header.queue_id, header.offset)
        offsets = await self._service.reset_offsets(reset)
        return request.success(body=await in_slices(reset_table_steps(offsets)))
