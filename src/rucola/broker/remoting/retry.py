"""Adapter of CONSUMER_SEND_MSG_BACK (36)."""

from __future__ import annotations

from rucola.access import Action, Resource
from rucola.broker.services.requests import RetryRequest
from rucola.broker.services.retry import RetryService
from rucola.broker.tables.persistence import TablePersistence
from rucola.message.properties import is_true
from rucola.message.topics import retry_topic
from rucola.protocol.codes import RequestCode
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader, known_limit
from rucola.remoting.connection import Answer
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


def retried_topic(header: ConsumerSendMsgBackRequestHeader) -> Resource:
    return Resource(retry_topic(header.group), header.group)


class RetryAdapter:
    def __init__(self, service: RetryService, writing: TablePersistence) -> None:
        self._service = service
        self._writing = writing

    def endpoints(self) -> Endpoints:
        request = ConsumerSendMsgBackRequestHeader
        return (Endpoint(RequestCode.CONSUMER_SEND_MSG_BACK, Action.RETRY, self.send_back, request, retried_topic),)

    async def send_back(self, request: Request[ConsumerSendMsgBackRequestHeader]) -> Answer:
        header = request.content
        retry = RetryRequest(
            header.group,
            header.offset,
            header.delay_level,
            known_limit(header.max_reconsume_times, request.command.version),
            is_true(header.unit_mode),
            header.origin_msg_id,
        )
        put = await self._service.retry(request.caller, retry)
        await self._writing.wait_persisted()
        # The consumer completes the message with this answer, so the copy must be as safe as a message that was sent.
        await self._service.wait_durable(put())
        return request.success()
