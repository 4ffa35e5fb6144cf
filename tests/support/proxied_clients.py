"""Clients of RocketMQ 5 that send and receive through a proxy, and go on after each failure."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Self

import grpc.aio

from rucola.errors import BrokerError, MQError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.grpc.definition_pb2 import Code, Resource
from rucola.protocol.grpc.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)
from support.grpc_peer import SERVICE, GrpcPeer, grpc_peer, message
from support.send_ledger import TOPIC, Stored

BROKER = "broker-a"
PAUSE_S = 0.1


class Received(NamedTuple):
    """A message, as a ledger needs it."""

    body: bytes
    queue_id: int
    queue_offset: int
    handle: str


class ProxiedConsumer:
    """Receives and acknowledges as `SimpleConsumer` does."""

    def __init__(self, group: str, address: str) -> None:
        self._group = Resource(name=group)
        self._address = address
        self._peer: GrpcPeer
        self._connection = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._peer = await self._connection.enter_async_context(grpc_peer(self._address, uuid.uuid4().hex))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connection.aclose()

    async def receive(self, topic: str, *, invisible_ms: int, wait_ms: int, attempt_id: str) -> list[Received]:
        """Raises MQError."""
        request = ReceiveMessageRequest(group=self._group, batch_size=32, attempt_id=attempt_id)
        request.message_queue.topic.name, request.message_queue.broker.name = topic, BROKER
        request.invisible_duration.FromMilliseconds(invisible_ms)
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        make = self._peer.channel.unary_stream(f"{SERVICE}/ReceiveMessage", None, ReceiveMessageResponse.FromString)
        timeout_s = 3 + wait_ms / 1000
        call = make(request.SerializeToString(), metadata=self._peer.metadata, timeout=timeout_s)
        try:
            answers: list[Any] = [answer async for answer in call]
        except grpc.aio.AioRpcError as error:
            raise MQError(str(error)) from None
        if (code := answers[0].status.code) not in (Code.OK, Code.MESSAGE_NOT_FOUND):
            raise MQError(f"a receive was answered by {code}")
        found = [answer.message for answer in answers if answer.HasField("message")]
        systems = [(one.body, one.system_properties) for one in found]
        return [Received(body, of.queue_id, of.queue_offset, of.receipt_handle) for body, of in systems]

    async def ack(self, messages: Sequence[Received]) -> None:
        """Raises MQError, and BrokerError with NO_MESSAGE if one is not held any more."""
        entries = [AckMessageEntry(message_id="1", receipt_handle=one.handle) for one in messages]
        request = AckMessageRequest(group=self._group, topic=Resource(name=TOPIC), entries=entries)
        try:
            answer = await self._peer.ask("AckMessage", request)
        except grpc.aio.AioRpcError as error:
            raise MQError(str(error)) from None
        codes = {entry.status.code for entry in answer.entries}
        if Code.INVALID_RECEIPT_HANDLE in codes:
            raise BrokerError(ResponseCode.NO_MESSAGE, "a handle is stale", self._address)
        if codes != {Code.OK}:
            raise MQError(f"an acknowledgement was answered by {codes}")


class ProxiedSends:
    """Sends one after the other, until cancelled."""

    def __init__(self) -> None:
        self.accepted: set[bytes] = set()
        """The digests of bodies."""
        self.stored_s = 0.0
        """When the last send that was accepted had begun."""

    async def run(self, address: str, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        async with grpc_peer(address, "sender") as peer:
            while True:
                body, begin_s = uuid.uuid4().bytes * 8, loop.time()
                try:
                    answer = await peer.send(message(body=body))
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                if answer.status.code == Code.OK:
                    self.accepted.add(hashlib.sha256(body).digest())
                    self.stored_s = begin_s
                await asyncio.sleep(pause_s)

    def check(self, stored: Stored) -> None:
        """Every message that was accepted is stored, once."""
        times = Counter(digest for found in stored.values() for _, digest, _ in found)
        assert {times[digest] for digest in self.accepted} <= {1}
