"""Clients, as operators ask about them: who is connected, and what goes on inside one of them.

GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204), GET_ALL_PRODUCER_INFO (328) and
CHECK_CLIENT_CONFIG (46) are answered from the list of clients. GET_CONSUMER_RUNNING_INFO (307),
CONSUME_MESSAGE_DIRECTLY (309) and INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) are put to the clients themselves, and
the answer waits for theirs.

Answers to parts of `AdminBrokerProcessor`, `ClientManageProcessor` and `Broker2Client` of Apache RocketMQ 4.9.8.
Deliberate differences: all clients of a group are asked for their status at the same time, and a message that is not
there is said to be missing, where Apache's broker fails.
"""

from __future__ import annotations

import asyncio
import logging

from rucola.broker.client_registry import Member
from rucola.broker.message_filter import filter_not_supported, matches
from rucola.broker.state import BrokerState
from rucola.errors import InvalidMessage, RemotingConnectError, RemotingError, RemotingTimeout
from rucola.message.ids import parse_offset_msg_id
from rucola.protocol.body import decode_body, encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import (
    CheckClientRequestBody,
    ClientConnection,
    ConsumeMessageDirectlyRequestHeader,
    ConsumerConnection,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    decode_client_status,
    encode_consumer_status,
)
from rucola.protocol.heartbeat import subscription
from rucola.protocol.queue import MessageQueue
from rucola.remoting.connection import Answer, Connection, Processor, Reply
from rucola.remoting.deadline import Deadline

logger = logging.getLogger(__name__)

CLIENT_TIMEOUT_MS = 10_000
"""How long a client may take to answer for an operator."""
STATUS_TIMEOUT_MS = 5000


class ConnectionProcessor:
    """Answers from the list of clients, and for clients."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.get_consumer_connection_list,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.get_producer_connection_list,
            RequestCode.GET_ALL_PRODUCER_INFO: self.get_all_producer_info,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client_config,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.get_consumer_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_message_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.get_consumer_status,
        }

    def get_consumer_connection_list(self, connection: Connection, command: RemotingCommand) -> Reply:
        name = command.decode_header(GetConsumerConnectionListRequestHeader).consumer_group
        group = self._state.clients.consumers.get(name)
        if group is None:
            return command.response(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connection_set=_connections(group.members),
            consume_from_where=group.consume_from_where,
            consume_type=group.consume_type,
            message_model=group.message_model,
            subscription_table=group.subscriptions,
        )
        return command.response(ResponseCode.SUCCESS, body=encode_body(body))

    def get_producer_connection_list(self, connection: Connection, command: RemotingCommand) -> Reply:
        name = command.decode_header(GetProducerConnectionListRequestHeader).producer_group
        members = self._state.clients.producers.get(name)
        if members is None:
            return command.response(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
        body = encode_body(ProducerConnection(connection_set=_connections(members)))
        return command.response(ResponseCode.SUCCESS, body=body)

    def get_all_producer_info(self, connection: Connection, command: RemotingCommand) -> Reply:
        data = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    language=member.language,
                    last_update_timestamp=member.last_heartbeat_ms,
                    remote_ip=client.peer,
                    version=member.version,
                )
                for client, member in members.items()
            ]
            for group, members in self._state.clients.producers.items()
        }
        return command.response(ResponseCode.SUCCESS, body=encode_body(ProducerTableInfo(data=data)))

    def check_client_config(self, connection: Connection, command: RemotingCommand) -> Reply:
        """Tell a consumer whether this broker understands its subscription."""
        wanted = decode_body(CheckClientRequestBody, command.body).subscription_data
        if wanted is None:
            return command.response(ResponseCode.SUCCESS)
        if not wanted.is_tag_type and not self._state.config.enable_property_filter:
            return filter_not_supported(command, wanted)
        try:
            if wanted.is_tag_type:
                subscription(wanted.topic, wanted.sub_string)
            else:
                matches(wanted.expression_type, wanted.sub_string)
        except InvalidMessage as error:
            return command.response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        return command.response(ResponseCode.SUCCESS)

    async def get_consumer_running_info(self, connection: Connection, command: RemotingCommand) -> Answer:
        header = command.decode_header(GetConsumerRunningInfoRequestHeader)
        return await self._hand_on(command, header.consumer_group, header.client_id)

    async def consume_message_directly(self, connection: Connection, command: RemotingCommand) -> Answer:
        header = command.decode_header(ConsumeMessageDirectlyRequestHeader)
        _, physical_offset = parse_offset_msg_id(header.msg_id or "")
        record = self._state.store.record_at(physical_offset)
        if record is None:
            return command.response(
                ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {physical_offset}"
            )
        fields = command.ext_fields | {"brokerName": self._state.config.broker_name}
        return await self._hand_on(command, header.consumer_group, header.client_id or "", fields, bytes(record))

    async def _hand_on(
        self,
        command: RemotingCommand,
        group: str,
        client_id: str,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """The client's own answer, or one that says why there is none."""
        client = self._client(group, client_id)
        if client is None:
            return command.response(
                ResponseCode.SYSTEM_ERROR, remark=f"The Consumer <{group}> <{client_id}> not online"
            )
        request = RemotingCommand.request(command.code, body=body)
        request.ext = command.ext_fields if fields is None else fields
        try:
            answer = await client.request(request, Deadline(CLIENT_TIMEOUT_MS))
        except RemotingTimeout as error:
            return command.response(
                ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"consumer <{group}> <{client_id}> Timeout: {error}"
            )
        except RemotingConnectError as error:
            return command.response(
                ResponseCode.SYSTEM_ERROR, remark=f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            )
        handed_back = command.response(answer.code, body=answer.body, remark=answer.remark)
        handed_back.ext = dict(answer.ext_fields)
        return handed_back

    def _client(self, group: str, client_id: str) -> Connection | None:
        known = self._state.clients.consumers.get(group)
        members = known.members.items() if known else ()
        return next((client for client, member in members if member.client_id == client_id), None)

    async def get_consumer_status(self, connection: Connection, command: RemotingCommand) -> Answer:
        """The offsets that the clients of a group are at, all or one; a client that gives no answer is left out."""
        header = command.decode_header(GetConsumerStatusRequestHeader)
        group = self._state.clients.consumers.get(header.group)
        if group is None:
            return command.response(
                ResponseCode.SYSTEM_ERROR, remark=f"No Any Consumer online in the consumer group: [{header.group}]"
            )

        async def ask(client: Connection, member: Member) -> tuple[str, dict[MessageQueue, int] | None]:
            question = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
            request = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question)
            try:
                answer = await client.request(request, Deadline(STATUS_TIMEOUT_MS))
            except RemotingError as error:
                logger.warning("client %s of group %s told no status: %s", member.client_id, header.group, error)
                return member.client_id, None
            is_told = answer.code == ResponseCode.SUCCESS and answer.body
            return member.client_id, decode_client_status(answer.body) if is_told else None

        asked = [
            ask(client, member)
            for client, member in group.members.items()
            if header.client_addr in (None, "", member.client_id)
        ]
        told = {client_id: offsets for client_id, offsets in await asyncio.gather(*asked) if offsets is not None}
        return command.response(ResponseCode.SUCCESS, body=encode_consumer_status(told))


def _connections(members: dict[Connection, Member]) -> list[ClientConnection]:
    return [
        ClientConnection(
            client_addr=client.peer, client_id=member.client_id, language=member.language, version=member.version
        )
        for client, member in members.items()
    ]
