"""RemotingClient: one connection an address, opened when first needed and again after it broke.

Requests to one address share its connection and are told apart by their opaque, so any number may be under way.
Answers to `NettyRemotingClient` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rucola.errors import BrokerError, RemotingConnectError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.remoting.connection import Connection, Processor, ReceiveBuffer

CONNECT_TIMEOUT_MS = 3000
REQUEST_TIMEOUT_MS = 3000


class RemotingClient:
    """Sends commands to addresses of the form "host:port". Belongs to one event loop.

    `processors` serve the requests that peers send here (a broker's, for example); `on_close` is told when a
    connection ends.
    """

    def __init__(
        self,
        processors: Mapping[int, Processor] | None = None,
        *,
        on_close: Callable[[Connection], None] | None = None,
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        self._processors = processors or {}
        self._on_close = on_close
        self._max_frame_size = max_frame_size
        self._buffer = ReceiveBuffer()
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: float = REQUEST_TIMEOUT_MS
    ) -> RemotingCommand:
        """Send a request and return its answer, whatever its code.

        RemotingConnectError or RemotingTimeout where there is none.
        """
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = await self.connect(address)
        return await connection.request(command, timeout_ms)

    async def invoke_ok(
        self, address: str, command: RemotingCommand, timeout_ms: float = REQUEST_TIMEOUT_MS
    ) -> RemotingCommand:
        """Like `invoke`; BrokerError unless the answer's code is SUCCESS."""
        answer = await self.invoke(address, command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, address)
        return answer

    async def invoke_oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request that wants no answer. RemotingConnectError where no connection can be made."""
        (await self.connect(address)).send(command)

    async def connect(self, address: str) -> Connection:
        """The open connection to an address, made now where there is none; callers at the same time share it."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        task = self._connecting.get(address)
        if task is None:
            task = self._connecting[address] = asyncio.ensure_future(self._open(address))
            task.add_done_callback(lambda task: self._connected(address, task))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise RemotingConnectError(f"cannot connect to {address}: this client was closed") from None
            raise

    def open_connection(self, address: str) -> Connection | None:
        """The connection to an address, where one is open now."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.is_open else None

    async def close(self) -> None:
        """Close every connection and wait until it is closed."""
        for task in list(self._connecting.values()):
            task.cancel()
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed.wait()

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # looked at, since whoever asked for the connection may have been cancelled meanwhile

    async def _open(self, address: str) -> Connection:
        host, port = host_and_port(address)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(
                        self._processors, self._buffer, self._max_frame_size, False, None, self._on_close
                    ),
                    host,
                    port,
                )
        except TimeoutError:
            raise RemotingConnectError(f"cannot connect to {address}: no answer in {CONNECT_TIMEOUT_MS} ms") from None
        except ValueError:  # a name that no host can have
            raise RemotingConnectError(f"{address!r} is no address: write host:port") from None
        except OSError as error:
            raise RemotingConnectError(f"cannot connect to {address}: {error.strerror or error}") from None
        self._connections[address] = connection
        return connection


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of `host:port`, or `[host]:port`. RemotingConnectError for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise RemotingConnectError(f"{address!r} is no address: write host:port")
    return host.strip("[]"), int(port)
