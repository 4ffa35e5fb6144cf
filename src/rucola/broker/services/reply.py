"""Replies: a consumer's response to a request message reaches the sender of the request.

A reply is pushed to the requester, which is connected to this broker as a producer, with PUSH_REPLY_TIME among its
properties, and stored in its topic (storeReplyMessageEnable); if that fails, it has msgId 0 and is stored later.

Corresponds to `ReplyMessageProcessor` of Apache RocketMQ 4.9.8, which stores the property string of a reply unchanged.
Deliberate difference: a stored reply keeps its sysFlag, without which a compressed body could not be read, except for
the transaction bits, with which no queue would get it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rucola.access import Caller
from rucola.broker.client_calls import ClientCalls
from rucola.broker.services.publish import PublishService, SendHeader
from rucola.broker.state import BrokerState
from rucola.errors import InvalidMessage
from rucola.message import MessageInner, properties, sysflag
from rucola.message.hashing import tags_code
from rucola.message.host import decode_host
from rucola.message.ids import offset_msg_id
from rucola.protocol.reply import ReplyMessageRequestHeader
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
        calls: ClientCalls,
        may_receive: Callable[[Caller, str | None], bool],
    ) -> None:
        self._may_receive = may_receive
        self._state = state
        self._publish = publish
        self._calls = calls

    async def reply(self, caller: Caller, version: int, header: SendHeader, body: bytes) -> ReplyResult:
        """Push a reply to its requester and store it. Raises Refused."""
        prepared = self._publish.admit(caller, version, header, body, self._prepare)
        if isinstance(prepared, Awaitable):
            prepared = await prepared
        return await self._push_and_store(*prepared)

    def _prepare(
        self, header: SendHeader, body: bytes, version: int, queue_id: int, born_host: bytes
    ) -> tuple[MessageInner, str | None, ReplyMessageRequestHeader]:
        limit = self._state.store.config.max_message_size
        if len(body) > limit:
            raise InvalidMessage(f"its body has {len(body)} bytes; {limit} are allowed (maxMessageSize)")
        now_ms = self._state.clock()
        stored = header.properties.encode("utf-8", "replace")
        if len(stored) > properties.MAX_PROPERTIES_SIZE:
            raise InvalidMessage(
                f"its properties take {len(stored)} bytes; a record holds {properties.MAX_PROPERTIES_SIZE} at most"
            )
        pairs = properties.parse(header.properties)
        pushed = properties.join({**pairs, properties.PUSH_REPLY_TIME: str(now_ms)}).decode()
        message = MessageInner(
            topic=header.topic,
            queue_id=queue_id,
            body=bytes(body),
            properties=stored,
            flag=header.flag,
            sys_flag=sysflag.with_transaction_state(header.sys_flag, sysflag.TRANSACTION_NOT),
            born_timestamp=header.born_timestamp,
            born_host=born_host,
            reconsume_times=header.reconsume_times,
            tags_code=tags_code(pairs.get(properties.TAGS)),
            unique_key=pairs.get(properties.UNIQ_KEY),
            keys=pairs.get(properties.KEYS),
        )
        push = self._push_header(header, born_host, pushed, now_ms)
        return message, pairs.get(properties.REPLY_TO_CLIENT), push

    def _push_header(self, header: SendHeader, born_host: bytes, pushed: str, now_ms: int) -> ReplyMessageRequestHeader:
        return ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=pushed,
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=decode_host(born_host),
            store_host=decode_host(self._state.config.store_host),
            store_timestamp=now_ms,
        )

    async def _push_and_store(
        self, message: MessageInner, requester: str | None, push: ReplyMessageRequestHeader
    ) -> ReplyResult:
        failure = await self._push(requester, push, bytes(message.body))
        if self._state.config.store_reply_message_enable:
            result = self._state.puts.put_or_buffer("reply", message, self._state.clock())
            if result.status is PutMessageStatus.PUT_OK:
                msg_id = offset_msg_id(self._state.config.store_host, result.physical_offset)
                return ReplyResult(failure, message.queue_id, msg_id, result.queue_offset)
        return ReplyResult(failure, message.queue_id, "0", 0)

    async def _push(self, requester: str | None, push: ReplyMessageRequestHeader, body: bytes) -> str | None:
        if requester is None:
            return f"reply message properties[{properties.REPLY_TO_CLIENT}] is null"
        channel, caller = self._state.clients.producer(requester) or (None, None)
        if channel is None or caller is None or not self._may_receive(caller, None):
            return f"push reply message fail, channel of <{requester}> not found."
        failure = await self._calls.push_reply(channel, push, body)
        return failure and f"push reply message to {requester} fail: {failure}"
