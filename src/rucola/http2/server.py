"""GrpcServer: accepts connections, and serves methods on them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Final

from rucola.access import Caller
from rucola.http2.connection import Http2Connection, Stream
from rucola.http2.grpc import Call, Method
from rucola.http2.headers import Headers
from rucola.http2.protocol import Http2Protocol
from rucola.outages import log_rate_limited
from rucola.remoting.addresses import address_of
from rucola.remoting.budget import UNCOUNTED, Budget, ConnectionLimits, Pause, ServerBudget
from rucola.remoting.listener import Listener
from rucola.remoting.tls import ServerTls, subject_of

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 10.0
STALL_LIMIT_S: Final = 60.0
"""Time for which a client may take no data of a response."""
IDLE_LIMIT_S: Final = 120.0
"""Time without a byte from the client after which it is asked for a sign of life, once a check."""
CLOSE_TIMEOUT_S: Final = 3.0


class _ServerConnection(Http2Protocol):
    """A connection with the budget that one of remoting has.

    A peer that does not return windows is still read, since it may be about to: during OUTPUT its new streams are
    refused instead.
    """

    def __init__(self, server: GrpcServer) -> None:
        super().__init__(Http2Connection(self._open, clock=asyncio.get_running_loop().time))
        self._server = server
        self._budget = Budget(self, server.budget)
        self._is_admitted = self._is_stopping = False
        self._sent_s = self._loop.time()
        self.peer = "?"
        self.caller = Caller(self.peer)

    def _open(self, stream: Stream, headers: Headers) -> Call:
        return Call(stream, self._server.methods, headers, self.caller)

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._server.budget.admit(transport.get_extra_info("socket").fileno()):
            transport.abort()
            return
        self._is_admitted = True
        if name := transport.get_extra_info("peername"):
            self.peer = address_of(name)
        self.caller = Caller(self.peer, None, subject_of(transport.get_extra_info("peercert")))
        self._server.connections.add(self)
        super().connection_made(transport)
        if self._server.is_stopped:
            transport.close()  # accepted before the stop, and made now

    def data_received(self, data: bytes) -> None:
        before = self.http2.messages
        super().data_received(data)
        if self.http2.partial or self._budget.bytes_in:
            is_complete = not self.http2.partial or self.http2.messages != before
            self._budget.received(0, self.http2.partial, is_complete=is_complete)
        if self.http2.is_closed:
            log_rate_limited(
                logger, logging.WARNING, "HTTP/2", "%s: closing the connection: %s", self.peer, self.http2.error
            )
            self.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_or_pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_or_pause()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._budget.close()
        if self._is_admitted:
            self._server.budget.release()
        self._server.connections.discard(self)

    def _flushed(self, transport: asyncio.Transport, *, has_sent: bool) -> None:
        if has_sent:
            self._sent_s = self._loop.time()
        unsent = transport.get_write_buffer_size() + self.http2.buffered
        if unsent > UNCOUNTED:
            self._budget.sent(unsent)
        elif self._budget.bytes_out:
            self._budget.sent(0)
            self._budget.resume(Pause.OUTPUT)
        if self._is_stopping and not self.http2.streams:
            transport.close()

    # -- for its budget -----------------------------------------------------------------------------------------------

    @property
    def unsent_ms(self) -> int:
        return int((self._loop.time() - self._sent_s) * 1000)

    def pause(self) -> None:
        self._read_or_pause()

    def resume(self) -> None:
        self._read_or_pause()

    def _read_or_pause(self) -> None:
        self.http2.is_refusing = Pause.OUTPUT in self._budget.paused
        if self._transport is None or self._transport.is_closing():
            return
        if self.http2.is_paused or Pause.INPUT in self._budget.paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # -- the server ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Reset stalled streams, and close the connection of a client that does not answer."""
        self.http2.reset_stalled(STALL_LIMIT_S)
        self.ping_if_silent(IDLE_LIMIT_S)

    def go_away(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self.http2.go_away()
            self._flush()

    async def wait_closed(self) -> None:
        """Let open calls finish, up to CLOSE_TIMEOUT_S, then close."""
        try:
            await asyncio.wait_for(self.closed.wait(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            self.abort()
            await self.closed.wait()


class GrpcServer:
    """A server on one address and event loop; `methods` are by path. HTTP/2 by prior knowledge, or by TLS.

    `listening` is a bound socket that several processes share, in place of the address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        methods: Mapping[str, Method],
        *,
        tls: ServerTls | None = None,
        budget: ServerBudget | None = None,
        listening: socket.socket | None = None,
    ) -> None:
        self.methods = methods
        self.connections: set[_ServerConnection] = set()
        self.budget = budget or ServerBudget(ConnectionLimits())
        self.is_stopped = False
        self._listener = Listener(host, port, tls, listening)
        self._checks: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._listener.port

    def bind(self) -> None:
        """Bind without listening; port 0 becomes a free one. RemotingError."""
        self._listener.bind()

    async def start(self) -> None:
        """Bind unless `bind` did, and listen. RemotingError if the address is in use."""
        self.is_stopped = False
        await self._listener.start(lambda: _ServerConnection(self))
        self._checks = asyncio.get_running_loop().create_task(self._check())

    async def go_away(self) -> None:
        """Stop listening, and take no further calls; idempotent."""
        self.is_stopped = True
        await self._listener.stop()
        for connection in list(self.connections):
            connection.go_away()

    async def stop(self) -> None:
        """Let calls finish after `go_away`, and close all connections; idempotent."""
        await self.go_away()
        if self._checks is not None:
            self._checks.cancel()
        await asyncio.gather(*(connection.wait_closed() for connection in list(self.connections)))

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            for connection in list(self.connections):
                connection.check()
