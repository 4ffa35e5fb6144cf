"""Adapter of CONSUMER_SEND_MSG_BACK (36)."""

from __future__ import annotations

from rucola.access import Action, Caller, Resource
from rucola.broker.services.requests import RetryRequest
from rucola.broker.services.retry import RetryService
from rucola.broker.tables.persistence import TablePersistence
from rucola.message.properties import is_true
from rucola.message.topics import retry_topic
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader, known_limit
from rucola.remoting.connection import Connection, Reply
from rucola.remoting.endpoints import Endpoint


def retried_topic(header: ConsumerSendMsgBackRequestHeader) -> Resource:
    return Resource(retry_topic(header.group), header.group)


class RetryAdapter:
    def __init__(self, service: RetryService, writing: TablePersistence) -> None:
        self._service = service
        self._writing = writing

    def endpoints(self) -> tuple[Endpoint, ...]:
        request = ConsumerSendMsgBackRequestHeader
        return (Endpoint(RequestCode.CONSUMER_SEND_MSG_BACK, Action.RETRY, self.send_back, request, retried_topic),)

    def send_back(
        self, connection: Connection, caller: Caller, command: RemotingCommand, header: ConsumerSendMsgBackRequestHeader
    ) -> Reply:
        request = RetryRequest(
            header.group,
            header.offset,
            header.delay_level,
            known_limit(header.max_reconsume_times, command.version),
            is_true(header.unit_mode),
        )
        put = self._service.retry(caller, request)

        def answer() -> RemotingCommand:
            put()
            return command.response(ResponseCode.SUCCESS)

        return self._writing.when_persisted(answer)
