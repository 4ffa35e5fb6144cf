"""RemotingServer: accepts connections. Corresponds to Apache's `NettyRemotingServer`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.remoting.budget import ConnectionLimits, ServerBudget
from rucola.remoting.connection import Connection, Processor, ReadHooks, receive_buffer
from rucola.remoting.listener import Listener
from rucola.remoting.tls import ServerTls

logger = logging.getLogger(__name__)

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
        self.processors = processors
        self.connections: dict[Connection, None] = {}  # a set in the order of opening, so that simulations repeat
        self.budget = budget or ServerBudget(ConnectionLimits())
        self.read_hooks = ReadHooks()
        """May be set until `start`."""
        self._max_frame_size = max_frame_size
        self._listener = Listener(host, port, tls)
        self._on_open = on_open
        self._on_close = on_close
        self._is_stopped = False

    @property
    def port(self) -> int:
        return self._listener.port

    def bind(self, exclusive: bool = False) -> None:
        """Bind without listening, to register the port before serving; see `Listener.bind`. RemotingError."""
        self._listener.bind(exclusive)

    def share(self) -> None:
        """Let `HeldPorts` hold the port of an exclusive `bind`; see `Listener.share`."""
        self._listener.share()

    def unbind(self) -> None:
        """Release the address of `bind`. Only before `start`."""
        self._listener.unbind()

    async def start(self) -> None:
        """Bind unless `bind` did, and listen. RemotingError if the address is in use."""
        self._is_stopped = False
        buffer = receive_buffer()

        def connection() -> Connection:
            return Connection(
                self.processors.get, buffer, self._max_frame_size, self.budget, self._opened, self._closed,
                read_hooks=self.read_hooks,
            )  # fmt: skip

        await self._listener.start(connection)

    async def stop(self) -> None:
        """Stop listening, and close connections when their responses are sent, or after CLOSE_TIMEOUT_S."""
        self._is_stopped = True
        await self._listener.stop()
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
        self.connections[connection] = None
        if self._on_open:
            self._on_open(connection)
        if self._is_stopped:
            connection.close()  # asyncio accepted it before `stop` and creates it now

    def _closed(self, connection: Connection) -> None:
        if connection in self.connections:  # otherwise it was not accepted
            del self.connections[connection]
            self.budget.release()
            if self._on_close:
                self._on_close(connection)
