"""Adapter of RECALL_MESSAGE (370) of RocketMQ 5."""

from __future__ import annotations

from rucola.access import Action, Resource
from rucola.broker.durability import Missing
from rucola.broker.services.publish import PublishService
from rucola.broker.services.recall import RecallService
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.send import RecallMessageRequestHeader, RecallMessageResponseHeader
from rucola.remoting.connection import Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


class RecallAdapter:
    def __init__(self, service: RecallService, publish: PublishService) -> None:
        self._service = service
        self._publish = publish

    def endpoints(self) -> Endpoints:
        def topic(header: RecallMessageRequestHeader) -> Resource:
            return Resource(header.topic)

        code, header = RequestCode.RECALL_MESSAGE, RecallMessageRequestHeader
        return (Endpoint(code, Action.PUBLISH, self.recall, header, topic),)

    def recall(self, request: Request[RecallMessageRequestHeader]) -> Reply:
        header, connection, command = request.content, request.connection, request.command
        unique_key, published = self._service.recall(request.caller, header.topic, header.recall_handle)
        answer = request.success(RecallMessageResponseHeader(msg_id=unique_key))
        if not published.must_wait:
            return answer

        def done(missing: Missing | None) -> None:
            if missing is not None:
                status, answer.remark = missing
                answer.code = ResponseCode[status.name]
            connection.answer(command, answer)

        self._publish.when_durable(published.end, done)
        return None
