"""ScenarioClient: a client of RocketMQ 5 that calls single methods. Unexpected responses are Mismatch."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import DecodeError

from rucola.acl.credentials import Credentials
from rucola.errors import MQError
from rucola.http2.client import ClientCall, GrpcChannel
from rucola.protocol.grpc import service_pb2
from rucola.protocol.grpc.definition_pb2 import (
    ClientType,
    Code,
    DigestType,
    Encoding,
    FilterExpression,
    Language,
    Message,
    MessageType,
    Resource,
    Settings,
    SystemProperties,
)
from rucola.protocol.grpc.service_pb2 import TelemetryCommand

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
TIMEOUT_S: Final = 10.0
INVISIBLE_MS: Final = 30_000
BATCH_SIZE: Final = 16


class Mismatch(MQError):
    """A response is not what clients of RocketMQ 5 need."""


class Skipped(MQError):
    """A scenario that this topic or group does not allow."""


def expect(what: str, found: object, *expected: object) -> None:
    """Raise Mismatch unless a value is one of those that are expected."""
    if found not in expected:
        raise Mismatch(f"{what} is {found!r}; expected is {' or '.join(map(repr, expected))}")


def expect_code(what: str, found: int, expected: int) -> None:
    """Raise Mismatch with the names of the codes unless they are the same."""
    expect(what, *(Code.Name(code) if code in Code.values() else str(code) for code in (found, expected)))


class ScenarioClient:
    """Calls for one topic and one consumer group, whose messages have a tag that no others have."""

    def __init__(self, channel: GrpcChannel, topic: str, name: str, credentials: Credentials | None = None) -> None:
        run_id = uuid.uuid4().hex
        self.client_id = f"rucola@{run_id}"
        self.topic = Resource(name=topic)
        self.group = Resource(name=f"conformance_{name}_{run_id}")
        self.tag = f"{name}_{run_id}"
        self._channel = channel
        self._credentials = credentials

    @property
    def _fields(self) -> list[tuple[bytes, bytes]]:
        date_time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        fields = {
            "x-mq-language": "PYTHON",
            "x-mq-protocol": "v2",
            "x-mq-client-version": "5.1.2",
            "x-mq-date-time": date_time,
            "authorization": self._credentials.authorization(date_time) if self._credentials is not None else "",
            "x-mq-request-id": str(uuid.uuid4()),
            "x-mq-client-id": self.client_id,
        }
        return [(name.encode(), value.encode()) for name, value in fields.items() if value]

    async def stream(self, method: str, request: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Return all messages of a response."""
        response = getattr(service_pb2, f"{method}Response")
        call = await self._channel.call(SERVICE + method, self._fields, timeout_s)
        call.send(request.SerializeToString())
        call.finish()
        found = []
        async with asyncio.timeout(timeout_s):
            while (message := await call.read()) is not None:
                found.append(_decoded(response, message))
        return found

    async def call(self, method: str, request: Any) -> Any:
        """Return the only message of a response."""
        found = await self.stream(method, request)
        expect(f"the number of messages in the response to {method}", len(found), 1)
        return found[0]

    @asynccontextmanager
    async def telemetry(self, settings: Settings) -> AsyncIterator[tuple[ClientCall, Settings]]:
        """Keep a Telemetry stream open; yield it and the server's settings."""
        settings.user_agent.language = Language.PYTHON
        settings.user_agent.version = "5.1.2"
        call = await self._channel.call(f"{SERVICE}Telemetry", self._fields)
        try:
            call.send(TelemetryCommand(settings=settings).SerializeToString())
            answer = await self.command(call, "settings")
            expect_code("the status of the settings", answer.status.code, Code.OK)
            yield call, answer.settings
        finally:
            call.cancel()

    async def command(self, call: ClientCall, kind: str, timeout_s: float = TIMEOUT_S) -> TelemetryCommand:
        """Return the next command of a kind that the server sends."""
        async with asyncio.timeout(timeout_s):
            while (message := await call.read()) is not None:
                command: TelemetryCommand = _decoded(TelemetryCommand, message)
                if command.WhichOneof("command") == kind:
                    return command
        raise Mismatch(f"the Telemetry stream ended before a command {kind}")

    def producer_settings(self) -> Settings:
        settings = Settings(client_type=ClientType.PRODUCER)
        settings.publishing.topics.append(self.topic)
        return settings

    def consumer_settings(self) -> Settings:
        settings = Settings(client_type=ClientType.SIMPLE_CONSUMER)
        settings.subscription.group.CopyFrom(self.group)
        settings.subscription.subscriptions.add(topic=self.topic, expression=self.expression)
        return settings

    @property
    def expression(self) -> FilterExpression:
        return FilterExpression(type="TAG", expression=self.tag)

    # -- sending ------------------------------------------------------------------------------------------------------

    def message(
        self, body: bytes = b"body", kind: MessageType = MessageType.NORMAL, due_ms: int | None = None, **system: Any
    ) -> Message:
        message = Message(topic=self.topic, body=body)
        properties = message.system_properties
        properties.message_id = "01" + uuid.uuid4().hex.upper()
        properties.message_type = kind
        properties.tag = self.tag
        properties.body_encoding = Encoding.IDENTITY
        properties.born_timestamp.GetCurrentTime()
        properties.born_host = "rucola"
        if due_ms is not None:
            properties.delivery_timestamp.FromMilliseconds(due_ms)
        properties.MergeFrom(SystemProperties(**system))
        return message

    async def send(self, message: Message) -> Any:
        """Return the entry of a message that must be accepted."""
        response = await self.call("SendMessage", service_pb2.SendMessageRequest(messages=[message]))
        expect_code("the status of SendMessage", response.status.code, Code.OK)
        expect("the number of entries", len(response.entries), 1)
        entry = response.entries[0]
        expect("the message id of the entry", entry.message_id, message.system_properties.message_id)
        return entry

    async def accepted_types(self) -> set[int]:
        response = await self.call("QueryRoute", service_pb2.QueryRouteRequest(topic=self.topic))
        expect_code("the status of QueryRoute", response.status.code, Code.OK)
        return {kind for queue in response.message_queues for kind in queue.accept_message_types}

    async def need(self, kind: MessageType) -> None:
        """Raise Skipped unless the topic accepts messages of a type."""
        if kind not in await self.accepted_types():
            raise Skipped(f"topic {self.topic.name} does not accept {MessageType.Name(kind)} messages")

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def receive(self, wait_s: float = 0, **fields: Any) -> tuple[int, list[Message]]:
        """Return the code and the messages of a receive, whose form must be right."""
        usual: dict[str, Any] = {
            "group": self.group,
            "batch_size": BATCH_SIZE,
            "filter_expression": self.expression,
        }
        request = service_pb2.ReceiveMessageRequest(**usual | fields)
        route = await self.call("QueryRoute", service_pb2.QueryRouteRequest(topic=self.topic))
        request.message_queue.CopyFrom(route.message_queues[0])
        request.invisible_duration.FromMilliseconds(INVISIBLE_MS)
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
        responses = await self.stream("ReceiveMessage", request, wait_s + TIMEOUT_S)
        if not responses or not responses[0].HasField("status"):
            raise Mismatch("the first message of the response to ReceiveMessage has no status")
        found = [response.message for response in responses if response.HasField("message")]
        for message in found:
            _check_received(message)
        return responses[0].status.code, found

    async def received(self, wait_s: float = 30) -> Message:
        """Return the message that comes until then."""
        end = asyncio.get_running_loop().time() + wait_s
        while (left_s := end - asyncio.get_running_loop().time()) > 0:
            code, found = await self.receive(min(left_s, 20))
            if found:
                expect("the number of messages", len(found), 1)
                return found[0]
            expect_code("the code of a receive without messages", code, Code.MESSAGE_NOT_FOUND)
        raise Mismatch(f"no message came in {wait_s:g} s")

    async def nothing(self) -> None:
        code, found = await self.receive()
        expect("the number of messages", len(found), 0)
        expect_code("the code of a receive without messages", code, Code.MESSAGE_NOT_FOUND)

    def held(self, message: Message) -> dict[str, Any]:
        """Return what requests about a received message have in common."""
        system = message.system_properties
        return {
            "group": self.group,
            "topic": self.topic,
            "receipt_handle": system.receipt_handle,
            "message_id": system.message_id,
        }

    async def ack(self, message: Message, handle: str = "") -> int:
        """Return the code for one message."""
        system = message.system_properties
        request = service_pb2.AckMessageRequest(group=self.group, topic=self.topic)
        request.entries.add(message_id=system.message_id, receipt_handle=handle or system.receipt_handle)
        response = await self.call("AckMessage", request)
        expect("the number of entries", len(response.entries), 1)
        expect("the status of the entry", response.entries[0].status.code, response.status.code)
        code: int = response.status.code
        return code


def _decoded(kind: Any, message: bytes) -> Any:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise Mismatch(f"a response is no {kind.DESCRIPTOR.name}: {error}") from None


def _check_received(message: Message) -> None:
    system = message.system_properties
    if not system.receipt_handle:
        raise Mismatch("a received message has no receipt handle")
    if system.delivery_attempt < 1:
        raise Mismatch("a received message has the delivery attempt 0")
    expect("the type of the digest", system.body_digest.type, DigestType.MD5)
    digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
    expect("the digest of the body", system.body_digest.checksum, digest)
