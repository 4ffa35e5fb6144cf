"""Adapter of SendMessage, RecallMessage and EndTransaction.

The transaction id of a half message has its offsets, so that any later EndTransaction finds it; a topic is the producer
group of its transactions, as in Apache's proxy. Messages of a group go to one queue.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from rucola.access import Action, Caller, Refused, Resource
from rucola.broker.delivery.transactions import TransactionEnd
from rucola.broker.grpc.codes import OK, IllegalCall, common_status, status_of, when_durable
from rucola.broker.grpc.messages import publish_request
from rucola.broker.grpc.methods import GrpcMethod, GrpcRequest, Response, checked, name_of
from rucola.broker.services.publish import PublishService
from rucola.broker.services.recall import RecallService
from rucola.broker.services.requests import PublishRequest
from rucola.broker.services.results import Published
from rucola.broker.services.transactions import TransactionService
from rucola.broker.state import BrokerState
from rucola.message import sysflag
from rucola.message.hashing import string_hash
from rucola.message.topics import check_topic
from rucola.protocol.grpc.definition_pb2 import Code, Message, Status, TransactionResolution
from rucola.protocol.grpc.service_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)

logger = logging.getLogger(__name__)

_OUTCOMES: Final = {
    TransactionResolution.COMMIT: sysflag.TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: sysflag.TRANSACTION_ROLLBACK,
    TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED: sysflag.TRANSACTION_NOT,
}
_MESSAGES_PER_ITERATION: Final = 64
_id_parts = re.compile("([0-9A-F]{16})([0-9A-F]{16})").fullmatch


def transaction_id(half_queue_offset: int, physical_offset: int) -> str:
    return f"{half_queue_offset:016X}{physical_offset:016X}"


class SendAdapter:
    def __init__(
        self, publish: PublishService, recall: RecallService, transactions: TransactionService, state: BrokerState
    ) -> None:
        self._publish = publish
        self._recall = recall
        self._transactions = transactions
        self._topic = state.topics.get
        self._config, self._store_config = state.config, state.store.config
        self._clock = state.clock
        self._next_queue = 0
        self._unordered: set[str] = set()
        """Topics of which the log says that their order is lost."""

    def methods(self) -> Iterable[GrpcMethod[Any]]:
        def sent(request: SendMessageRequest) -> list[Resource]:
            # `send` refuses more of them.
            limited = islice(request.messages, self._config.max_messages_per_batch)
            return [Resource(topic) for topic in {name_of(message.topic) for message in limited}] or [Resource()]

        def named(request: RecallMessageRequest | EndTransactionRequest) -> list[Resource]:
            return [Resource(name_of(request.topic))]

        return (
            GrpcMethod(
                "SendMessage", Action.PUBLISH, SendMessageRequest, sent,
                lambda status: SendMessageResponse(status=status), self.send,
            ),
            GrpcMethod(
                "RecallMessage", Action.PUBLISH, RecallMessageRequest, named,
                lambda status: RecallMessageResponse(status=status), self.recall,
            ),
            GrpcMethod(
                "EndTransaction", Action.END_TRANSACTION, EndTransactionRequest, named,
                lambda status: EndTransactionResponse(status=status), self.end,
            ),
        )  # fmt: skip

    def send(self, request: GrpcRequest[SendMessageRequest]) -> Response:
        messages = request.content.messages
        count, limit = len(messages), self._config.max_messages_per_batch
        if not 0 < count <= limit:
            text = f"the request has {count} messages; 1 to {limit} are allowed (maxMessagesPerBatch)"
            raise IllegalCall(Code.BAD_REQUEST, text)
        if count == 1 and not self._publish.waits and self._publish.has_topic(name_of(messages[0].topic)):
            entry, _ = self._put(request.caller, messages[0])
            return SendMessageResponse(status=entry.status, entries=[entry])
        return self.send_all(request.caller, messages)

    async def send_all(self, caller: Caller, messages: Iterable[Message]) -> SendMessageResponse:
        entries: list[SendResultEntry] = []
        waiting: list[tuple[SendResultEntry, asyncio.Future[Status | None]]] = []
        for number, message in enumerate(messages):
            if number and number % _MESSAGES_PER_ITERATION == 0:
                await asyncio.sleep(0)
            failure = await self._ensure_topic(caller, message)
            entry, published = (failure, None) if failure is not None else self._put(caller, message)
            entries.append(entry)
            if published is not None and published.must_wait:
                waiting.append((entry, when_durable(self._publish.when_durable, published.end)))
        for entry, durable in waiting:
            if (missing := await durable) is not None:
                entry.status.CopyFrom(missing)
        return SendMessageResponse(status=common_status([entry.status for entry in entries]), entries=entries)

    async def _ensure_topic(self, caller: Caller, message: Message) -> SendResultEntry | None:
        if self._publish.has_topic(name_of(message.topic)):
            return None
        try:
            await self._publish.ensure_topic(caller, self._request(message))
        except (Refused, IllegalCall) as error:
            return SendResultEntry(status=status_of(error), message_id=message.system_properties.message_id)
        return None

    def _put(self, caller: Caller, message: Message) -> tuple[SendResultEntry, Published | None]:
        system = message.system_properties
        try:
            request = self._request(message)
            request.queue_id = self._queue_of(request, system.message_group)
            published = self._publish.publish(caller, request)
        except (Refused, IllegalCall) as error:
            return SendResultEntry(status=status_of(error), message_id=system.message_id), None
        entry = SendResultEntry(
            status=OK,
            message_id=system.message_id,
            offset=published.queue_offset,
            recall_handle=published.recall_handle,
        )
        if request.sys_flag:
            entry.transaction_id = transaction_id(published.queue_offset, published.physical_offset)
        return entry, published

    def _request(self, message: Message) -> PublishRequest:
        sizes = self._store_config.max_message_size, self._config.max_keys_per_message
        return publish_request(message, *sizes, self._clock())

    def _queue_of(self, request: PublishRequest, message_group: str) -> int:
        topic = self._topic(request.topic)
        if topic is None or not topic.write_queue_nums:
            return -1
        if message_group:
            if not topic.order and request.topic not in self._unordered:
                self._unordered.add(request.topic)
                logger.warning(
                    "topic %s gets messages in order (FIFO), but consumers of RocketMQ 5 receive it in any order: "
                    "`rucola admin updateTopic -o true` changes that",
                    request.topic,
                )
            return string_hash(message_group) % topic.write_queue_nums
        self._next_queue += 1
        return self._next_queue % topic.write_queue_nums

    async def recall(self, request: GrpcRequest[RecallMessageRequest]) -> RecallMessageResponse:
        topic = checked(check_topic, name_of(request.content.topic), Code.ILLEGAL_TOPIC)
        message_id, published = self._recall.recall(request.caller, topic, request.content.recall_handle)
        missing = None
        if published.must_wait:
            missing = await when_durable(self._publish.when_durable, published.end)
        return RecallMessageResponse(status=missing or OK, message_id=message_id)

    def end(self, request: GrpcRequest[EndTransactionRequest]) -> EndTransactionResponse:
        content = request.content
        topic = checked(check_topic, name_of(content.topic), Code.ILLEGAL_TOPIC)
        parts = _id_parts(content.transaction_id)
        if parts is None:
            raise IllegalCall(Code.INVALID_TRANSACTION_ID, f"no transaction has the id {content.transaction_id[:64]!r}")
        half_queue_offset, physical_offset = (int(part, 16) for part in parts.groups())
        if (outcome := _OUTCOMES.get(content.resolution)) is None:
            raise IllegalCall(Code.BAD_REQUEST, f"the resolution is {content.resolution}, which is none")
        end = TransactionEnd(topic, half_queue_offset, physical_offset, outcome, content.message_id or None)
        self._transactions.end(request.caller, end)
        return EndTransactionResponse(status=OK)
