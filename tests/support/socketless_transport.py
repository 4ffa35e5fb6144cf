"""What a connection asks of its transport and its socket, for transports that have no socket."""

from __future__ import annotations

import asyncio


class SocketlessTransport(asyncio.Transport):
    """One end of a connection in memory, which is its own socket. `peer` is the address of the other end."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "socket": self})
        self._is_closing = False

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        self.close()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer of unsent bytes: what is written is on its way at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    # As a socket.

    def setsockopt(self, *option: int) -> None:
        """There are no options."""

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return zeros, which are the idle times (TCP_INFO) of a socket that is never idle."""
        return bytes(size)

    def fileno(self) -> int:
        """There is no descriptor."""
        return -1
