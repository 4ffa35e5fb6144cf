"""Connection memory: bounds on the buffers of a server's connections, each and in total.

    memory           grows if a peer            bound for each                 bound in total, and beyond it
    unsent bytes     does not read its          maxUnsentBytesPerConnection:   maxUnsentBytes: the connection that has
                     responses                  congested, see `Connection`    not sent for the longest is closed
    partial frames   sends frames and does      the frame limit, 16 MiB        maxPartialFrameBytes: connections wait,
                     not complete them                                         i.e. are not read, and those that hold
                                                                               a partial frame and are slow are closed

Complete frames that wait for a turn (`turns`) count as partial. A connection is also closed if a frame grows by less
than MIN_FRAME_RATE in FRAME_CHECK_INTERVAL_S, which idle times do not detect. Of thousands of connections whose frames
come byte by byte, some are read in each REST_S (`trickles`).

A congested connection is not read, and its held pulls are not answered. If many are congested, each may buffer its
share of half of the total. Below the totals slow peers keep their connections.

Not counted: bodies that stay in place (`large_writes`), up to UNCOUNTED unsent bytes, and frames that one read
completes, so that nearly all requests bypass this module.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from rucola import settings
from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.remoting.seldom_lines import SeldomLines
from rucola.settings import INT_MAX, Bytes, Count, Range
from rucola.system_calls import descriptor_limit

logger = logging.getLogger(__name__)

UNCOUNTED: Final = 64 * 1024
"""Unsent bytes of a connection that are not counted."""
MIN_RATE: Final = 64 * 1024
"""Bytes per second by which a partial frame must grow while other connections wait."""
CHECK_INTERVAL_S: Final = 1.0
FRAME_CHECK_INTERVAL_S: Final = 30.0
"""Seconds between two checks of all partial frames; Apache's clients time out after three."""
MIN_FRAME_RATE: Final = 256
"""Bytes per second by which a partial frame must grow."""
TINY_READ_SIZE: Final = 256
MAX_TINY_READS: Final = 4
"""Tiny reads of a frame before a rest; a client may write length, header and body separately."""
REST_S: Final = 0.005
"""Minimum seconds for which a connection whose frame comes byte by byte is not read."""
RESTS_ENDED: Final = 16
"""Such connections that are read in REST_S, together 0.3 ms."""
CLOSED_AT_ONCE: Final = 16
"""Connections with slow frames that are closed in one iteration."""
_LOG_INTERVAL_S: Final = 1.0
_EXCESS: Final = 2 * MAX_FRAME_SIZE
"""Unsent bytes beyond the limit at which a connection is closed: its senders ignore congestion."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one server's connections, by the keys of its configuration; see docs/limits.md."""

    max_connections: Annotated[Count, Range(0, INT_MAX)] = 0
    """Maximum number of connections; 0 for as many as there are descriptors, without reservedDescriptors."""
    reserved_descriptors: Count = 256
    """Descriptors that connections leave for files; with a limit below 1024, a quarter of it. 64 on a name server."""
    max_unsent_bytes_per_connection: Bytes = 4 * 1024 * 1024
    """Unsent bytes of a connection at which it is not read further, and its held pulls are not answered."""
    max_unsent_bytes: Bytes = 64 * 1024 * 1024
    """Unsent bytes of all connections above which the one that has not sent for the longest is closed.

    Raise it for hundreds of consumers on slow networks.
    """
    max_partial_frame_bytes: Bytes = 64 * 1024 * 1024
    """Bytes of incomplete frames above which connections wait, and slow ones are closed.

    Raise it for many producers that send messages of megabytes at the same time.
    """

    def __post_init__(self) -> None:
        settings.check(self)


class BufferedConnection(Protocol):
    """The part of a Connection that this module requires."""

    peer: str
    is_sliced: bool
    """Whether it waits for its turn, and does not read until then."""

    @property
    def unsent_ms(self) -> int:
        """Milliseconds since the last byte was sent."""

    def wait(self, is_waiting: bool) -> None:
        """Stop reading, or read again."""

    def rest(self, is_resting: bool) -> None:
        """Stop reading for some milliseconds, or read again."""

    def abort(self) -> None:
        """Close at once; unsent bytes are dropped."""


class ConnectionMemory:
    """One server's connections on all ports. `on_writable` is called when one is no longer congested."""

    def __init__(
        self, limits: ConnectionLimits, on_writable: Callable[[BufferedConnection], None] = lambda connection: None
    ) -> None:
        self.on_writable = on_writable
        self.closed: Counter[str] = Counter()
        """Connections closed or not accepted, by the key of the limit."""
        self.unsent_total = 0
        self.partial_total = 0
        self._limits = limits
        self._count = 0
        self._unsent: dict[BufferedConnection, int] = {}
        self._partial: dict[BufferedConnection, int] = {}
        """Oldest first."""
        self._waiting: dict[BufferedConnection, None] = {}
        """Connections in `_partial` that are not read, oldest first."""
        self._checked: dict[BufferedConnection, int] = {}
        self._check_timer: asyncio.TimerHandle | None = None
        self._slow: dict[BufferedConnection, int] = {}
        """Of each partial frame, at the last check of all."""
        self._frame_timer: asyncio.TimerHandle | None = None
        self._tiny_reads: Counter[BufferedConnection] = Counter()
        """Since the last completed frame."""
        self._resting: deque[BufferedConnection] = deque()
        """Connections whose frames come byte by byte, next first."""
        self._lines = SeldomLines(_LOG_INTERVAL_S)

    def admit(self, descriptor: int) -> bool:
        """Count a connection until `release`; False at the limit. A high descriptor means that few are free."""
        limits = self._limits
        if limits.max_connections and self._count >= limits.max_connections:
            self._note("maxConnections", f"there are {self._count} already")
            return False
        limit = descriptor_limit()
        # With a limit of 1,024 connections get descriptors below 768; with 65,536, below 65,280.
        if limit is not None and descriptor >= limit - min(limits.reserved_descriptors, limit // 4):
            self._note("reservedDescriptors", f"{descriptor} of {limit} descriptors are in use")
            return False
        self._count += 1
        return True

    def release(self) -> None:
        self._count -= 1

    def is_congested(self, size: int) -> bool:
        limits = self._limits
        # With 16 counted connections and 64 MiB for all, each may have 64 / (2 * 16) = 2 MiB.
        share = limits.max_unsent_bytes // (2 * len(self._unsent)) if self._unsent else limits.max_unsent_bytes
        return size >= min(limits.max_unsent_bytes_per_connection, max(share, UNCOUNTED))

    def unsent(self, connection: BufferedConnection, size: int) -> None:
        """Count unsent bytes, 0 for UNCOUNTED or fewer; may close connections."""
        self.unsent_total += size - self._unsent.pop(connection, 0)
        if not size:
            return
        self._unsent[connection] = size
        limits = self._limits
        if size > limits.max_unsent_bytes_per_connection + _EXCESS:
            self._close_unsent(connection, "maxUnsentBytesPerConnection")
        while self.unsent_total > limits.max_unsent_bytes and len(self._unsent) > 1:
            # In whole seconds: of connections that stopped alike, the one with the most bytes is closed.
            slowest = max(self._unsent, key=lambda one: (one.unsent_ms // 1000, self._unsent[one]))
            self._close_unsent(slowest, "maxUnsentBytes")

    def _close_unsent(self, connection: BufferedConnection, key: str) -> None:
        size = self._unsent.pop(connection)
        self._note(
            key, f"{connection.peer} does not read: {size} of {self.unsent_total} unsent bytes are for it", closed=True
        )
        self.unsent_total -= size
        connection.abort()

    def partial(self, connection: BufferedConnection, size: int) -> None:
        """Count the bytes of a partial frame, 0 when it is complete; may pause connections."""
        self.partial_total += size - self._partial.get(connection, 0)
        if size:
            self._partial[connection] = size
            if self._frame_timer is None:
                self._schedule_frame_check()
            # One connection is always read.
            if (
                self.partial_total > self._limits.max_partial_frame_bytes
                and len(self._partial) - len(self._waiting) > 1
            ):
                self._waiting[connection] = None
                connection.wait(True)
                self._schedule_check()
        elif self._partial.pop(connection, None) is not None:
            self._checked.pop(connection, None)
            self._slow.pop(connection, None)
            self._waiting.pop(connection, None)
            self._resume()

    def on_read(self, connection: BufferedConnection, received: int, size: int, *, is_complete: bool) -> None:
        """Count the bytes of incomplete or undecoded frames after a read; `received` is 0 if they are older."""
        if is_complete:
            self._tiny_reads.pop(connection, None)
            self.partial(connection, 0)
        elif 0 < received < TINY_READ_SIZE:
            self._tiny_reads[connection] += 1
            if self._tiny_reads[connection] > MAX_TINY_READS:
                self.trickles(connection)
        self.partial(connection, size)

    def trickles(self, connection: BufferedConnection) -> None:
        """Let a connection rest, since thousands of tiny reads would delay all others."""
        connection.rest(True)
        if not self._resting:
            asyncio.get_running_loop().call_later(REST_S, self._end_rests)
        self._resting.append(connection)

    def _end_rests(self) -> None:
        for _ in range(min(len(self._resting), RESTS_ENDED)):
            self._resting.popleft().rest(False)
        if self._resting:
            asyncio.get_running_loop().call_later(REST_S, self._end_rests)

    def forget(self, connection: BufferedConnection) -> None:
        self.unsent(connection, 0)
        self.partial(connection, 0)
        self._tiny_reads.pop(connection, None)

    def _resume(self) -> None:
        """Read waiting connections while there is room, and one in any case."""
        for connection in list(self._waiting):
            is_idle = len(self._partial) == len(self._waiting)
            if not is_idle and self.partial_total > self._limits.max_partial_frame_bytes:
                break
            del self._waiting[connection]
            connection.wait(False)

    def _schedule_check(self) -> None:
        if self._check_timer is None:
            self._check_timer = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._check)

    def _check(self) -> None:
        """Close slow connections with a partial frame while others wait."""
        self._check_timer = None
        if not self._waiting:
            self._checked.clear()
            return
        for connection, size in list(self._partial.items()):
            if connection in self._waiting or connection.is_sliced:
                self._checked.pop(connection, None)  # it is not read, so it cannot grow
                continue
            before = self._checked.get(connection)
            self._checked[connection] = size
            # At MIN_RATE, a frame of 16 MiB takes four minutes.
            if before is not None and size - before < MIN_RATE * CHECK_INTERVAL_S:
                self._note(
                    "maxPartialFrameBytes",
                    f"{connection.peer} is slow to complete a frame, of which it sent {size} bytes; others wait for it",
                    closed=True,
                )
                connection.abort()
                self.forget(connection)
        if self._waiting:
            self._schedule_check()

    def _schedule_frame_check(self) -> None:
        loop = asyncio.get_running_loop()
        self._frame_timer = loop.call_later(FRAME_CHECK_INTERVAL_S, self.close_slow_frames)

    def close_slow_frames(self) -> None:
        """Close the connections whose partial frame has hardly grown since the last check."""
        self._frame_timer = None
        before, self._slow = self._slow, {}
        slow: list[BufferedConnection] = []
        for connection, size in self._partial.items():
            if connection in self._waiting or connection.is_sliced:
                continue  # it is not read, so its frame cannot grow
            # 7,680 bytes in 30 seconds.
            if connection in before and size - before[connection] < MIN_FRAME_RATE * FRAME_CHECK_INTERVAL_S:
                slow.append(connection)
            else:
                self._slow[connection] = size
        self._close_slow(slow)
        if self._partial:
            self._schedule_frame_check()

    def _close_slow(self, slow: list[BufferedConnection]) -> None:
        """Close some connections in each iteration: there may be thousands."""
        for connection in slow[:CLOSED_AT_ONCE]:
            if connection in self._partial:
                since = f"hardly any in the last {FRAME_CHECK_INTERVAL_S:g} s"
                what = f"{self._partial[connection]} bytes of a frame, {since}"
                self._note("slowFrame", f"{connection.peer} has sent {what}", closed=True)
                connection.abort()
                self.forget(connection)
        if len(slow) > CLOSED_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._close_slow, slow[CLOSED_AT_ONCE:])

    def _note(self, key: str, why: str, *, closed: bool = False) -> None:
        """Count a connection that is closed or not accepted; log each limit once a second."""
        self.closed[key] += 1
        done = "closed" if closed else "not accepted"
        self._lines.log(logger, logging.WARNING, key, "connection %s (%s): %s", done, key, why)
