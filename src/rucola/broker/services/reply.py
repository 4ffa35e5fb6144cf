"""Replies: a consumer's response to a request message reaches the sender of the request.

A reply is pushed to the requester, which is connected to this broker as a producer, with PUSH_REPLY_TIME among its
properties, and stored in its topic (storeReplyMessageEnable); if that fails, it has msgId 0 and is stored later.

Corresponds to `ReplyMessageProcessor` of Apache RocketMQ 4.9.8, which stores the property string of a reply unchanged.
Deliberate difference: a stored reply keeps its sysFlag, without which a compressed body could not be read, except for
the transaction bits, with which no queue would get it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rucola.access import Caller
from rucola.broker.client_calls import ProducerCalls, PushedReply
from rucola.broker.services.publish import PublishService
from rucola.broker.services.requests import PublishRequest
from rucola.broker.state import BrokerState
from rucola.errors import InvalidMessage
from rucola.message import MessageInner, properties, sysflag
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.ids import offset_msg_id
from rucola.store.config import PutMessageStatus


class ReplyResult(NamedTuple):
    failure: str | None
    """Why the requester does not have the reply; None if it does."""
    queue_id: int
    msg_id: str
    """The offsetMsgId; "0" if it was not stored."""
    queue_offset: int


class ReplyService:
    """Delivers replies. Topics and queues are checked as for any message."""

    def __init__(
        self,
        state: BrokerState,
        publish: PublishService,
        calls: ProducerCalls,
        may_receive: Callable[[Caller, str | None], bool],
    ) -> None:
        self._may_receive = may_receive
        self._state = state
        self._publish = publish
        self._calls = calls

    async def reply(self, caller: Caller, request: PublishRequest) -> ReplyResult:
        """Push a reply to its requester and store it. Raises Refused."""
        await self._publish.ensure_topic(caller, request)
        queue_id = self._publish.queue_for(caller, request)
        try:
            self._publish.check_size(request.body)
            if (size := len(request.properties)) > properties.MAX_PROPERTIES_SIZE:
                raise InvalidMessage(
                    f"its properties take {size} bytes; a record holds {properties.MAX_PROPERTIES_SIZE} at most"
                )
            pairs, now_ms = properties.parse(request.properties), self._state.clock()
            pushed = properties.join({**pairs, properties.PUSH_REPLY_TIME: str(now_ms)})
        except InvalidMessage as error:
            raise self._publish.illegal(error) from None
        born_host, store_host = encode_host(caller.address), self._state.config.store_host
        message = MessageInner(
            topic=request.topic,
            queue_id=queue_id,
            body=bytes(request.body),
            properties=request.properties,
            flag=request.flag,
            sys_flag=sysflag.with_transaction_state(request.sys_flag, sysflag.TRANSACTION_NOT),
            born_timestamp=request.born_timestamp,
            born_host=born_host,
            reconsume_times=request.reconsume_times,
            tags_code=tags_code(pairs.get(properties.TAGS)),
            unique_key=pairs.get(properties.UNIQ_KEY),
            keys=pairs.get(properties.KEYS),
        )
        push = PushedReply(request, pushed, born_host, store_host, now_ms)
        failure = await self._push(pairs.get(properties.REPLY_TO_CLIENT), push)
        if self._state.config.store_reply_message_enable:
            result = self._state.puts.put_or_buffer("reply", message, self._state.clock())
            if result.status is PutMessageStatus.PUT_OK:
                msg_id = offset_msg_id(store_host, result.physical_offset)
                return ReplyResult(failure, queue_id, msg_id, result.queue_offset)
        return ReplyResult(failure, queue_id, "0", 0)

    async def _push(self, requester: str | None, push: PushedReply) -> str | None:
        if requester is None:
            return f"reply message properties[{properties.REPLY_TO_CLIENT}] is null"
        channel, caller = self._state.clients.producer(requester) or (None, None)
        if channel is None or caller is None or not self._may_receive(caller, None):
            return f"push reply message fail, channel of <{requester}> not found."
        failure = await self._calls.push_reply(channel, push)
        return failure and f"push reply message to {requester} fail: {failure}"
