"""An event loop without sockets, without threads and with a clock that only moves when it is told to.

Servers on it serve connections that lie in memory. Whatever they do happens in the same order every time, so that a
whole broker can be compared line by line with what is expected of it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from simulation.in_memory import InMemoryLoop, InMemoryServer, InMemoryTransport, deliver

BEGIN_MS = 1_700_000_000_000
STEP_MS = 100
MOST_STEPS = 300


class MemoryLoop(InMemoryLoop):
    """`now_ms` is the time. Work for threads is done at once; servers are reached by `connect`."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self.now_ms = BEGIN_MS
        super().__init__(selector)
        self._protocols: Callable[[], Any] | None = None
        self._called = 0

    # What asyncio and the servers call.

    def time(self) -> float:
        return (self.now_ms - BEGIN_MS) / 1000

    def call_soon(self, *arguments: Any, **context: Any) -> Any:
        self._called += 1
        return super().call_soon(*arguments, **context)

    async def create_server(self, protocols: Callable[[], Any], *, sock: Any, **options: Any) -> Any:
        self._protocols = protocols
        return InMemoryServer(sock.close)

    # What a test calls.

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.run_until_complete(work)

    def connect(self, port: int) -> MemoryClient:
        """A connection to the server that was made last."""
        assert self._protocols is not None
        return MemoryClient(self._protocols(), port, self)

    def do(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Call something on the loop, and run what comes of it, until nothing is left to do but to wait."""
        self.call_soon(work, *arguments)
        self.settle()

    def settle(self) -> None:
        """Run whatever can run now."""
        self.run(self._settle())

    def advance(self, ms: int, after_step: Callable[[], None]) -> None:
        """Let time pass, in steps short enough that what is due in between happens in between."""
        end_ms = self.now_ms + ms
        step_ms = max(STEP_MS, ms // MOST_STEPS)
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + step_ms, end_ms)
            self.settle()
            after_step()

    async def _settle(self) -> None:
        quiet = 0
        while quiet < 3:
            called = self._called
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._called == called + 1 else 0


class MemoryTransport(InMemoryTransport):
    """The server's end of a connection that lies in memory."""

    def __init__(self, protocol: Any, port: int, receive: Callable[[bytes], None], loop: MemoryLoop) -> None:
        super().__init__(("127.0.0.1", port))
        self._protocol = protocol
        self._receive = receive
        self._loop = loop

    def write(self, data: Any) -> None:
        self._receive(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)


class MemoryClient:
    """A peer that asks, and notes what it is told without having asked."""

    def __init__(self, protocol: Any, port: int, loop: MemoryLoop) -> None:
        self.told: list[RemotingCommand] = []
        self._answers: dict[int, RemotingCommand] = {}
        self._decoder = FrameDecoder()
        self._protocol = protocol
        self._loop = loop
        self._transport = MemoryTransport(protocol, port, self._receive, loop)
        loop.do(protocol.connection_made, self._transport)

    def ask(self, command: RemotingCommand) -> RemotingCommand | None:
        """The answer, or None where there is none yet; it can be fetched later with `answer`."""
        self._loop.do(deliver, self._protocol, command.encode())
        return self.answer(command)

    def answer(self, command: RemotingCommand) -> RemotingCommand | None:
        """The answer that has come to an earlier request."""
        return self._answers.pop(command.opaque, None)

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def close(self) -> None:
        """The connection breaks."""
        self._loop.do(self._transport.close)

    def _receive(self, data: bytes) -> None:
        for command in self._decoder.receive_data(data):
            if command.flag & 1:
                self._answers[command.opaque] = command
            else:
                self.told.append(command)
