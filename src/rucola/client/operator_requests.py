"""What operators ask of a consumer, through the broker.

    RESET_CONSUMER_CLIENT_OFFSET (220)     begin anew at these offsets, and commit them
    GET_CONSUMER_STATUS_FROM_CLIENT (221)  the offsets it would commit now
    GET_CONSUMER_RUNNING_INFO (307)        its settings, subscriptions, queues and rates
    CONSUME_MESSAGE_DIRECTLY (309)         give this message to its listener now, and tell what came of it

A message that is consumed directly counts for no offset. Answers to `ClientRemotingProcessor` of Apache RocketMQ 4.9.8.
Deliberate difference: a reset takes effect at once, where Apache's client first waits ten seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from rucola.errors import ConfigError, InvalidMessage, RemoteProtocolError
from rucola.message import MessageExt
from rucola.message.record import decode
from rucola.protocol.body import encode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.connections import (
    ConsumeMessageDirectlyRequestHeader,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ProcessQueueInfo,
    encode_client_status,
    encode_running_info,
)
from rucola.protocol.group import ResetOffsetRequestHeader, decode_offset_table
from rucola.protocol.heartbeat import ConsumerData
from rucola.protocol.queue import MessageQueue
from rucola.remoting.connection import Answer, Connection, Processor, Reply

logger = logging.getLogger(__name__)


class OperableConsumer(Protocol):
    """What a consumer does for operators."""

    def consumer_data(self) -> ConsumerData:
        """The group as heartbeats describe it."""

    def settings(self) -> dict[str, str]:
        """Its settings, by Apache's names."""

    def held(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """What it holds of each of its queues."""

    def status(self) -> dict[str, ConsumeStatus]:
        """How fast it consumes each topic."""

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin anew in those of the queues that it has."""

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Give the message to the listener. ConfigError where there is none."""


class OperatorRequests:
    """Serves the requests; `consumer_of` finds the consumer of a group on this instance."""

    def __init__(self, client_id: Callable[[], str], consumer_of: Callable[[str], OperableConsumer | None]) -> None:
        self._client_id = client_id
        self._consumer_of = consumer_of

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset_consumer_client_offset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.get_consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.get_consumer_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_message_directly,
        }

    def _consumer(self, group: str) -> OperableConsumer:
        consumer = self._consumer_of(group)
        if consumer is None:
            raise ConfigError(f"The Consumer Group <{group}> not exist in the consumer <{self._client_id()}>")
        return consumer

    async def reset_consumer_client_offset(self, connection: Connection, command: RemotingCommand) -> Answer:
        header = command.decode_header(ResetOffsetRequestHeader)
        offsets = decode_offset_table(command.body)
        logger.info("%s resets group %s on topic %s: %s", connection.peer, header.group, header.topic, offsets)
        await self._consumer(header.group).reset_offsets(offsets)
        return command.response(ResponseCode.SUCCESS)

    def get_consumer_status(self, connection: Connection, command: RemotingCommand) -> Reply:
        header = command.decode_header(GetConsumerStatusRequestHeader)
        held = self._consumer(header.group).held()
        offsets = {queue: info.commit_offset for queue, info in held.items() if queue.topic == header.topic}
        return command.response(ResponseCode.SUCCESS, body=encode_client_status(offsets))

    def get_consumer_running_info(self, connection: Connection, command: RemotingCommand) -> Reply:
        consumer = self._consumer(command.decode_header(GetConsumerRunningInfoRequestHeader).consumer_group)
        info = ConsumerRunningInfo(
            mq_table=consumer.held(),
            properties=consumer.settings(),
            status_table=consumer.status(),
            subscription_set=consumer.consumer_data().subscription_data_set,
        )
        return command.response(ResponseCode.SUCCESS, body=encode_running_info(info))

    async def consume_message_directly(self, connection: Connection, command: RemotingCommand) -> Answer:
        consumer = self._consumer(command.decode_header(ConsumeMessageDirectlyRequestHeader).consumer_group)
        try:
            message = decode(command.body)
        except InvalidMessage as error:
            raise RemoteProtocolError(f"the message to consume is no sound record: {error}") from None
        return command.response(ResponseCode.SUCCESS, body=encode_body(await consumer.consume_directly(message)))
