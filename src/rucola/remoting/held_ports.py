"""HeldPorts: ports that a server keeps while it does not listen on them."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress


class HeldPorts:
    """The ports of one server, held from `hold` to `release`.

    A broker closes its listening sockets when its role changes. Between that and the new ones another process could
    take a port, and the broker would have to stay stopped.

    On Linux, a socket that is bound and does not listen keeps other processes off its port, and lets a listening socket
    be bound beside it (SO_REUSEADDR). It cannot be bound beside one that listens already, so ports are held before the
    server listens for the first time, and all the time from then on. Elsewhere nothing is held.
    """

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def hold(self, host: str, port: int) -> int:
        """Hold a port and return it; 0 lets the system choose one.

        No socket may listen on it yet. Returns 0 for 0 if nothing can be held. A port of another process is not held:
        the socket that is to listen there reports it.
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
        """Release all ports."""
        while self._sockets:
            self._sockets.popitem()[1].close()
