"""Adapter of SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325), see `rucola.protocol.reply`.

The response is SUCCESS if the requester has the reply, else SYSTEM_ERROR with the reason; both name the stored message.
"""

from __future__ import annotations

from rucola.access import Action
from rucola.broker.config import BrokerConfig
from rucola.broker.remoting.send import SendHeader, publish_request, published_topic
from rucola.broker.services.reply import ReplyService
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.remoting.connection import Answer
from rucola.remoting.endpoints import Endpoint, Endpoints, Request


class ReplyAdapter:
    def __init__(self, service: ReplyService, config: BrokerConfig) -> None:
        self._service = service
        self._region = config.region_fields

    def endpoints(self) -> Endpoints:
        v1, v2 = SendMessageRequestHeader, SendMessageRequestHeaderV2
        return (
            Endpoint(RequestCode.SEND_REPLY_MESSAGE, Action.PUBLISH, self.send_reply, v1, published_topic),
            Endpoint(RequestCode.SEND_REPLY_MESSAGE_V2, Action.PUBLISH, self.send_reply, v2, published_topic),
        )

    async def send_reply(self, request: Request[SendHeader]) -> Answer:
        result = await self._service.reply(request.caller, publish_request(request))
        code = ResponseCode.SUCCESS if result.failure is None else ResponseCode.SYSTEM_ERROR
        answer = request.command.response(code, remark=result.failure)
        answer.ext = {
            **self._region,
            "msgId": result.msg_id,
            "queueId": str(result.queue_id),
            "queueOffset": str(result.queue_offset),
        }
        return answer
