"""GrpcServer: accepts connections, and serves methods on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from rucola.http2.connection import Headers, Http2Connection, Stream
from rucola.http2.grpc import Call, Method

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 10.0
STALL_LIMIT_S: Final = 60.0
"""Time for which a client may take no data of a response."""
IDLE_LIMIT_S: Final = 120.0
"""Time without a byte from the client after which it is asked for a sign of life, and closed after as long again."""
CLOSE_TIMEOUT_S: Final = 3.0
BACKLOG: Final = 1024


class _ServerConnection(asyncio.Protocol):
    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.http2 = Http2Connection(self._open, clock=self._loop.time)
        self._is_flushing = False
        self._is_stopping = False
        self._heard_s = self._loop.time()
        self.peer = ""
        self.closed = asyncio.Event()

    def _open(self, stream: Stream, headers: Headers) -> Call:
        return Call(stream, self._server.methods, headers, self.peer)

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port, *_ = transport.get_extra_info("peername")
        self.peer = f"{host}:{port}"
        self._server.connections.add(self)
        self.http2.on_output = self._schedule_flush
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        self._is_flushing = True  # everything that a read leads to is one write
        self.http2.receive(data)
        self._flush()
        if self.http2.is_closed:
            logger.warning("%s: closing the connection: %s", self.peer, self.http2.error)
            self._close()

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()
        self.http2.is_paused = True

    def resume_writing(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()
        self.http2.is_paused = False
        self.http2.flush_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        self.http2.lost()
        self._server.connections.discard(self)
        self.closed.set()

    def _schedule_flush(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport is not None and not self._transport.is_closing() and (out := self.http2.take_output()):
            self._transport.write(out)
            self.http2.flush_waiting()
        if self._is_stopping and not self.http2.streams:
            self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- the server ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Reset stalled streams, and close the connection of a client that is gone."""
        self.http2.reset_stalled(STALL_LIMIT_S)
        idle_s = self._loop.time() - self._heard_s
        if idle_s > 2 * IDLE_LIMIT_S:
            assert self._transport is not None
            self._transport.abort()
        elif idle_s > IDLE_LIMIT_S:
            self.http2.ping()
            self._flush()

    async def stop(self) -> None:
        """Let open calls finish, up to CLOSE_TIMEOUT_S, then close."""
        self._is_stopping = True
        self.http2.go_away()
        self._flush()
        try:
            await asyncio.wait_for(self.closed.wait(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            assert self._transport is not None
            self._transport.abort()


class GrpcServer:
    """A server on one address and event loop; `methods` are by path. Plaintext only: HTTP/2 by prior knowledge."""

    def __init__(self, host: str, port: int, methods: Mapping[str, Method]) -> None:
        self.host = host
        self.port = port
        self.methods = methods
        self.connections: set[_ServerConnection] = set()
        self._server: asyncio.Server | None = None
        self._checks: asyncio.Task[None] | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _ServerConnection(self), self.host, self.port, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]
        self._checks = loop.create_task(self._check())

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._checks is not None:
            self._checks.cancel()
        await asyncio.gather(*(connection.stop() for connection in list(self.connections)))

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            for connection in list(self.connections):
                connection.check()
