"""Adapter of QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401) and GET_ALL_MESSAGE_REQUEST_MODE (402)."""

from __future__ import annotations

from rucola.access import Action, Resource
from rucola.broker.services.assignment import AssignmentService
from rucola.domain.group import MessageRequestMode
from rucola.protocol.assignment import MessageQueueAssignment, QueryAssignmentRequestBody, QueryAssignmentResponseBody
from rucola.protocol.codes import RequestCode
from rucola.protocol.topic import TableCopyHeader, TableVersionHeader
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


def _assigned(body: QueryAssignmentRequestBody) -> Resource:
    return Resource(body.topic, body.consumer_group)


def _group(body: MessageRequestMode) -> Resource:
    return Resource(group=body.consumer_group)


class AssignmentAdapter:
    def __init__(self, service: AssignmentService) -> None:
        self._service = service

    def endpoints(self) -> Endpoints:
        query, mode = QueryAssignmentRequestBody, MessageRequestMode
        return (
            Endpoint(RequestCode.QUERY_ASSIGNMENT, Action.QUERY, self.query, query, _assigned),
            Endpoint(RequestCode.SET_MESSAGE_REQUEST_MODE, Action.ALTER_GROUP, self.set_mode, mode, _group),
            Endpoint(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, Action.QUERY, self.all_modes, TableVersionHeader),
        )

    async def query(self, request: Request[QueryAssignmentRequestBody]) -> Answer:
        body = request.content
        queues, mode = await self._service.assignment(
            body.topic, body.consumer_group, body.client_id, body.strategy_name, body.message_model
        )
        assigned = (
            None if queues is None else [MessageQueueAssignment(message_queue=each, mode=mode) for each in queues]
        )
        return request.success(body=QueryAssignmentResponseBody(message_queue_assignments=assigned))

    async def set_mode(self, request: Request[MessageRequestMode]) -> Answer:
        await self._service.set_mode(request.content)
        return request.success()

    def all_modes(self, request: Request[TableVersionHeader]) -> Reply:
        return request.success(TableCopyHeader(), self._service.all_modes())
