"""Adapter of requests about connected clients.

GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204), GET_ALL_PRODUCER_INFO (328); forwarded to
clients: GET_CONSUMER_RUNNING_INFO (307), CONSUME_MESSAGE_DIRECTLY (309), INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223).
"""

from __future__ import annotations

from rucola.access import Action, Caller, Resource
from rucola.acl.signature import CREDENTIAL_FIELDS
from rucola.broker.config import BrokerConfig
from rucola.broker.remoting.outgoing_calls import RemotingClientCalls
from rucola.broker.services.client_inspection import InspectionService
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import (
    ConsumeMessageDirectlyRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
    encode_consumer_status,
)
from rucola.remoting.connection import Answer, Connection, Reply
from rucola.remoting.endpoints import Endpoint


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

    def endpoints(self) -> tuple[Endpoint, ...]:
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

    def consumer_connections(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: GetConsumerConnectionListRequestHeader,
    ) -> Reply:
        body = encode_body(self._service.consumer_connections(header.consumer_group))
        return command.response(ResponseCode.SUCCESS, body=body)

    def producer_connections(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: GetProducerConnectionListRequestHeader,
    ) -> Reply:
        body = encode_body(self._service.producer_connections(header.producer_group))
        return command.response(ResponseCode.SUCCESS, body=body)

    async def all_producers(
        self, connection: Connection, caller: Caller, command: RemotingCommand, request: None
    ) -> Answer:
        return command.response(ResponseCode.SUCCESS, body=encode_body(await self._service.all_producers()))

    async def running_info(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: GetConsumerRunningInfoRequestHeader,
    ) -> Answer:
        channel = self._service.consumer(header.consumer_group, header.client_id)
        request = RemotingCommand.request(command.code)
        request.ext = _without_credentials(command)
        return await self._calls.forward(command, channel, request, f"<{header.consumer_group}> <{header.client_id}>")

    async def consume_directly(
        self,
        connection: Connection,
        caller: Caller,
        command: RemotingCommand,
        header: ConsumeMessageDirectlyRequestHeader,
    ) -> Answer:
        group, client_id = header.consumer_group, header.client_id or ""
        record = self._service.record_of(caller, header.msg_id or "")
        channel = self._service.consumer(group, client_id)
        request = RemotingCommand.request(command.code, body=record)
        # The client gets the request as it came, with the record as body and the name of this broker.
        request.ext = _without_credentials(command) | {"brokerName": self._config.broker_name}
        return await self._calls.forward(command, channel, request, f"<{group}> <{client_id}>")

    async def consumer_status(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: GetConsumerStatusRequestHeader
    ) -> Answer:
        status = await self._service.consumer_status(header.group, header.topic, header.client_addr)
        return command.response(ResponseCode.SUCCESS, body=encode_consumer_status(status))


def _without_credentials(command: RemotingCommand) -> dict[str, str]:
    """Ext fields without the signature, with which a client could repeat the operator's request."""
    return {name: value for name, value in command.ext_fields.items() if name not in CREDENTIAL_FIELDS}
