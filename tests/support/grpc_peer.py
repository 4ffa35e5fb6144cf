"""A client of gRPC that sends single calls to a broker."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from rucola.http2.client import GrpcChannel
from rucola.http2.frames import RST_STREAM, WORD, ErrorCode, frame
from rucola.protocol.grpc import admin_pb2, service_pb2
from rucola.protocol.grpc.definition_pb2 import Encoding, Message, MessageType, Resource, Settings, SystemProperties
from rucola.protocol.grpc.service_pb2 import ReceiveMessageRequest, TelemetryCommand

SERVICE = "/apache.rocketmq.v2.MessagingService"
ADMIN = "/apache.rocketmq.v2.Admin"
CLIENT_ID = "client@1"
Keys = tuple[str, str]
"""Access key and secret key."""
STREAMED = {"ReceiveMessage", "PullMessage"}


class GrpcPeer:
    """Calls of one client id, signed with `keys` if there are any."""

    def __init__(self, channel: grpc.aio.Channel, client_id: str = CLIENT_ID, keys: Keys | None = None) -> None:
        self.channel = channel
        self.metadata = metadata_of(client_id, keys)

    async def ask(self, method: str, request: Any = None, metadata: Any = None) -> Any:
        """The response of a method; the last one of a stream."""
        kind, answer = getattr(service_pb2, f"{method}Request"), getattr(service_pb2, f"{method}Response")
        make = self.channel.unary_stream if method in STREAMED else self.channel.unary_unary
        call = make(f"{SERVICE}/{method}", kind.SerializeToString, answer.FromString)(
            kind() if request is None else request, metadata=self.metadata if metadata is None else metadata, timeout=30
        )
        return [one async for one in call][-1] if method in STREAMED else await call

    async def ask_admin(self, method: str, request: Any) -> Any:
        """The response of a method of the Admin service."""
        answer = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods_by_name[method].output_type
        call = self.channel.unary_unary(
            f"{ADMIN}/{method}", lambda one: one.SerializeToString(), getattr(admin_pb2, answer.name).FromString
        )
        return await call(request, metadata=self.metadata, timeout=30)

    async def send(self, *messages: Message) -> Any:
        return await self.ask("SendMessage", service_pb2.SendMessageRequest(messages=messages))

    @asynccontextmanager
    async def telemetry(self, settings: Settings) -> AsyncIterator[Any]:
        """A Telemetry stream that has sent settings."""
        make = self.channel.stream_stream(
            f"{SERVICE}/Telemetry", TelemetryCommand.SerializeToString, TelemetryCommand.FromString
        )
        call = make(metadata=self.metadata)
        await call.write(TelemetryCommand(settings=settings))
        try:
            yield call
        finally:
            call.cancel()


@asynccontextmanager
async def grpc_peer(endpoint: str, client_id: str = CLIENT_ID, keys: Keys | None = None) -> AsyncIterator[GrpcPeer]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(endpoint, options=unlimited) as channel:
        yield GrpcPeer(channel, client_id, keys)


def metadata_of(client_id: str, keys: Keys | None = None) -> tuple[tuple[str, str], ...]:
    date_time = "20260301T101500Z"
    fields = [("x-mq-date-time", date_time)]
    if client_id:
        fields.append(("x-mq-client-id", client_id))
    if keys is not None:
        signature = hmac.digest(keys[1].encode(), date_time.encode(), "sha1").hex().upper()
        credential = f"Credential={keys[0]}, SignedHeaders=x-mq-date-time, Signature={signature}"
        fields.append(("authorization", f"MQv2-HMAC-SHA1 {credential}"))
    return tuple(fields)


def message(change: Callable[[SystemProperties], object] = lambda system: None, **fields: Any) -> Message:
    """A message for topic T, with changes of its system properties."""
    system = SystemProperties(message_id="01" + "AB" * 16, message_type=MessageType.NORMAL, born_host="here")
    system.body_encoding = Encoding.IDENTITY
    system.born_timestamp.FromMilliseconds(1_767_225_600_123)
    change(system)
    return Message(**{"topic": Resource(name="T"), "body": b"body", "system_properties": system} | fields)


def producer_settings(*topics: str) -> Settings:
    settings = Settings()
    settings.publishing.topics.extend(Resource(name=topic) for topic in topics)
    return settings


async def receive_and_reset(endpoint: str, request: ReceiveMessageRequest, code: ErrorCode) -> None:
    """Receive, and reset the call as a client does that has not seen the end of the response."""
    host, _, port = endpoint.rpartition(":")
    channel = GrpcChannel(host, int(port))
    call = await channel.call(
        f"{SERVICE}/ReceiveMessage", [(name.encode(), value.encode()) for name, value in metadata_of(CLIENT_ID)]
    )
    call.send(request.SerializeToString())
    call.finish()
    while await call.read() is not None:
        pass
    (connection,) = channel._connections
    assert call._stream is not None
    connection.http2.write(frame(RST_STREAM, 0, call._stream.id, WORD.pack(code)))
    connection._flush()
    await channel.close()
