"""Http2Protocol: an HTTP/2 connection on a transport of asyncio, of either side."""

from __future__ import annotations

import asyncio
from typing import Final

from rucola.http2.connection import Http2Connection
from rucola.remoting.keepalive import enable_keepalive

MAX_UNANSWERED_PINGS: Final = 3


class Http2Protocol(asyncio.Protocol):
    """All frames that one read leads to are one write; so are the frames of one iteration of the event loop."""

    is_client = False

    def __init__(self, http2: Http2Connection) -> None:
        self.http2 = http2
        self.closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_flushing = False
        self._heard_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        enable_keepalive(transport.get_extra_info("socket"), is_client=self.is_client)
        self.http2.on_output = self._schedule_flush
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        self._is_flushing = True
        self.http2.receive(data)
        self._flush()

    def pause_writing(self) -> None:
        self.http2.is_paused = True

    def resume_writing(self) -> None:
        self.http2.is_paused = False
        self.http2.flush_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        self.http2.lost()
        self.closed.set()

    def close(self) -> None:
        """Close after what has been written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def ping_if_silent(self, limit_s: float) -> None:
        """Ask a peer that has sent nothing for `limit_s` for a sign of life; abort if it gives none."""
        if self._loop.time() - self._heard_s < limit_s:
            return
        if self.http2.unanswered_pings < MAX_UNANSWERED_PINGS:
            self.http2.ping()
        else:
            self.abort()

    def _schedule_flush(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport is None or self._transport.is_closing():
            return
        if output := self.http2.take_output():
            self._transport.write(output)
            self.http2.flush_waiting()
        self._flushed(self._transport, has_sent=bool(output))

    def _flushed(self, transport: asyncio.Transport, *, has_sent: bool) -> None:
        """Called after each flush of an open connection."""
