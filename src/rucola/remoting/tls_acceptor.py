"""TlsAcceptor: accepts connections of a port that serves TLS, or TLS and plain text.

The first byte is peeked at: a TLS handshake starts with 22, and no other protocol here does. A plain connection is then
served as on a port without TLS. Until the end of its handshake a connection is pending:

1. It is closed after the handshake timeout.
2. At most `max_pending_handshakes` are pending; others wait in the kernel's queue. If a new connection waits longer
   than PENDING_AGE_S, the oldest pending one is ended, so that silent connections cannot occupy all places.
3. Failed connections of a port have a rate-limited log line, with their number.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from rucola.outages import Outages, log_rate_limited
from rucola.remoting.connection import CLOSE_TIMEOUT_S
from rucola.remoting.tls import ServerTls
from rucola.remoting.tls_config import TlsMode

logger = logging.getLogger(__name__)

HANDSHAKE_BYTE: Final = b"\x16"
PENDING_AGE_S: Final = 0.5
"""Age at which a pending connection may be ended for a new one."""
RETRY_S: Final = 1.0
"""Delay after a failed accept, such as without a free descriptor."""

Connect: TypeAlias = Callable[[socket.socket, ssl.SSLContext | None], Awaitable[None]]
"""Takes over a socket; with a context it does the handshake first. OSError or TimeoutError."""


class _SmallSSLProtocol(SSLProtocol):
    """asyncio's TLS with a receive buffer of 32 instead of 256 KB per connection; a record has 16 KB."""

    max_size = 32 * 1024


def connect_to(factory: Callable[[], asyncio.Protocol | asyncio.BufferedProtocol]) -> Connect:
    async def connect(sock: socket.socket, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        if context is None:
            await loop.connect_accepted_socket(factory, sock)
            return
        # As `connect_accepted_socket(ssl=context)` does, except for the buffer.
        is_ready = loop.create_future()
        tls = _SmallSSLProtocol(
            loop, factory(), context, is_ready, server_side=True, ssl_shutdown_timeout=CLOSE_TIMEOUT_S
        )
        transport, _ = await loop.connect_accepted_socket(lambda: tls, sock)
        try:
            await is_ready
        except BaseException:
            transport.abort()
            raise

    return connect


class TlsAcceptor:
    """Accepts connections on a listening socket, which it owns, and passes each to `connect`."""

    def __init__(self, listening: socket.socket, tls: ServerTls, connect: Connect) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._tls = tls
        self._connect = connect
        self._port = listening.getsockname()[1]
        self._outages = Outages(logger)
        # Oldest first, with the loop's time of their acceptance.
        self._pending: dict[asyncio.Task[None], float] = {}
        self._has_room = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._accept())

    async def stop(self) -> None:
        tasks = [self._task, *self._pending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_room()
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError as error:
                self._outages.failed(f"accepting a connection on port {self._port}", error)
                await asyncio.sleep(RETRY_S)
                continue
            self._outages.succeeded(f"accepting a connection on port {self._port}")
            task = loop.create_task(self._admit(accepted, str(address[0])))
            self._pending[task] = loop.time()
            task.add_done_callback(self._admitted)

    async def _wait_for_room(self) -> None:
        """Wait for a place among pending connections; after PENDING_AGE_S end the oldest."""
        while len(self._pending) >= self._tls.max_pending_handshakes:
            self._has_room.clear()
            oldest, since = next(iter(self._pending.items()))
            try:
                async with asyncio.timeout_at(since + PENDING_AGE_S):
                    await self._has_room.wait()
            except TimeoutError:
                oldest.cancel()
                await asyncio.wait([oldest])
                self._failed(f"it made room for others, {self._tls.max_pending_handshakes} being pending")

    def _admitted(self, task: asyncio.Task[None]) -> None:
        self._pending.pop(task, None)
        self._has_room.set()

    async def _admit(self, sock: socket.socket, host: str) -> None:
        is_taken = False
        try:
            async with asyncio.timeout(self._tls.handshake_timeout_s):
                first = await _peek(sock)
                if not first:
                    return
                context = self._tls.context if first == HANDSHAKE_BYTE else None
                if context is None and self._tls.mode is TlsMode.enforcing:
                    self._failed(f"{host} sent plain text, and tls.server.mode is enforcing")
                    return
                is_taken = True
                await self._connect(sock, context)
        except TimeoutError:
            self._failed(f"{host} was not ready after {self._tls.handshake_timeout_s:g} s")
        except ssl.SSLError as error:
            self._failed(f"{host}: {(error.reason or str(error)).replace('_', ' ').lower()}")
        except OSError as error:
            self._failed(f"{host}: {error.strerror or error or 'it closed the connection'}")
        finally:
            if not is_taken:
                sock.close()

    def _failed(self, why: str) -> None:
        kind = f"TLS on port {self._port}"
        log_rate_limited(logger, logging.WARNING, kind, "%s: a connection failed: %s", kind, why)


async def _peek(sock: socket.socket) -> bytes:
    """Return the first byte, which stays in the socket; nothing if the peer has closed."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    while True:
        try:
            return sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            pass
        readable = loop.create_future()
        loop.add_reader(sock.fileno(), _resolve, readable)
        try:
            await readable
        finally:
            loop.remove_reader(sock.fileno())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
