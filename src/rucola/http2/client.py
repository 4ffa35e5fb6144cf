"""GrpcChannel: calls to one server, over connections that it opens on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from rucola.errors import RemotingConnectError
from rucola.http2.connection import Http2Connection, Stream
from rucola.http2.frames import ErrorCode, header_block
from rucola.http2.grpc import MAX_CALL_BUFFER, Failed, MessageReader, Status, framed
from rucola.http2.headers import Headers
from rucola.http2.protocol import Http2Protocol
from rucola.remoting.addresses import address_of
from rucola.remoting.client import CONNECT_TIMEOUT_MS, connect_errors
from rucola.remoting.deadline import Deadline
from rucola.remoting.single_flight import SingleFlight
from rucola.remoting.tls import FollowedContext

CHECK_INTERVAL_S: Final = 10.0
"""Time without a byte from the server after which it gets a PING."""
MAX_RESPONSE_SIZE: Final = 64 << 20
MAX_UNSENT: Final = 64 << 20
"""Bytes of requests that may wait for one connection; further calls fail."""
_MAX_TIMEOUT_MS: Final = 99_999_999


class NotProcessed(Failed):
    """The server has not processed the call: it may be made elsewhere."""


class ClientCall:
    """A call of any kind, as the receiver of its stream."""

    def __init__(self) -> None:
        self._reader = MessageReader(self._deliver, MAX_RESPONSE_SIZE)
        self._stream: Stream | None = None
        self._messages: deque[bytes] = deque()
        self._size = 0
        """Bytes of `_messages`."""
        self._status: Status | None = None
        self._text = ""
        self._has_ended = False
        self._error: Failed | None = None
        self._changed = asyncio.Event()

    def begin(self, connection: Http2Connection, block: bytes) -> None:
        self._stream = connection.open_request(block, self)

    def send(self, message: bytes) -> None:
        assert self._stream is not None
        self._stream.send(framed(message))

    def finish(self) -> None:
        """Send the end of the request."""
        assert self._stream is not None
        self._stream.finish()

    def cancel(self) -> None:
        """End the call, unless it has ended."""
        if self._stream is not None:
            self._stream.reset(ErrorCode.CANCEL)

    @property
    def is_open(self) -> bool:
        """Whether the end of the response has not come."""
        return self._stream is not None and self._stream.is_open

    @property
    def unread(self) -> Sequence[bytes]:
        """The messages that have come and were not read."""
        return tuple(self._messages)

    async def read(self) -> bytes | None:
        """Return the next message, None after the last one. Raises Failed."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._has_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        message = self._messages.popleft()
        self._size -= len(message)
        if self._stream is not None and self._stream.is_paused and self._size <= MAX_CALL_BUFFER:
            self._stream.resume()
        return message

    # -- the response, as the receiver of the stream -------------------------------------------------------------------

    def headers_received(self, headers: Headers) -> None:
        for name, value in headers:
            if name == b":status" and value != b"200":
                self._status, self._text = Status.UNAVAILABLE, f"the server is none of gRPC (HTTP status {value!r})"
            elif name == b"grpc-status":
                is_known = value.isdigit() and int(value) < len(Status)
                self._status = Status(int(value)) if is_known else Status.UNKNOWN
            elif name == b"grpc-message":
                self._text = unquote(value.decode("utf-8", "replace"))

    def data(self, data: bytes) -> None:
        assert self._stream is not None
        try:
            self._reader.receive(data, self._stream)
        except Failed as error:
            self.cancel()
            self._end(error)

    def ended(self) -> None:
        try:
            self._reader.receive_end()
        except Failed as error:
            return self._end(error)
        if self._status is Status.OK:
            return self._end(None)
        return self._end(Failed(Status.UNKNOWN if self._status is None else self._status, self._text))

    def reset(self, code: ErrorCode) -> None:
        kind = NotProcessed if code is ErrorCode.REFUSED_STREAM else Failed
        self._end(kind(Status.UNAVAILABLE, f"the call or its connection was ended ({code.name})"))

    def drained(self) -> None:
        pass

    def _deliver(self, message: bytes) -> bool:
        assert self._stream is not None
        self._messages.append(message)
        self._size += len(message)
        self._stream.is_paused = self._size > MAX_CALL_BUFFER
        self._changed.set()
        return True

    def _end(self, error: Failed | None) -> None:
        self._has_ended, self._error = True, error
        self._changed.set()


class _Connection(Http2Protocol):
    is_client = True

    def __init__(self, connections: list[_Connection]) -> None:
        super().__init__(Http2Connection(None, clock=asyncio.get_running_loop().time))
        self._connections = connections
        self._check_timer: asyncio.TimerHandle | None = None
        self.settled = asyncio.Event()
        """Set when the server's settings have come, or the connection is lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections.append(self)
        super().connection_made(transport)
        self._check_timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.http2.has_settings:
            self.settled.set()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._connections.remove(self)
        self.settled.set()
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _flushed(self, transport: asyncio.Transport, *, has_sent: bool) -> None:
        if self.http2.is_closed or (self.http2.is_left and not self.http2.streams):
            transport.close()

    def _check(self) -> None:
        self._check_timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)
        self.ping_if_silent(CHECK_INTERVAL_S)


class GrpcChannel:
    """Calls to the server at an address, on one event loop. There are as many connections as its streams need."""

    def __init__(self, host: str, port: int, tls: FollowedContext | None = None) -> None:
        self.address = address_of((host, port))
        self._host, self._port, self._tls = host, port, tls
        self._connections: list[_Connection] = []
        self._connecting: SingleFlight[str, _Connection] = SingleFlight()

    async def connect(self) -> None:
        """Open a connection unless there is one. Raises RemotingConnectError."""
        await self._usable()

    async def call(
        self, path: str, fields: Sequence[tuple[bytes, bytes]], timeout_s: float | None = None
    ) -> ClientCall:
        """Begin a call with metadata; `timeout_s` is for the server. Raises RemotingConnectError and NotProcessed."""
        connection = (await self._usable()).http2
        if connection.buffered > MAX_UNSENT:
            raise NotProcessed(Status.RESOURCE_EXHAUSTED, f"{connection.buffered} bytes wait for {self.address}")
        head = [
            (b":method", b"POST"),
            (b":scheme", b"http" if self._tls is None else b"https"),
            (b":path", path.encode()),
            (b":authority", self.address.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        if timeout_s is not None:
            head.append((b"grpc-timeout", b"%dm" % min(max(int(timeout_s * 1000), 1), _MAX_TIMEOUT_MS)))
        call = ClientCall()
        call.begin(connection, header_block([*head, *fields]))
        return call

    async def wait_lost(self) -> None:
        """Wait until no connection is open."""
        while self._connections:
            await self._connections[0].closed.wait()

    def abort(self) -> None:
        """Close all connections, without waiting for it; their calls fail."""
        for connection in self._connections:
            connection.abort()

    async def close(self) -> None:
        """Close all connections; their calls fail."""
        self._connecting.close()
        self.abort()
        await self.wait_lost()

    async def _usable(self) -> _Connection:
        while True:
            for connection in self._connections:
                if connection.http2.has_room:
                    return connection
            with connect_errors(self.address):
                deadline = Deadline(2 * CONNECT_TIMEOUT_MS)
                opened = await self._connecting.run("", self._open, deadline, f"cannot connect to {self.address}")
            if opened.closed.is_set():
                raise RemotingConnectError(
                    f"{self.address} closes connections at once: is it a port of gRPC?", subject=self.address
                )

    async def _open(self) -> _Connection:
        context = None
        if self._tls is not None:
            context = self._tls.current()
            context.set_alpn_protocols(["h2"])
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self._connections),
                self._host,
                self._port,
                ssl=context,
                server_hostname=None if context is None else self._host,
            )
            try:
                await connection.settled.wait()
            except asyncio.CancelledError:
                connection.abort()
                raise
        return connection
