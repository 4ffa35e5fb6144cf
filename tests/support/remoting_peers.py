"""A RemotingServer for one test, and a peer that writes and reads raw bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, FrameDecoder
from rucola.remoting.addresses import address_of
from rucola.remoting.budget import ServerBudget
from rucola.remoting.connection import Connection, Processor
from rucola.remoting.server import RemotingServer
from rucola.remoting.tls import ClientTls, ServerTls

ECHO, HOLD, NOTIFY, BIG = 1, 2, 3, 4
"""Request codes to which a test assigns processors."""


def echo(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    """A processor whose response has the body of the request."""
    return command.response(ResponseCode.SUCCESS, body=command.body)


def request(code: int, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(code, body=body)


@dataclass
class Security:
    """How the servers and peers of a test connect: in plain text, unless the fixture `transport` says TLS."""

    server: ServerTls | None = None
    client: ClientTls | None = None


SECURITY = Security()


@asynccontextmanager
async def running_server(
    processors: Mapping[int, Processor],
    *,
    max_frame_size: int = MAX_FRAME_SIZE,
    tls: ServerTls | None = None,
    on_open: Callable[[Connection], None] | None = None,
    budget: ServerBudget | None = None,
) -> AsyncIterator[RemotingServer]:
    """A started server on a free port, stopped at the end."""
    tls = tls or SECURITY.server
    server = RemotingServer(
        "127.0.0.1", 0, processors, max_frame_size=max_frame_size, tls=tls, on_open=on_open, budget=budget
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class RawPeer:
    """A client without a RemotingClient: it sends bytes as they are and decodes what it receives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder(1 << 30)

    @classmethod
    async def to(cls, server: RemotingServer) -> RawPeer:
        return await cls.at(server.port)

    @classmethod
    async def at(cls, port: int) -> RawPeer:
        context = SECURITY.client and SECURITY.client.follow().current()
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

    @property
    def name(self) -> str:
        """The address by which the server names this peer."""
        return address_of(self.writer.get_extra_info("sockname"))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def commands(self, count: int) -> list[RemotingCommand]:
        """Receive `count` commands, or more if one read brings them."""
        received: list[RemotingCommand] = []
        while len(received) < count:
            data = await self.reader.read(1 << 20)
            assert data, f"the server closed after {len(received)} of {count} answers"
            received += self._decoder.receive_data(data)
        return received

    async def end(self) -> bytes:
        """Receive all bytes until the server closes."""
        return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@contextmanager
def full_backlog() -> Iterator[str]:
    """The address of a server that accepts nobody: its backlog is full, so its kernel drops the SYN."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield f"127.0.0.1:{full.getsockname()[1]}"
