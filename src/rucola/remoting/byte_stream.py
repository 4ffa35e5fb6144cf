"""Stream: one socket that carries raw bytes in both directions, and its server.

Replication uses it: its protocol has no commands, and its pieces of the log are sent without a copy. `write` passes the
caller's buffers to the kernel and waits while the send buffer is full. Reading and writing concurrently requires two
tasks. Errors of a socket are raised as RemotingConnectError.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rucola.errors import RemotingConnectError, RemotingError
from rucola.outages import Outages
from rucola.remoting.client import CONNECT_TIMEOUT_MS, host_and_port
from rucola.remoting.connection import address_of

logger = logging.getLogger(__name__)


class Stream:
    """A connected socket, owned by the stream. `peer` is "ip:port" of the other side, "?" if it has closed already."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        try:
            self.peer = address_of(sock.getpeername())
        except OSError:  # the peer has closed already; the next read reports it
            self.peer = "?"

    async def read(self, max_size: int) -> bytes:
        """Wait for bytes and return up to `max_size` of them. Return none if the peer has closed."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, max_size)
        except OSError as error:
            raise RemotingConnectError(f"the connection to {self.peer} broke: {error.strerror or error}") from None

    async def write(self, head: bytes, body: memoryview | bytes = b"") -> None:
        """Send `head`, then `body`. The buffers must stay unchanged until this returns.

        One `sendmsg` usually sends both without joining them; only a full send buffer makes more system calls
        necessary.
        """
        try:
            try:
                sent = self._socket.sendmsg((head, body))
            except BlockingIOError:
                sent = 0
            loop = asyncio.get_running_loop()
            if sent < len(head):
                await loop.sock_sendall(self._socket, head[sent:])
            body_sent = max(sent - len(head), 0)
            if body_sent < len(body):
                await loop.sock_sendall(self._socket, memoryview(body)[body_sent:])
        except OSError as error:
            raise RemotingConnectError(f"the connection to {self.peer} broke: {error.strerror or error}") from None

    def close(self) -> None:
        """Close the socket. No task may be reading or writing."""
        self._socket.close()


async def open_stream(address: str) -> Stream:
    """Connect to "host:port". RemotingConnectError if that fails, or takes longer than CONNECT_TIMEOUT_MS."""
    host, port = host_and_port(address)
    loop = asyncio.get_running_loop()
    sock: socket.socket | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            family, kind, proto, _, sockaddr = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
            sock = socket.socket(family, kind, proto)
            sock.setblocking(False)
            await loop.sock_connect(sock, sockaddr)
    except (OSError, TimeoutError, UnicodeError) as error:
        if sock is not None:
            sock.close()
        why = getattr(error, "strerror", None) or error or f"no answer in {CONNECT_TIMEOUT_MS} ms"
        raise RemotingConnectError(f"cannot connect to {address}: {why}") from None
    except asyncio.CancelledError:
        if sock is not None:
            sock.close()
        raise
    return Stream(sock)


async def run_until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines concurrently until the first one returns or raises; then cancel the others.

    Its exception is raised after the others have ended.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class StreamServer:
    """A server on one address: runs `serve` for each accepted stream and closes it afterwards.

    With port 0 the system chooses a port; `port` holds it after `start`. At most `max_streams` are served at a time; a
    further connection is closed, and logged with `limit`, the key of that number.
    """

    def __init__(
        self,
        host: str,
        port: int,
        serve: Callable[[Stream], Awaitable[None]],
        max_streams: int = 1024,
        limit: str = "max_streams",
    ) -> None:
        self.host = host
        self.port = port
        self._serve = serve
        self._max_streams = max_streams
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self._accept_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen and accept connections. RemotingError if the address is in use or invalid."""
        listening = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.host, self.port))
            listening.listen()
            listening.setblocking(False)
        except (OSError, OverflowError) as error:
            listening.close()
            why = getattr(error, "strerror", None) or error
            raise RemotingError(f"cannot listen on {self.host}:{self.port}: {why}") from None
        self.port = listening.getsockname()[1]
        self._accept_task = asyncio.create_task(self._accept(listening))

    async def stop(self) -> None:
        """Close the listening socket and cancel all `serve` calls."""
        tasks = [*self._tasks, *([self._accept_task] if self._accept_task is not None else [])]
        self._accept_task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        outages = Outages(logger)
        try:
            while True:
                try:
                    accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
                except OSError as error:  # no file descriptor is left, or the peer has closed already
                    outages.failed(f"accepting a connection on port {self.port}", error)
                    await asyncio.sleep(1)
                    continue
                outages.succeeded(f"accepting a connection on port {self.port}")
                excess = f"serving more connections on port {self.port} than {self._limit}={self._max_streams}"
                if len(self._tasks) >= self._max_streams:
                    outages.failed(excess, "the newest is closed")
                    accepted.close()
                    continue
                outages.succeeded(excess)
                task = asyncio.create_task(self._serve_one(Stream(accepted)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            listening.close()

    async def _serve_one(self, stream: Stream) -> None:
        try:
            await self._serve(stream)
        except RemotingError as error:
            logger.info("%s", error)
        except Exception:
            logger.exception("%s: serving this connection failed", stream.peer)
        finally:
            stream.close()
