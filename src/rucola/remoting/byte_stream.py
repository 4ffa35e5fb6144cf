"""Stream: one socket that carries raw bytes in both directions, and its server.

For replication. `write` passes the caller's buffers to the kernel and waits while the send buffer is full; TLS copies
them twice. Concurrent reading and writing requires two tasks. Errors of a socket are raised as RemotingConnectError.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from rucola.errors import RemotingConnectError, RemotingError
from rucola.outages import Outages
from rucola.remoting.addresses import address_of
from rucola.remoting.client import CONNECT_TIMEOUT_MS, host_and_port
from rucola.remoting.exposure import cannot_listen
from rucola.remoting.tls import FollowedContext, ServerTls, subject_of, why_refused
from rucola.remoting.tls_acceptor import TlsAcceptor

logger = logging.getLogger(__name__)

TLS_READ_SIZE: Final = 64 * 1024
MAX_PENDING: Final = 64
"""Streams of one server that are not admitted yet."""


class Stream:
    """A connected socket, owned by the stream; `certificate` is the peer's subject, empty without one."""

    def __init__(self, sock: socket.socket) -> None:
        self.certificate = ""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._unsent = b""
        """The rest of what `write_now` could not send."""
        try:
            self.peer = address_of(sock.getpeername())
        except OSError:  # the peer has closed already; the next read reports it
            self.peer = "?"

    @property
    def host(self) -> str:
        """The peer's address without the port."""
        return self.peer.rpartition(":")[0]

    async def read(self, max_size: int) -> bytes:
        """Return up to `max_size` bytes, none if the peer has closed."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, max_size)
        except OSError as error:
            raise self._broke(error) from None

    async def read_until(self, max_size: int, take: Callable[[bytes], bool], timeout_s: float) -> bytes:
        """Call `take` with up to `max_size` bytes as they arrive, until it returns False; TimeoutError after silence.

        Returns what `take` has refused, nothing if the peer has closed. By TLS, it may get more. What it takes needs no
        task, future or change of the selector.
        """
        loop = asyncio.get_running_loop()
        refused: asyncio.Future[bytes] = loop.create_future()
        heard = loop.time()

        def readable() -> None:
            nonlocal heard
            try:
                data = self._read_now(max_size)
            except BlockingIOError:
                return
            except OSError as error:
                refused.set_exception(self._broke(error))
            else:
                heard = loop.time()
                try:
                    if data and take(data):
                        return
                    refused.set_result(data)
                except Exception as error:
                    refused.set_exception(error)
            loop.remove_reader(self._socket)

        readable()  # perhaps what is decrypted already
        if not refused.done():
            loop.add_reader(self._socket, readable)
        try:
            while not refused.done() and (left := heard + timeout_s - loop.time()) > 0:
                await asyncio.wait([refused], timeout=left)
        finally:
            loop.remove_reader(self._socket)
        if not refused.done():
            raise TimeoutError
        return refused.result()

    def _read_now(self, max_size: int) -> bytes:
        """Return what has arrived, nothing if the peer has closed. BlockingIOError if nothing has."""
        return self._socket.recv(max_size)

    def write_now(self, head: bytes, body: memoryview | bytes = b"") -> bool:
        """Send both without waiting, while no `write` is running; return whether all is sent.

        The next `write` sends a copy of the rest first, or raises the error of the socket.
        """
        head, self._unsent = self._unsent + head, b""
        try:
            sent = self._socket.sendmsg((head, body))
        except OSError:
            sent = 0
        if sent == len(head) + len(body):
            return True
        self._unsent = (head + body)[sent:]
        return False

    async def write(self, head: bytes, body: memoryview | bytes = b"") -> None:
        """Send both, usually by one system call. The buffers must stay unchanged until this returns."""
        head, self._unsent = self._unsent + head, b""
        try:
            try:
                sent = self._socket.sendmsg((head, body))
            except BlockingIOError:
                sent = 0
            loop = asyncio.get_running_loop()
            if sent < len(head):
                await loop.sock_sendall(self._socket, head[sent:])
            # With a head of 12 bytes and 500 sent, the body continues at 488.
            body_sent = max(sent - len(head), 0)
            if body_sent < len(body):
                await loop.sock_sendall(self._socket, memoryview(body)[body_sent:])
        except OSError as error:
            raise self._broke(error) from None

    def _broke(self, error: OSError) -> RemotingConnectError:
        return RemotingConnectError(f"the connection to {self.peer} broke: {error.strerror or error}")

    def close(self) -> None:
        """Close the socket. No task may be reading or writing."""
        self._socket.close()


class TlsStream(Stream):
    """A stream over TLS; usable after `handshake`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        super().__init__(sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        # Reading sends, too, after a key update; bytes must be sent in the order of encryption.
        self._sending = asyncio.Lock()

    async def handshake(self) -> None:
        """Raises OSError, or its subclass SSLError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_pending()
                if not await self._receive():
                    raise ConnectionResetError("the peer closed the connection during the TLS handshake") from None
            except ssl.SSLError:
                with suppress(OSError):  # the alert with the reason
                    await self._send_pending()
                raise
            else:
                self.certificate = subject_of(self._tls.getpeercert())
                return await self._send_pending()

    async def read(self, max_size: int) -> bytes:
        try:
            while True:
                try:
                    return self._tls.read(max_size)
                except ssl.SSLWantReadError:
                    await self._send_pending()
                    if not await self._receive():
                        return b""
        except ssl.SSLZeroReturnError:  # the peer closes
            return b""
        except OSError as error:
            raise self._broke(error) from None

    def _read_now(self, max_size: int) -> bytes:
        decrypted: list[bytes] = []  # all of it: no event follows for the rest
        try:
            while True:
                try:
                    if not (data := self._tls.read(max_size)):  # the peer closes
                        break
                    decrypted.append(data)
                except ssl.SSLWantReadError:
                    if decrypted or not (data := self._socket.recv(TLS_READ_SIZE)):
                        break
                    self._incoming.write(data)
        except ssl.SSLZeroReturnError:  # the peer closes
            pass
        self._send_pending_now()
        return b"".join(decrypted)

    def write_now(self, head: bytes, body: memoryview | bytes = b"") -> bool:
        with suppress(OSError):  # which the next `write` raises again
            self._encrypt(head)
            self._encrypt(body)
        return self._send_pending_now()

    def _send_pending_now(self) -> bool:
        if not self._sending.locked():
            data = self._unsent + self._outgoing.read()
            try:
                self._unsent = data[self._socket.send(data) :]
            except OSError:
                self._unsent = data
        return not self._unsent and not self._outgoing.pending

    async def write(self, head: bytes, body: memoryview | bytes = b"") -> None:
        try:
            # Without an await in between, so that two writers do not interleave.
            self._encrypt(head)
            self._encrypt(body)
            await self._send_pending()
        except OSError as error:
            raise self._broke(error) from None

    def close(self) -> None:
        with suppress(OSError):  # notify the peer if the socket has room; the end of the connection does, too
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            if self._outgoing.pending and not self._sending.locked():
                self._socket.send(self._outgoing.read())
        super().close()

    def _encrypt(self, data: memoryview | bytes) -> None:
        written = 0
        while written < len(data):
            written += self._tls.write(memoryview(data)[written:])

    async def _receive(self) -> bool:
        """Receive encrypted bytes; return False if the peer has closed."""
        data = await asyncio.get_running_loop().sock_recv(self._socket, TLS_READ_SIZE)
        self._incoming.write(data)
        return bool(data)

    async def _send_pending(self) -> None:
        async with self._sending:
            while self._unsent or self._outgoing.pending:
                data, self._unsent = self._unsent + self._outgoing.read(), b""
                await asyncio.get_running_loop().sock_sendall(self._socket, data)


async def open_stream(address: str, tls: FollowedContext | None = None) -> Stream:
    """Connect to "host:port". RemotingConnectError if that fails or exceeds CONNECT_TIMEOUT_MS."""
    host, port = host_and_port(address)
    loop = asyncio.get_running_loop()
    sock: socket.socket | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            family, kind, proto, _, sockaddr = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
            sock = socket.socket(family, kind, proto)
            sock.setblocking(False)
            await loop.sock_connect(sock, sockaddr)
            if tls is None:
                return Stream(sock)
            stream = TlsStream(sock, tls.current(), host)
            await stream.handshake()
            return stream
    except ssl.SSLError as error:
        assert sock is not None
        sock.close()
        raise RemotingConnectError(f"cannot connect to {address}: {why_refused(error)}", subject=address) from None
    except (OSError, TimeoutError, UnicodeError) as error:
        if sock is not None:
            sock.close()
        why = getattr(error, "strerror", None) or error or f"no response in {CONNECT_TIMEOUT_MS} ms"
        raise RemotingConnectError(f"cannot connect to {address}: {why}", subject=address) from None
    except asyncio.CancelledError:
        if sock is not None:
            sock.close()
        raise


async def run_until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until the first one returns or raises; cancel the others, then raise its exception."""
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
    """A server that runs `serve` for each accepted stream and closes it afterwards.

    At most `max_streams` are admitted (`limit` is its key for the log), and MAX_PENDING pending until `serve` calls
    `admit`. A further one ends the oldest of the address with most of them, so that silent peers block no others.
    With port 0, `port` is set by `start`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        serve: Callable[[Stream], Awaitable[None]],
        tls: ServerTls | None = None,
        *,
        max_streams: int = 1024,
        limit: str = "max_streams",
    ) -> None:
        self.host = host
        self.port = port
        self._serve = serve
        self._max_streams = max_streams
        self._limit = limit
        self._outages = Outages(logger)
        self._tls = tls
        self._acceptor: TlsAcceptor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: dict[Stream, asyncio.Task[None]] = {}
        """Oldest first."""
        self._admitted: set[Stream] = set()
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
            raise cannot_listen(self.host, self.port, error) from None
        self.port = listening.getsockname()[1]
        if self._tls is None:
            self._accept_task = asyncio.create_task(self._accept(listening))
        else:
            self._acceptor = TlsAcceptor(listening, self._tls, self._connect)

    async def stop(self) -> None:
        """Close the listening socket and cancel all `serve` calls."""
        if self._acceptor is not None:
            await self._acceptor.stop()
            self._acceptor = None
        tasks = [*self._tasks, *([self._accept_task] if self._accept_task is not None else [])]
        self._accept_task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        try:
            while True:
                try:
                    accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
                except OSError as error:  # no descriptor is left, or the peer has already closed
                    self._outages.failed(f"accepting a connection on port {self.port}", error)
                    await asyncio.sleep(1)
                    continue
                self._outages.succeeded(f"accepting a connection on port {self.port}")
                self._begin(Stream(accepted))
                await asyncio.sleep(0)  # `sock_accept` does not suspend while connections wait in the kernel's queue
        finally:
            listening.close()

    async def _connect(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        if context is None:
            return self._begin(Stream(sock))
        stream = TlsStream(sock, context)
        try:
            await stream.handshake()
        except BaseException:
            stream.close()
            raise
        self._begin(stream)

    def admit(self, stream: Stream) -> bool:
        """Count a pending stream as one of `max_streams`; False at the limit."""
        excess = f"serving more connections on port {self.port} than {self._limit}={self._max_streams}"
        if len(self._admitted) >= self._max_streams:
            self._outages.failed(excess, "the newest is closed")
            return False
        self._outages.succeeded(excess)
        self._pending.pop(stream, None)
        self._admitted.add(stream)
        return True

    def _begin(self, stream: Stream) -> None:
        excess = f"waiting for more than {MAX_PENDING} silent connections on port {self.port}"
        if len(self._pending) >= MAX_PENDING:
            ((host, count),) = Counter(pending.host for pending in self._pending).most_common(1)
            oldest = next(pending for pending in self._pending if pending.host == host)
            self._pending.pop(oldest).cancel()
            self._outages.failed(excess, f"{count} are from {host}, of which the oldest is closed")
        else:
            self._outages.succeeded(excess)
        task = asyncio.create_task(self._serve_one(stream))
        self._tasks.add(task)
        self._pending[stream] = task
        task.add_done_callback(partial(self._ended, stream))

    def _ended(self, stream: Stream, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pending.pop(stream, None)
        self._admitted.discard(stream)
        stream.close()  # here, since a task cancelled before its first step has no `finally`

    async def _serve_one(self, stream: Stream) -> None:
        try:
            await self._serve(stream)
        except RemotingError as error:
            logger.info("%s", error)
        except Exception:
            logger.exception("%s: serving this connection failed", stream.peer)
