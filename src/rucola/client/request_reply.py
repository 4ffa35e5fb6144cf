"""PendingReplies: requests that wait for the message which answers them, and how such a message is made.

A request is a message with a CORRELATION_ID, under which its reply is found, a REPLY_TO_CLIENT, the client id to which
the broker pushes the reply, and a TTL, the milliseconds for which the asker waits. See `rucola.protocol.reply`.

Answers to `RequestResponseFuture`, `RequestFutureHolder`, `MessageUtil` and the part of `ClientRemotingProcessor` that
receives replies, of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from rucola.client.clock import now_ms
from rucola.errors import InvalidMessage, RemoteProtocolError
from rucola.message import Message, MessageExt, properties
from rucola.message.compression import decompress
from rucola.message.host import encode_host
from rucola.message.topics import reply_topic
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.reply import REPLY_MESSAGE_FLAG, ReplyMessageRequestHeader
from rucola.remoting.connection import Connection, Processor, Reply

logger = logging.getLogger(__name__)


class PendingReplies:
    """The requests of one instance that wait for their replies."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def table(self) -> dict[int, Processor]:
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.receive}

    @contextmanager
    def expected(self) -> Iterator[tuple[str, asyncio.Future[MessageExt]]]:
        """A new correlation id, and what its reply will be. Afterwards nobody waits for that any more."""
        correlation_id = str(uuid.uuid4())
        reply = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        try:
            yield correlation_id, reply
        finally:
            del self._waiting[correlation_id]
            reply.cancel()

    def receive(self, connection: Connection, command: RemotingCommand) -> Reply:
        """A broker brings a reply."""
        message = _reply_of(command)
        correlation_id = message.properties.get(properties.CORRELATION_ID, "")
        reply = self._waiting.get(correlation_id)
        if reply is None:
            logger.warning(
                "%s brings a reply from %s that nobody waits for, or not any more: %s %s",
                connection.peer, message.born_host, properties.CORRELATION_ID, correlation_id,
            )  # fmt: skip
        elif not reply.done():
            reply.set_result(message)
        return command.response(ResponseCode.SUCCESS)


def request_message(message: Message, correlation_id: str, client_id: str, timeout_ms: float) -> Message:
    """`message` as a request of this client, which waits so long. The message itself is left as it is."""
    marks = {
        properties.CORRELATION_ID: correlation_id,
        properties.REPLY_TO_CLIENT: client_id,
        properties.TTL: str(round(timeout_ms)),
    }
    return Message(message.topic, message.body, properties=message.properties | marks, flag=message.flag)


def reply_message(request: MessageExt, body: bytes) -> Message:
    """The reply to a request that was consumed. InvalidMessage where it does not say to whom, so is no request."""
    marks = {properties.MSG_TYPE: REPLY_MESSAGE_FLAG}
    for name in (properties.CORRELATION_ID, properties.REPLY_TO_CLIENT, properties.TTL):
        if name not in request.properties:
            raise InvalidMessage(f"message {request.msg_id} has no {name}: it is no request, nobody waits for a reply")
        marks[name] = request.properties[name]
    if properties.CLUSTER not in request.properties:
        raise InvalidMessage(f"message {request.msg_id} has no {properties.CLUSTER}: its broker takes no replies")
    return Message(reply_topic(request.properties[properties.CLUSTER]), body, properties=marks)


def _reply_of(command: RemotingCommand) -> MessageExt:
    header = command.decode_header(ReplyMessageRequestHeader)
    try:
        store_host = encode_host(header.store_host)
        body = decompress(command.body, header.sys_flag)
    except InvalidMessage as error:
        raise RemoteProtocolError(f"a reply that cannot be read: {error}") from None
    pairs = properties.parse(header.properties)
    pairs[properties.ARRIVE_TIME] = str(now_ms())
    return MessageExt(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        store_size=0,
        body=body,
        properties=pairs,
        flag=header.flag,
        sys_flag=header.sys_flag,
        body_crc=0,
        stored_size=len(command.body),
        born_timestamp=header.born_timestamp,
        born_host=header.born_host,
        store_timestamp=header.store_timestamp,
        store_host=header.store_host,
        reconsume_times=header.reconsume_times,
        prepared_transaction_offset=0,
        store_host_bytes=store_host,
    )
