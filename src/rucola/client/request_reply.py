"""Request and reply by messages: pending requests, and the messages of both directions.

A request has three properties: CORRELATION_ID, which its reply repeats; REPLY_TO_CLIENT, the client id to which the
broker pushes the reply; and TTL, the timeout in milliseconds. See `rucola.protocol.reply`.

    requester                  broker                        replier
    send request  ──────────>  topic  ─────────────────────> consume
    PendingReplies <─────────  PUSH_REPLY_MESSAGE_TO_CLIENT <── send to <cluster>_REPLY_TOPIC

Corresponds to `RequestResponseFuture`, `RequestFutureHolder`, `MessageUtil` and a part of `ClientRemotingProcessor` of
Apache RocketMQ 4.9.8.
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
from rucola.message.compression import read_body
from rucola.message.host import encode_host
from rucola.message.topics import reply_topic
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.reply import REPLY_MESSAGE_FLAG, ReplyMessageRequestHeader
from rucola.remoting.connection import Connection, Processor, Reply

logger = logging.getLogger(__name__)


class PendingReplies:
    """Requests of one client instance that wait for their replies. Belongs to one event loop."""

    def __init__(self) -> None:
        self._replies: dict[str, asyncio.Future[MessageExt]] = {}
        """By correlation id."""

    def table(self) -> dict[int, Processor]:
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.receive}

    @contextmanager
    def expect(self) -> Iterator[tuple[str, asyncio.Future[MessageExt]]]:
        """Yield a new correlation id and the future of its reply, which is cancelled when the context ends."""
        correlation_id = str(uuid.uuid4())
        reply = self._replies[correlation_id] = asyncio.get_running_loop().create_future()
        try:
            yield correlation_id, reply
        finally:
            del self._replies[correlation_id]
            reply.cancel()

    def receive(self, connection: Connection, command: RemotingCommand) -> Reply:
        message = _reply_of(command)
        correlation_id = message.properties.get(properties.CORRELATION_ID, "")
        reply = self._replies.get(correlation_id)
        if reply is None:
            logger.warning(
                "%s pushed a reply from %s for which no request is pending: %s %s",
                connection.peer, message.born_host, properties.CORRELATION_ID, correlation_id,
            )  # fmt: skip
        # The same reply may come twice, since sending it is retried as well.
        elif not reply.done():
            reply.set_result(message)
        return command.response(ResponseCode.SUCCESS)


def request_message(message: Message, correlation_id: str, client_id: str, timeout_ms: float) -> Message:
    """Return a copy of `message` with the properties of a request from this client."""
    added = {
        properties.CORRELATION_ID: correlation_id,
        properties.REPLY_TO_CLIENT: client_id,
        properties.TTL: str(round(timeout_ms)),
    }
    return Message(
        message.topic,
        message.body,
        properties=message.properties | added,
        flag=message.flag,
        body_flags=message.body_flags,
    )


def reply_message(request: MessageExt, body: bytes) -> Message:
    """Return the reply to a consumed request. InvalidMessage if the message is not a request."""
    copied = {properties.MSG_TYPE: REPLY_MESSAGE_FLAG}
    for name in (properties.CORRELATION_ID, properties.REPLY_TO_CLIENT, properties.TTL):
        if name not in request.properties:
            raise InvalidMessage(
                f"message {request.msg_id} has no {name}: it is not a request, so no client waits for a reply"
            )
        copied[name] = request.properties[name]
    if properties.CLUSTER not in request.properties:
        raise InvalidMessage(
            f"message {request.msg_id} has no {properties.CLUSTER}: its broker does not support replies"
        )
    return Message(reply_topic(request.properties[properties.CLUSTER]), body, properties=copied)


def _reply_of(command: RemotingCommand) -> MessageExt:
    header = command.decode_header(ReplyMessageRequestHeader)
    try:
        store_host = encode_host(header.store_host)
    except InvalidMessage as error:
        raise RemoteProtocolError(f"a reply cannot be decoded: {error}") from None
    body, body_error = read_body(command.body, header.sys_flag)
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
        body_error=body_error,
    )
