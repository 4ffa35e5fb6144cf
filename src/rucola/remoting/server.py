"""RemotingServer: accepts connections. Corresponds to Apache's `NettyRemotingServer`."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Final

from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.remoting.budget import ConnectionLimits, ServerBudget
from rucola.remoting.connection import Connection, Processor, ReadHooks, receive_buffer
from rucola.remoting.exposure import cannot_listen
from rucola.remoting.tls import ServerTls
from rucola.remoting.tls_acceptor import TlsAcceptor, connect_to

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPTS_PER_ITERATION: Final = 2
"""Each takes a tenth of a millisecond."""
CHECKS_PER_ITERATION: Final = 128
"""Connections whose idle times are read in one iteration; each takes some microseconds."""


class RemotingServer:
    """A server on one address and event loop; `processors` may be filled until `start`."""

    def __init__(
        self,
        host: str,
        port: int,
        processors: Mapping[int, Processor],
        *,
        max_frame_size: int = MAX_FRAME_SIZE,
        tls: ServerTls | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        budget: ServerBudget | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.processors = processors
        self.connections: set[Connection] = set()
        self.budget = budget or ServerBudget(ConnectionLimits())
        self.read_hooks = ReadHooks()
        """May be set until `start`."""
        self._max_frame_size = max_frame_size
        self._tls = tls
        self._on_open = on_open
        self._on_close = on_close
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._acceptor: TlsAcceptor | None = None
        self._is_stopped = False

    def bind(self) -> None:
        """Bind without listening, to register the port before serving; 0 lets the system choose. RemotingError."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.host, self.port))
        except (OSError, OverflowError) as error:
            bound.close()
            raise cannot_listen(self.host, self.port, error) from None
        self.port = bound.getsockname()[1]
        self._socket = bound

    def unbind(self) -> None:
        """Release the address of `bind`. Only before `start`."""
        bound, self._socket = self._socket, None
        if bound is not None:
            bound.close()

    async def start(self) -> None:
        """Bind unless `bind` did, and listen. RemotingError if the address is in use."""
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        self._is_stopped = False
        buffer = receive_buffer()

        def connection() -> Connection:
            return Connection(
                self.processors.get, buffer, self._max_frame_size, self.budget, self._opened, self._closed,
                read_hooks=self.read_hooks,
            )  # fmt: skip

        try:
            if self._tls is None:
                # asyncio accepts up to `backlog` connections in one iteration.
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(
                    connection, sock=self._socket, backlog=ACCEPTS_PER_ITERATION, start_serving=False
                )
                await self._server.start_serving()  # separately, so that `stop` closes the server if this is cancelled
                self._socket.listen(BACKLOG)
            else:
                self._socket.listen(BACKLOG)
                self._acceptor = TlsAcceptor(self._socket, self._tls, connect_to(connection))
        except OSError as error:  # with SO_REUSEADDR two sockets can bind one address; the first to listen has it
            self._server = None
            self._socket.close()
            self._socket = None
            raise cannot_listen(self.host, self.port, error) from None

    async def stop(self) -> None:
        """Stop listening, and close connections when their responses are sent, or after CLOSE_TIMEOUT_S."""
        self._is_stopped = True
        server, self._server = self._server, None
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            self._socket = None  # closed by the acceptor
            await acceptor.stop()
        elif server is not None:
            self._socket = None  # closed by the server
            server.close()
        else:
            self.unbind()
        connections = list(self.connections)
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed.wait()

    async def close_idle(self, limit_ms: int) -> None:
        """Close connections without bytes in either direction for `limit_ms`."""
        for number, connection in enumerate(list(self.connections)):
            if number % CHECKS_PER_ITERATION == 0:
                await asyncio.sleep(0)  # a system call for each
            if connection.is_open and (idle_ms := connection.idle_ms) >= limit_ms:
                logger.info("%s: closing the connection, idle for %d s", connection.peer, idle_ms // 1000)
                connection.close()

    def _opened(self, connection: Connection) -> None:
        if not self.budget.admit(connection.descriptor):
            connection.abort()
            return
        self.connections.add(connection)
        if self._on_open:
            self._on_open(connection)
        if self._is_stopped:
            connection.close()  # asyncio accepted it before `stop` and creates it now

    def _closed(self, connection: Connection) -> None:
        if connection in self.connections:  # otherwise it was not accepted
            self.connections.discard(connection)
            self.budget.release()
            if self._on_close:
                self._on_close(connection)
