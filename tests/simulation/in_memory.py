"""What the simulated event loops share: work for threads at once, servers and connections without sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rucola.broker.background.group_commit import FlushThread


class InMemoryLoop(asyncio.SelectorEventLoop):
    """A loop without threads."""

    thread_time: Callable[[], float] | None = None
    """How long the next call in a thread takes; None if threads take no time."""

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *arguments: Any) -> Any:
        done = self.create_future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done


class FlushOnLoop(FlushThread):
    """Flushes on the loop, like all work for threads; takes the place of `group_commit.FlushThread`."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def wake(self) -> None:
        assert isinstance(self._loop, InMemoryLoop)
        if self._loop.thread_time is None:
            self._loop.call_soon(self._on_end, self.flush())
        else:
            self._loop.call_later(self._loop.thread_time(), lambda: self._on_end(self.flush()))

    async def stop(self) -> None:
        """There is no thread."""


@dataclass
class InMemoryServer:
    """What `create_server` returns."""

    close: Callable[[], None]

    async def start_serving(self) -> None:
        """It serves already."""


class InMemoryTransport(asyncio.Transport):
    """One end of a connection in memory, which is its own socket. `peer` is the address of the other end."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "socket": self})
        self._is_closing = False

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        self.close()

    def write_eof(self) -> None:
        """The other end sees the end when this one closes."""

    def pause_reading(self) -> None:
        """Bytes go on arriving: there is no limit to what a connection in memory holds."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer of unsent bytes: what is written is on its way at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    # As a socket.

    family = socket.AF_INET

    def getpeername(self) -> tuple[str, int]:
        return self.get_extra_info("peername")  # type: ignore[no-any-return]

    def setsockopt(self, *option: int) -> None:
        """There are no options."""

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return zeros, which are the idle times (TCP_INFO) of a socket that is never idle."""
        return bytes(size)

    def fileno(self) -> int:
        """There is no descriptor."""
        return -1


def deliver(protocol: Any, data: bytes) -> None:
    """Give bytes that arrived to a protocol, in reads of the size that it asks for if it has a buffer."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    while data:
        view = protocol.get_buffer(len(data))
        count = min(len(view), len(data))
        view[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
