"""RemotingServer: accepts connections and serves them with one table of processors.

Answers to `NettyRemotingServer` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rucola.errors import RemotingError
from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.remoting.connection import Connection, Processor, ReceiveBuffer


class RemotingServer:
    """Listens on one address. `processors` may be filled after construction and before `start`.

    `on_open` and `on_close` are told of every connection; `connections` are those open now.
    """

    def __init__(
        self,
        host: str,
        port: int,
        processors: Mapping[int, Processor],
        *,
        max_frame_size: int = MAX_FRAME_SIZE,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.processors = processors
        self.connections: set[Connection] = set()
        self._max_frame_size = max_frame_size
        self._on_open = on_open
        self._on_close = on_close
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to listen; with port 0, `port` then holds the one the system chose. RemotingError when taken."""
        buffer = ReceiveBuffer()

        def connection() -> Connection:
            return Connection(self.processors, buffer, self._max_frame_size, self._opened, self._closed)

        try:
            self._server = await asyncio.get_running_loop().create_server(
                connection, self.host, self.port, backlog=1024, reuse_address=True
            )
        except OSError as error:
            raise RemotingError(f"cannot listen on {self.host}:{self.port}: {error.strerror or error}") from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more and close every connection once its answers are sent."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.close()
        await self._server.wait_closed()
        self._server = None

    def _opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self._on_open:
            self._on_open(connection)

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._on_close:
            self._on_close(connection)
