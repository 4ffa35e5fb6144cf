"""Processors of the requests that operators send to a consumer through the broker.

    RESET_CONSUMER_CLIENT_OFFSET (220)     reset the queues to these offsets, and commit them
    GET_CONSUMER_STATUS_FROM_CLIENT (221)  return the offsets that the consumer would commit now
    GET_CONSUMER_RUNNING_INFO (307)        return its settings, subscriptions, queues and rates
    CONSUME_MESSAGE_DIRECTLY (309)         call its listener with this message now; offsets are not affected

Corresponds to `ClientRemotingProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: a reset takes effect
immediately; Apache's client waits ten seconds first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from rucola.domain.client import ConsumerData
from rucola.domain.queue import MessageQueue
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
from rucola.remoting.connection import Answer, Connection, Processor, Reply

logger = logging.getLogger(__name__)


class OperableConsumer(Protocol):
    def consumer_data(self) -> ConsumerData:
        """Return the group's entry in heartbeats."""

    def settings(self) -> dict[str, str]:
        """Return the settings, by Apache's names."""

    def process_queues(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Return the state of each assigned queue."""

    def status(self) -> dict[str, ConsumeStatus]:
        """Return the rates of each topic."""

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in the queues that are assigned here; ignore the others."""

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Call the listener with the message. ConfigError if there is no listener."""


class OperatorRequests:
    """Serves the requests; `consumer_of` returns a group's consumer on this instance, or None."""

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
        infos = self._consumer(header.group).process_queues()
        offsets = {queue: info.commit_offset for queue, info in infos.items() if queue.topic == header.topic}
        return command.response(ResponseCode.SUCCESS, body=encode_client_status(offsets))

    def get_consumer_running_info(self, connection: Connection, command: RemotingCommand) -> Reply:
        consumer = self._consumer(command.decode_header(GetConsumerRunningInfoRequestHeader).consumer_group)
        info = ConsumerRunningInfo(
            mq_table=consumer.process_queues(),
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
            raise RemoteProtocolError(f"the message to consume is a damaged record: {error}") from None
        return command.response(ResponseCode.SUCCESS, body=encode_body(await consumer.consume_directly(message)))
