"""Large writes: frames whose body stays in the log, written in pieces as the peer reads.

Otherwise a message of megabytes would be copied several times, and kept in memory for a peer that never reads. The
transport holds PIECE_SIZE at most, in addition to its own buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

PIECE_SIZE: Final = 128 * 1024
"""Bytes of a body that are written at once."""
STEP_SIZE: Final = 2 * PIECE_SIZE
"""Bytes per iteration of the event loop, so that other connections are served in between."""


class LargeBody(Protocol):
    """Bytes that stay in place until `release`."""

    @property
    def view(self) -> memoryview: ...

    def __len__(self) -> int: ...

    def release(self) -> None: ...


class LargeWrites:
    """One connection's writes, in order; `flush` sends them, and above `limit` bytes the transport is full."""

    def __init__(
        self, transport: asyncio.Transport, write: Callable[[Any], None], flush: Callable[[], None], limit: int
    ) -> None:
        self.size = 0
        """Bytes of frames that wait for a body, without the bodies."""
        self._transport = transport
        self._write = write
        self._flush = flush
        self._limit = limit
        self._parts: deque[bytes | LargeBody] = deque()
        self._written = 0
        """Of the first body."""

    def append(self, part: bytes | LargeBody) -> None:
        self._parts.append(part)
        if isinstance(part, bytes):
            self.size += len(part)

    @property
    def is_full(self) -> bool:
        return self._transport.get_write_buffer_size() > self._limit

    def advance(self, *, is_last: bool = False) -> bool:
        """Write for a step, or all if `is_last`, until the transport is full; return whether all is written."""
        written = 0
        while self._parts and (is_last or (written < STEP_SIZE and not self.is_full)):
            part = self._parts[0]
            if isinstance(part, bytes):
                self._write(self._parts.popleft())
                self.size -= len(part)
                written += len(part)
                continue
            # The slice stays valid after the release of the body, which only allows closing its file.
            self._write(part.view[self._written : self._written + PIECE_SIZE])
            self._written += PIECE_SIZE
            written += PIECE_SIZE
            if self._written >= len(part):
                self._parts.popleft()
                self._written = 0
                part.release()
        self._flush()
        return not self._parts

    def release(self) -> None:
        for part in self._parts:
            if not isinstance(part, bytes):
                part.release()
        self._parts.clear()
