"""Stream: one socket for bytes both ways, for peers that speak no commands, and a server of such.

Bytes are sent from where they lie: `write` gives them to the kernel without a copy and waits while the peer takes no
more. Whoever reads and writes at the same time does so in two tasks. An error of the socket is a RemotingConnectError.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rucola.errors import RemotingConnectError, RemotingError
from rucola.remoting.client import CONNECT_TIMEOUT_MS, host_and_port
from rucola.remoting.connection import address_of

logger = logging.getLogger(__name__)


class Stream:
    """A connected socket. `peer` is "ip:port" of the other side."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        try:
            self.peer = address_of(sock.getpeername())
        except OSError:  # it has gone already, which whoever reads will notice
            self.peer = "?"

    async def read(self, max_size: int) -> bytes:
        """Wait for bytes and return up to `max_size` of them; none where the peer has closed."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, max_size)
        except OSError as error:
            raise RemotingConnectError(f"the connection to {self.peer} broke: {error.strerror or error}") from None

    async def write(self, head: bytes, body: memoryview | bytes = b"") -> None:
        """Send `head` and `body`, one behind the other. When this returns nothing of them is needed any more."""
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
        """Close the socket. Nobody may be reading or writing any more."""
        self._socket.close()


async def open_stream(address: str) -> Stream:
    """Connect to "host:port". RemotingConnectError where that cannot be."""
    host, port = host_and_port(address)
    loop = asyncio.get_running_loop()
    sock: socket.socket | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            family, kind, proto, _, place = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
            sock = socket.socket(family, kind, proto)
            sock.setblocking(False)
            await loop.sock_connect(sock, place)
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


async def side_by_side(*works: Coroutine[Any, Any, None]) -> None:
    """Run what one connection needs at the same time, until the first of it ends: raise what that raises, and end the
    rest."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class StreamServer:
    """Listens on one address; each connection is given to `serve`, and closed when that returns.

    With port 0 the system chooses one, which `port` holds from `start` on.
    """

    def __init__(self, host: str, port: int, serve: Callable[[Stream], Awaitable[None]]) -> None:
        self.host = host
        self.port = port
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen. RemotingError where the address is taken."""
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
        self._accepting = asyncio.create_task(self._accept(listening))

    async def stop(self) -> None:
        """Listen no more, and end what is being served."""
        tasks = [*self._tasks, *([self._accepting] if self._accepting is not None else [])]
        self._accepting = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        try:
            while True:
                try:
                    accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
                except OSError as error:  # no descriptor is left, or the peer has gone already
                    logger.warning("cannot accept a connection on port %d: %s", self.port, error)
                    await asyncio.sleep(1)
                    continue
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
