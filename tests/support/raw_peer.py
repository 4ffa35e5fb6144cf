"""A remoting server and a peer that writes and reads raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.remoting.connection import Connection, Processor, address_of
from rucola.remoting.server import RemotingServer

ECHO, HOLD, NOTIFY, BIG = 1, 2, 3, 4


def echo(connection: Connection, command: RemotingCommand) -> RemotingCommand:
    return command.response(ResponseCode.SUCCESS, body=command.body)


@asynccontextmanager
async def remoting_server(processors: dict[int, Processor], **options: object) -> AsyncIterator[RemotingServer]:
    """Run a scenario against a server of its own."""

    server = RemotingServer("127.0.0.1", 0, processors, **options)  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def request(code: int, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(code, body=body)


class RawPeer:
    """A peer that writes and reads bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder(1 << 30)

    @classmethod
    async def to(cls, server: RemotingServer) -> RawPeer:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    @property
    def name(self) -> str:
        """What the server calls it."""
        return address_of(self.writer.get_extra_info("sockname"))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def commands(self, count: int) -> list[RemotingCommand]:
        got: list[RemotingCommand] = []
        while len(got) < count:
            data = await self.reader.read(1 << 20)
            assert data, f"the server closed after {len(got)} of {count} answers"
            got += self._decoder.receive_data(data)
        return got

    async def end(self) -> bytes:
        """What comes until the server closes."""
        return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
