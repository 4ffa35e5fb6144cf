"""Large writes: frames with a body in the log, written as the peer reads.

A message of megabytes would be copied from the log, joined with its header, and copied again for a transport whose
socket is full, and a peer that never reads would keep those bytes in memory. Its body stays in the log and is written
from there instead, in pieces, as fast as the peer reads them:

    to write              head, 3.9 MB of the log, the frames that are sent after it
    in the transport      PIECE_SIZE at most, and what it takes before its buffer is full
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

PIECE_SIZE: Final = 128 * 1024
"""Bytes of a body that are written at once: more than a batch of writes delays."""
STEP_SIZE: Final = 2 * PIECE_SIZE
"""Bytes in one iteration of the event loop, although the socket may take more: other connections are served between."""


class LargeBody(Protocol):
    """Bytes that are kept in their place until `release`."""

    @property
    def view(self) -> memoryview: ...

    def __len__(self) -> int: ...

    def release(self) -> None: ...


class LargeWrites:
    """What one connection has to write, in order, from a large body on.

    `write` passes bytes to the transport, and `flush` lets it have them. The transport is full above `limit` bytes.
    """

    def __init__(
        self, transport: asyncio.Transport, write: Callable[[Any], None], flush: Callable[[], None], limit: int
    ) -> None:
        self.size = 0
        """Bytes of frames that wait behind a body, without the bodies."""
        self._transport = transport
        self._write = write
        self._flush = flush
        self._limit = limit
        self._parts: deque[bytes | LargeBody] = deque()
        self._written = 0
        """Bytes of the first body that were written."""

    def append(self, part: bytes | LargeBody) -> None:
        """Write this after everything else."""
        self._parts.append(part)
        if isinstance(part, bytes):
            self.size += len(part)

    @property
    def is_full(self) -> bool:
        """Whether the transport is, and tells its protocol when it is no longer."""
        return self._transport.get_write_buffer_size() > self._limit

    def advance(self, *, is_last: bool = False) -> bool:
        """Write for a step or until the transport is full; return whether all is written.

        With `is_last` it writes all.
        """
        written = 0
        while self._parts and (is_last or (written < STEP_SIZE and not self.is_full)):
            part = self._parts[0]
            if isinstance(part, bytes):
                self._write(self._parts.popleft())
                self.size -= len(part)
                written += len(part)
                continue
            # The slice is valid after the release of the body, which only lets its file be closed.
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
        """Drop what is not written."""
        for part in self._parts:
            if not isinstance(part, bytes):
                part.release()
        self._parts.clear()
