"""A TCP proxy in front of one server, with faults that are turned on while clients use it.

    delay_ms       each chunk of bytes is forwarded so much later, in both directions
    half_open()    the connections open now stay open and carry nothing any more; new ones work
    swallow()      the bytes of one direction or of both vanish, on new connections as well, until `heal()`; a
                   connection that has lost some stays half-open
    freeze()       nothing is forwarded, on new connections neither, until `thaw()`; then everything arrives
    reset()        the connections open now end with RST
    cut()          the connections open now end with FIN, possibly in the middle of a frame
    cut_inside()   the next chunk of one direction is forwarded by half, and its connection ends
    refuse()       as `reset`, and new connections are refused until `accept()`
    lose(bytes)    the next request with these bytes reaches the server, its response is dropped and the connection ends
                   with RST: the server has done the work, and the client sees an error

A half-open connection is what a firewall that forgot it, a pulled cable or a dead virtual machine leaves behind: each
side can write, the bytes vanish, and neither is told. What TCP itself sends (ACKs, keepalive) is still answered here,
since both sockets are alive: only traffic of the application can find out.

    async with Proxy("127.0.0.1:10911", host="127.0.0.2", port=10911) as proxy:
        ...  # clients connect to proxy.address

With another loopback address and the port of the server, the server can be told to register the proxy's address as
its own (`brokerIP1=127.0.0.2`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Self

CHUNK = 64 * 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST and drops what was not sent."""

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """One connection of a client, and the one to the server that belongs to it once it is made."""

    def __init__(self, client: Stream) -> None:
        self.swallowed: set[bool] = set()
        """Directions that carry nothing any more: True that of requests, False that of responses."""
        self.loses_response = False
        self.closed = asyncio.Event()
        self._streams = [client]

    def extend(self, server: Stream) -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], ...]:
        """Take the connection to the server; return from where to where bytes go."""
        client = self._streams[0]
        self._streams.append(server)
        return (client[0], server[1]), (server[0], client[1])

    def end(self, *, with_reset: bool = False) -> None:
        """Close both sockets."""
        for _, writer in self._streams:
            if with_reset:
                with suppress(OSError):  # it may be closed already
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()
        self.closed.set()


class Proxy:
    """Forwards connections to `target`. `async with` opens and closes it; all faults are off in the beginning."""

    def __init__(self, target: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.delay_ms = 0.0
        self.links: set[Link] = set()
        self.accepted = 0
        """How many connections clients have made so far."""
        self.lost = 0
        """How many responses were dropped so far."""
        self._lose: bytes | None = None
        self._swallowed: set[bool] = set()
        """Directions of all connections that lose what comes now."""
        self._cut_inside: set[bool] = set()
        self.target = target
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.refuse()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def address(self) -> str:
        """Where clients connect, "host:port"."""
        return f"{self._host}:{self._port}"

    # Faults.

    def half_open(self) -> int:
        """Let the connections open now carry nothing any more; how many they are."""
        links = [link for link in self.links if len(link.swallowed) < 2]
        for link in links:
            link.swallowed |= {True, False}
        return len(links)

    def swallow(self, *, requests: bool = True, responses: bool = True) -> None:
        """Let the bytes of these directions vanish until `heal`, and no side hear of the other's end."""
        self._swallowed = {direction for direction, is_lost in ((True, requests), (False, responses)) if is_lost}

    def heal(self) -> None:
        """Forward everything again, but on connections that have lost bytes."""
        self._swallowed = set()

    def cut_inside(self, *, requests: bool) -> None:
        """End a connection inside the next chunk of requests, or of responses."""
        self._cut_inside.add(requests)

    def freeze(self) -> None:
        """Forward nothing, and serve no new connection, until `thaw`."""
        self._flows.clear()

    def thaw(self) -> None:
        """Forward again, first of all what came meanwhile."""
        self._flows.set()

    def reset(self) -> None:
        """End every connection with RST."""
        for link in list(self.links):
            link.end(with_reset=True)

    def lose(self, request: bytes) -> None:
        """Drop the response to the next request that contains these bytes, which must be in one write of the client."""
        self._lose = request

    def cut(self) -> None:
        """End every connection with FIN."""
        for link in list(self.links):
            link.end()

    def refuse(self) -> None:
        """End every connection with RST, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.reset()

    async def accept(self) -> None:
        """Take connections (again)."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self._host, self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def has_cut(self) -> None:
        """Wait until a connection has ended as `cut_inside` asked. TimeoutError after 20 s."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: not self._cut_inside)

    # Forwarding.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        link = Link((reader, writer))
        self.links.add(link)
        self.accepted += 1
        pumps: list[asyncio.Task[None]] = []
        try:
            await self._flows.wait()
            host, _, port = self.target.rpartition(":")
            flows = link.extend(await asyncio.open_connection(host, int(port)))
            to_server, to_client = flows
            pumps = [
                asyncio.create_task(self._pump(link, *to_server, of_requests=True)),
                asyncio.create_task(self._pump(link, *to_client, of_requests=False)),
            ]
            await link.closed.wait()
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, which its client shall see, or the proxy closes
        finally:
            link.end()
            self.links.discard(link)
            self._serving.discard(task)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, of_requests: bool
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK):
                if of_requests and self._lose is not None and self._lose in chunk:
                    link.loses_response, self._lose = True, None
                elif not of_requests and link.loses_response:
                    self.lost += 1
                    link.end(with_reset=True)
                    return
                if self.delay_ms:
                    await asyncio.sleep(self.delay_ms / 1000)
                await self._flows.wait()
                link.swallowed |= self._swallowed & {of_requests}
                if of_requests in link.swallowed:
                    continue
                is_cut = of_requests in self._cut_inside and len(chunk) > 1
                writer.write(chunk[: len(chunk) // 2] if is_cut else chunk)
                await writer.drain()
                if is_cut:
                    self._cut_inside.discard(of_requests)
                    async with self._changed:
                        self._changed.notify_all()
                    break
            await self._flows.wait()
        link.swallowed |= self._swallowed & {of_requests}
        if of_requests not in link.swallowed:  # else the other side is not told that this one has gone
            link.end()
