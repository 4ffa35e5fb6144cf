"""Adapter of requests about connected clients.

GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204), GET_ALL_PRODUCER_INFO (328); forwarded to
clients: GET_CONSUMER_RUNNING_INFO (307), CONSUME_MESSAGE_DIRECTLY (309), INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223).
"""

from __future__ import annotations

from rucola.access import Action, Resource
from rucola.acl.signature import CREDENTIAL_FIELDS
from rucola.broker.config import BrokerConfig
from rucola.broker.remoting.outgoing_calls import RemotingClientCalls
from rucola.broker.services.client_inspection import InspectionService
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import (
    ConsumeMessageDirectlyRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
    encode_consumer_status,
)
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


def _consumer_group(
    header: GetConsumerConnectionListRequestHeader
    | GetConsumerRunningInfoRequestHeader
    | ConsumeMessageDirectlyRequestHeader,
) -> Resource:
    return Resource(group=header.consumer_group)


def _producer_group(header: GetProducerConnectionListRequestHeader) -> Resource:
    return Resource(producer_group=header.producer_group)


def _asked(header: GetConsumerStatusRequestHeader) -> Resource:
    return Resource(header.topic, header.group)


class ConnectionAdapter:
    def __init__(self, service: InspectionService, calls: RemotingClientCalls, config: BrokerConfig) -> None:
        self._service = service
        self._calls = calls
        self._config = config

    def endpoints(self) -> Endpoints:
        code, query, call = RequestCode, Action.QUERY, Action.CALL_CLIENT
        consumers, producers = GetConsumerConnectionListRequestHeader, GetProducerConnectionListRequestHeader
        info, directly = GetConsumerRunningInfoRequestHeader, ConsumeMessageDirectlyRequestHeader
        status = GetConsumerStatusRequestHeader
        return (
            Endpoint(code.GET_CONSUMER_CONNECTION_LIST, query, self.consumer_connections, consumers, _consumer_group),
            Endpoint(code.GET_PRODUCER_CONNECTION_LIST, query, self.producer_connections, producers, _producer_group),
            Endpoint(code.GET_ALL_PRODUCER_INFO, query, self.all_producers),
            Endpoint(code.GET_CONSUMER_RUNNING_INFO, call, self.running_info, info, _consumer_group),
            Endpoint(code.CONSUME_MESSAGE_DIRECTLY, call, self.consume_directly, directly, _consumer_group),
            Endpoint(code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, call, self.consumer_status, status, _asked),
        )

    def consumer_connections(self, request: Request[GetConsumerConnectionListRequestHeader]) -> Reply:
        return request.success(body=self._service.consumer_connections(request.content.consumer_group))

    def producer_connections(self, request: Request[GetProducerConnectionListRequestHeader]) -> Reply:
        return request.success(body=self._service.producer_connections(request.content.producer_group))

    async def all_producers(self, request: Request[None]) -> Answer:
        return request.success(body=await self._service.all_producers())

    async def running_info(self, request: Request[GetConsumerRunningInfoRequestHeader]) -> Answer:
        header = request.content
        channel = self._service.consumer(header.consumer_group, header.client_id)
        call = _without_credentials(request.command)
        return await self._calls.forward(
            request.command, channel, call, f"<{header.consumer_group}> <{header.client_id}>"
        )

    async def consume_directly(self, request: Request[ConsumeMessageDirectlyRequestHeader]) -> Answer:
        header = request.content
        group, client_id = header.consumer_group, header.client_id or ""
        record = await self._service.record_of(request.caller, header.msg_id or "")
        channel = self._service.consumer(group, client_id)
        # The client gets the request as it came, with the record as body and the name of this broker.
        call = _without_credentials(request.command, record, brokerName=self._config.broker_name)
        return await self._calls.forward(request.command, channel, call, f"<{group}> <{client_id}>")

    async def consumer_status(self, request: Request[GetConsumerStatusRequestHeader]) -> Answer:
        header = request.content
        status = await self._service.consumer_status(header.group, header.topic, header.client_addr)
        return request.success(body=encode_consumer_status(status))


def _without_credentials(command: RemotingCommand, body: bytes = b"", **added: str) -> RemotingCommand:
    """Return a copy without the signature, with which a client could repeat the operator's request."""
    copy = RemotingCommand.request(command.code, body=body)
    copy.ext = {name: value for name, value in command.ext_fields.items() if name not in CREDENTIAL_FIELDS} | added
    return copy
