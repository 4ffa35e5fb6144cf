"""Replies to requests: SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325), see `rucola.protocol.reply`.

A reply is pushed at once to the client that asked, which is connected to this broker as a producer: with
PUSH_REPLY_MESSAGE_TO_CLIENT (326), and PUSH_REPLY_TIME among its properties. It is also stored in its topic
(storeReplyMessageEnable), for later reading. The answer says whether the asker has it: SUCCESS, or SYSTEM_ERROR with
the reason. A reply that cannot be stored now is answered with msgId 0 and stored later (see `broker.internal_puts`).

Answers to `ReplyMessageProcessor` of Apache RocketMQ 4.9.8, which stores the property string of a reply as it came.
Deliberate difference: a stored reply keeps its sysFlag, without which a compressed body could not be read, but for the
bits of a transaction, with which no queue would get it.
"""

from __future__ import annotations

from rucola.broker.remoting.send import SendHeader, SendProcessor
from rucola.broker.state import BrokerState
from rucola.errors import InvalidMessage, RemotingError
from rucola.message import MessageInner, properties, sysflag
from rucola.message.hashing import tags_code
from rucola.message.host import decode_host
from rucola.message.ids import offset_msg_id
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.reply import ReplyMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from rucola.remoting.connection import Answer, Connection, Processor, Reply
from rucola.remoting.deadline import Deadline
from rucola.store.config import PutMessageStatus

CLIENT_TIMEOUT_MS = 10_000
"""How long an asker may take to receive its reply."""


class ReplyProcessor:
    """Hands replies on. `send` checks them like any message."""

    def __init__(self, state: BrokerState, send: SendProcessor) -> None:
        self._state = state
        self._send = send

    def table(self) -> dict[int, Processor]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.send_reply_message,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.send_reply_message_v2,
        }

    def send_reply_message(self, connection: Connection, command: RemotingCommand) -> Reply:
        return self._send.admit(connection, command, command.decode_header(SendMessageRequestHeader), self._hand_on)

    def send_reply_message_v2(self, connection: Connection, command: RemotingCommand) -> Reply:
        return self._send.admit(connection, command, command.decode_header(SendMessageRequestHeaderV2), self._hand_on)

    def _hand_on(self, command: RemotingCommand, header: SendHeader, queue_id: int, born_host: bytes) -> Reply:
        body, limit = bytes(command.body), self._state.store.config.max_message_size
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
            body=body,
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
        asker = pairs.get(properties.REPLY_TO_CLIENT)
        push = RemotingCommand.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._pushed_header(header, born_host, pushed, now_ms), body
        )
        return self._push_and_store(command, message, asker, push)

    def _pushed_header(
        self, header: SendHeader, born_host: bytes, pushed: str, now_ms: int
    ) -> ReplyMessageRequestHeader:
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
        self, command: RemotingCommand, message: MessageInner, asker: str | None, push: RemotingCommand
    ) -> Answer:
        failure = await self._push(asker, push)
        answer = command.response(
            ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR, remark=failure
        )
        msg_id, queue_offset = "0", 0
        if self._state.config.store_reply_message_enable:
            result = self._state.puts.put_or_buffer("reply", message, self._state.clock())
            if result.status is PutMessageStatus.PUT_OK:
                msg_id = offset_msg_id(self._state.config.store_host, result.physical_offset)
                queue_offset = result.queue_offset
        answer.ext_fields.update(
            self._state.config.region_fields, msgId=msg_id, queueId=str(message.queue_id), queueOffset=str(queue_offset)
        )
        return answer

    async def _push(self, asker: str | None, push: RemotingCommand) -> str | None:
        """Push a reply; why the asker does not have it, or None."""
        if asker is None:
            return f"reply message properties[{properties.REPLY_TO_CLIENT}] is null"
        connection = self._state.clients.producer(asker)
        if connection is None:
            return f"push reply message fail, channel of <{asker}> not found."
        try:
            received = await connection.request(push, Deadline(CLIENT_TIMEOUT_MS))
        except RemotingError as error:
            return f"push reply message to {asker} fail: {error}"
        if received.code != ResponseCode.SUCCESS:
            return f"push reply message to {asker} fail: it answered code {received.code}, {received.remark}"
        return None
