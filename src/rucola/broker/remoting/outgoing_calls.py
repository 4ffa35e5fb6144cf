"""Calls to clients over their connections: the remoting side of `rucola.broker.client_calls`.

Deliberate difference to Apache RocketMQ 4.9.8: C++ clients get the offsets of a reset as a list, all others as an
object, independent of the operator's language.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from rucola import refusals
from rucola.access import Refused
from rucola.broker.client_calls import OffsetReset, PushedReply
from rucola.broker.client_registry import ClientChannel, Member
from rucola.broker.delivery.transactions import TransactionCheckRequest
from rucola.domain.queue import MessageQueue
from rucola.errors import RemoteProtocolError, RemotingConnectError, RemotingError, RemotingTimeout
from rucola.message.host import decode_host
from rucola.protocol.codes import LanguageCode, RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import GetConsumerStatusRequestHeader, client_status_steps
from rucola.protocol.group import ResetOffsetRequestHeader, reset_table_steps
from rucola.protocol.heartbeat import NotifyConsumerIdsChangedRequestHeader
from rucola.protocol.reply import ReplyMessageRequestHeader
from rucola.protocol.transaction import CheckTransactionStateRequestHeader
from rucola.remoting.connection import Connection
from rucola.remoting.deadline import Deadline
from rucola.slices import in_slices

logger = logging.getLogger(__name__)

CLIENT_TIMEOUT_MS = 10_000
STATUS_TIMEOUT_MS = 5000
_MEMBERS_PER_ITERATION: Final = 16
"""Members that are sent their offsets, up to a megabyte each, in one iteration of the event loop."""


class RemotingClientCalls:
    """Carries out the broker's calls to connected clients.

    A congested connection gets notifications when its client reads again; other calls fail as if it were closed.
    """

    def __init__(self) -> None:
        self._missed: dict[ClientChannel, dict[str, None]] = {}

    def writable(self, channel: ClientChannel) -> None:
        """Send the notifications that a connection missed while it was congested."""
        for group in self._missed.pop(channel, ()):
            self.notify_consumer_ids_changed(channel, group)

    def closed(self, channel: ClientChannel) -> None:
        self._missed.pop(channel, None)

    def notify_consumer_ids_changed(self, channel: ClientChannel, group: str) -> None:
        if channel.is_congested:
            self._missed.setdefault(channel, {})[group] = None
            return
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
        _connection(channel).send(RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))

    def check_transaction(self, channel: ClientChannel, check: TransactionCheckRequest) -> None:
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=check.half_queue_offset,
            commit_log_offset=check.physical_offset,
            msg_id=check.unique_key,
            transaction_id=check.unique_key,
            offset_msg_id=check.offset_msg_id,
        )
        _connection(channel).send(RemotingCommand.oneway(RequestCode.CHECK_TRANSACTION_STATE, header, check.record))

    async def reset_offsets(
        self,
        members: Sequence[tuple[ClientChannel, Member]],
        request: OffsetReset,
        offsets: Mapping[MessageQueue, int],
    ) -> None:
        header = ResetOffsetRequestHeader(**request._asdict())
        # Encoded once per form, not per member: a group may have hundreds.
        forms = {as_list: await in_slices(reset_table_steps(offsets, as_list=as_list)) for as_list in (False, True)}
        for number, (channel, member) in enumerate(members):
            if number % _MEMBERS_PER_ITERATION == 0:
                await asyncio.sleep(0)
            if channel.is_congested:
                logger.warning("client %s does not read what it is sent; its offsets are not reset", member.client_id)
                continue
            body = forms[member.language == LanguageCode.CPP.name]
            _connection(channel).send(RemotingCommand.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body))

    async def push_reply(self, channel: ClientChannel, reply: PushedReply) -> str | None:
        if channel.is_congested:
            return "it does not read what it is sent"
        request = reply.request
        header = ReplyMessageRequestHeader(
            producer_group=request.producer_group,
            topic=request.topic,
            default_topic=request.default_topic,
            default_topic_queue_nums=request.default_topic_queue_nums,
            queue_id=request.queue_id,
            sys_flag=request.sys_flag,
            born_timestamp=request.born_timestamp,
            flag=request.flag,
            properties=reply.properties.decode(),
            reconsume_times=request.reconsume_times,
            unit_mode=request.unit_mode,
            born_host=decode_host(reply.born_host),
            store_host=decode_host(reply.store_host),
            store_timestamp=reply.store_timestamp,
        )
        push = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, bytes(request.body))
        try:
            received = await _connection(channel).request(push, Deadline(CLIENT_TIMEOUT_MS))
        except RemotingError as error:
            return str(error)
        if received.code != ResponseCode.SUCCESS:
            return f"it responded with code {received.code}, {received.remark}"
        return None

    async def consumer_status(
        self, channel: ClientChannel, client_id: str, topic: str, group: str
    ) -> dict[MessageQueue, int] | None:
        if channel.is_congested:
            logger.warning("client %s of group %s does not read what it is sent", client_id, group)
            return None
        header = GetConsumerStatusRequestHeader(topic=topic, group=group)
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
        try:
            answer = await _connection(channel).request(request, Deadline(STATUS_TIMEOUT_MS))
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            return await in_slices(client_status_steps(answer.body))
        except (RemotingError, RemoteProtocolError) as error:
            logger.warning("client %s of group %s did not return its status: %s", client_id, group, error)
            return None

    async def forward(
        self, command: RemotingCommand, channel: ClientChannel, request: RemotingCommand, consumer: str
    ) -> RemotingCommand:
        """Forward an operator's request; return the client's response to `command`. Refused names `consumer`."""
        answer = await self.ask(channel, request, consumer)
        forwarded = command.response(answer.code, body=answer.body, remark=answer.remark)
        forwarded.ext = dict(answer.ext_fields)
        return forwarded

    async def ask(self, channel: ClientChannel, request: RemotingCommand, consumer: str) -> RemotingCommand:
        """Return a client's response. Refused names `consumer`."""
        try:
            return await _connection(channel).request(request, Deadline(CLIENT_TIMEOUT_MS))
        except RemotingTimeout as error:
            raise Refused(refusals.CLIENT_TIMEOUT, consumer=consumer, why=error) from None
        except RemotingConnectError as error:
            raise Refused(refusals.CLIENT_CALL_FAILED, consumer=consumer, why=error) from None


def _connection(channel: ClientChannel) -> Connection:
    if not isinstance(channel, Connection):
        raise RemotingConnectError(
            f"{channel.peer} is a client of gRPC, which has no such request", subject=channel.peer
        )
    return channel
