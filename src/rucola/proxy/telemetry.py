"""Telemetry: a client's stream becomes one to each broker.

A client's settings are answered once, when all brokers that can be reached have answered. Later commands, such as
checks of transactions, are forwarded to the client. If a broker's stream ends, a new one is opened with the last
settings, while the client's stays.
"""

from __future__ import annotations

import asyncio
from typing import Final

from rucola.broker.grpc.methods import CLIENT_ID, SERVICE, decode
from rucola.http2.client import ClientCall
from rucola.http2.grpc import Call, Failed, Method, Status
from rucola.protocol.grpc.definition_pb2 import Code
from rucola.protocol.grpc.service_pb2 import TelemetryCommand
from rucola.proxy.brokers import Brokers
from rucola.proxy.forward import fields_of
from rucola.proxy.transaction_ids import with_broker

PATH: Final = f"/{SERVICE}/Telemetry"
ANSWER_TIMEOUT_S: Final = 3.0
"""Time after which settings are answered without the brokers that have not."""
RECONNECT_S: Final = 1.0


class TelemetryStreams:
    """All clients' streams of a proxy."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.streams: set[ClientStream] = set()
        brokers.on_connected = self._connected

    def methods(self) -> dict[str, Method]:
        return {PATH: lambda call: ClientStream(self, call)}

    def end(self, client_id: str) -> None:
        """End the streams of a lost client."""
        for stream in [stream for stream in self.streams if stream.client_id == client_id]:
            stream.end()

    def end_all(self) -> None:
        """End all streams, so that the server can stop."""
        for stream in list(self.streams):
            stream.end()

    def _connected(self, name: str) -> None:
        for stream in list(self.streams):
            stream.connect(name)


class ClientStream:
    """A client's stream, from its first settings on, as the receiver of its call."""

    def __init__(self, streams: TelemetryStreams, call: Call) -> None:
        self.client_id = str(call.metadata.get(CLIENT_ID, ""))
        self._streams = streams
        self._call = call
        self._settings: bytes | None = None
        self._calls: dict[str, ClientCall] = {}
        """The brokers' streams that are open, by broker name."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, int] = {}
        """By broker name: how many settings it has not answered."""
        self._answers: dict[str, TelemetryCommand] = {}
        self._due = 0
        """Settings of the client that are not answered."""
        self._timer: asyncio.TimerHandle | None = None

    # -- the client ---------------------------------------------------------------------------------------------------

    def message(self, message: bytes) -> None:
        if not decode(TelemetryCommand, message).HasField("settings"):
            for call in self._calls.values():
                call.send(message)
            return
        self._settings = message
        if not self._due:
            self._answers.clear()
        self._due += 1
        self._streams.streams.add(self)
        for name, call in self._calls.items():
            call.send(message)
            self._waiting[name] += 1
        for name in self._streams.brokers.connected:
            self.connect(name)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ANSWER_TIMEOUT_S, self._answer)
        self._answer_if_complete()

    def ended(self) -> None:
        self.end()

    def cancelled(self) -> None:
        self._streams.streams.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks.values():
            task.cancel()

    def end(self) -> None:
        self.cancelled()
        self._call.finish()

    # -- the brokers --------------------------------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        """Open the stream to a broker unless it is open."""
        if name not in self._tasks:
            self._waiting[name] = 1
            self._tasks[name] = asyncio.get_running_loop().create_task(self._follow(name))

    async def _follow(self, name: str) -> None:
        """Forward what a broker sends, until it cannot be reached any more: then `connect` is called again."""
        brokers = self._streams.brokers
        try:
            while name in brokers.connected:
                await self._forward(name)
                await asyncio.sleep(RECONNECT_S)
                self._waiting[name] = 1
        finally:
            del self._tasks[name]
            self._ended(name)

    async def _forward(self, name: str) -> None:
        call = None
        try:
            broker = await self._streams.brokers.find(name)
            call = await broker.call(PATH, fields_of(self._call), None)
            assert self._settings is not None
            call.send(self._settings)
            self._calls[name] = call
            while (message := await call.read()) is not None:
                self._received(name, decode(TelemetryCommand, message), message)
        except Failed as error:
            if error.status in (Status.INVALID_ARGUMENT, Status.UNIMPLEMENTED):  # again, it would be the same
                self.cancelled()
                self._call.fail(error.status, str(error))
        finally:
            self._calls.pop(name, None)
            if call is not None:
                call.cancel()
            self._ended(name)

    def _received(self, name: str, command: TelemetryCommand, message: bytes) -> None:
        kind = command.WhichOneof("command")
        if kind in (None, "settings"):
            if self._waiting[name]:
                self._waiting[name] -= 1
            self._answers[name] = command
            self._answer_if_complete()
        elif not self._call.is_congested:  # what is left out, brokers repeat
            if kind == "recover_orphaned_transaction_command":
                recover = command.recover_orphaned_transaction_command
                recover.transaction_id = with_broker(recover.transaction_id, name)
                message = command.SerializeToString()
            self._send(message)

    def _ended(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._answer_if_complete()

    def _answer_if_complete(self) -> None:
        if not any(self._waiting.values()):
            self._answer()

    def _answer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._answers or not self._due:
            return  # the first broker that can be reached answers
        commands = [self._answers[name] for name in sorted(self._answers)]
        accepted = [command for command in commands if command.status.code == Code.OK]
        answer = (accepted or commands)[0]
        if any(command.settings.subscription.fifo for command in accepted):
            answer.settings.subscription.fifo = True
        due, self._due = self._due, 0
        self._answers.clear()
        for _ in range(due):
            self._send(answer.SerializeToString())

    def _send(self, message: bytes) -> None:
        if self._call.is_open:
            self._call.send(message)
