"""HeldPorts: ports that a server keeps while it does not listen on them."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress


class HeldPorts:
    """The ports of one server, held from `hold` to `release` while its role changes.

    On Linux, a bound socket that does not listen reserves its port, and a listening socket can be bound next to it
    (SO_REUSEADDR), but not the other way round: hold before the first listen. Elsewhere nothing is held.
    """

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def hold(self, host: str, port: int) -> int:
        """Hold a port and return it; 0 lets the system choose, or returns 0 if nothing can be held.

        A port of another process is not held: the listening socket will report it.
        """
        if sys.platform != "linux" or port in self._sockets:
            return port
        bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError, OverflowError):
            bound.bind((host, port))
            port = bound.getsockname()[1]
            self._sockets[port] = bound
            return port
        bound.close()
        return port

    def release(self) -> None:
        while self._sockets:
            self._sockets.popitem()[1].close()
