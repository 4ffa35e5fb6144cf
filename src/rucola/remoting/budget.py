"""Budget: what one connection may use of its server, so that no peer harms the others.

    quantity    used by a peer that       one connection: not read (Pause)       all connections
    bytes out   does not read its         OUTPUT at maxUnsentBytesPerConnection  maxUnsentBytes: the one that has not
                responses                                                        sent for the longest is closed
    bytes in    sends frames and does     INPUT for a while, if they come byte   maxPartialFrameBytes: INPUT for all but
                not complete them         by byte; the frame limit               one; those that are slow are closed
    work        sends many requests, or   WORK, until its turn (`turns`)         the same
                costly headers

A connection is read while nothing pauses it. In a pause it keeps what was received; its held pulls wait during OUTPUT.
With many connections in OUTPUT, each has its share of half of the total. Below the totals slow peers keep their
connections, unless a frame grows by less than MIN_FRAME_RATE, which idle times do not detect.

Not counted: bodies that stay in place (`large_writes`), up to UNCOUNTED unsent bytes, and frames that one read
completes, so that nearly all requests bypass this module.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from rucola import settings
from rucola.outages import log_rate_limited
from rucola.protocol.frame import MAX_FRAME_SIZE
from rucola.settings import INT_MAX, Bytes, Count, Range
from rucola.slices import in_slices
from rucola.system_calls import descriptor_limit

logger = logging.getLogger(__name__)

UNCOUNTED: Final = 64 * 1024
"""Unsent bytes of a connection that are not counted."""
MIN_RATE: Final = 64 * 1024
"""Bytes per second by which a partial frame must grow while other connections wait."""
CHECK_INTERVAL_S: Final = 1.0
MIN_FRAME_RATE: Final = 256
"""Bytes per second by which a partial frame must grow otherwise."""
FRAME_CHECK_INTERVAL_S: Final = 30.0
"""Apache's clients time out after three seconds."""
TINY_READ_SIZE: Final = 256
MAX_TINY_READS: Final = 4
"""Tiny reads of a frame before a pause; a client may write length, header and body separately."""
RELEASE_INTERVAL_S: Final = 0.005
RELEASED: Final = 16
"""Connections in INPUT that are read again in RELEASE_INTERVAL_S, together 0.3 ms."""
_UNCHECKED: Final = -MAX_FRAME_SIZE
_EXCESS: Final = 2 * MAX_FRAME_SIZE
"""Unsent bytes beyond the limit at which a connection is closed: its senders ignore the pause."""


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


class Pause(enum.Enum):
    """Why a connection is not read."""

    OUTPUT = enum.auto()
    """Its peer does not read."""
    INPUT = enum.auto()
    """Its frame is incomplete, and others come first."""
    WORK = enum.auto()
    """It waits for its turn."""


class BudgetedConnection(Protocol):
    """The part of a Connection that this module requires."""

    peer: str

    @property
    def unsent_ms(self) -> int:
        """Milliseconds since the last byte was sent."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Process what was kept, and read again."""

    def abort(self) -> None:
        """Close at once; unsent bytes are dropped."""


class Budget:
    """One connection's. That of a client (`server` is None) counts no bytes, and pauses for WORK only."""

    __slots__ = ("_server", "bytes_in", "bytes_out", "connection", "paused", "tiny_reads")

    def __init__(self, connection: BudgetedConnection, server: ServerBudget | None) -> None:
        self.connection = connection
        self._server = server
        self.bytes_out = 0
        self.bytes_in = 0
        self.tiny_reads = 0
        """Since the last complete frame."""
        self.paused: frozenset[Pause] = frozenset()

    def pause(self, reason: Pause) -> None:
        self.paused |= {reason}
        self.connection.pause()

    def resume(self, reason: Pause) -> None:
        if reason in self.paused:
            self.paused -= {reason}
            if not self.paused:
                self.connection.resume()

    def sent(self, unsent: int) -> None:
        """Count what remains unsent, 0 for UNCOUNTED or less; may pause this connection, or close some."""
        if self._server is not None:
            self._server.count_out(self, unsent)
            if Pause.OUTPUT not in self.paused and self._server.is_full(unsent):
                self.pause(Pause.OUTPUT)

    def received(self, count: int, partial: int, *, is_complete: bool) -> None:
        """Count what is incomplete or undecoded after a read of `count` bytes, 0 if they are older; may pause this."""
        if (server := self._server) is None:
            return
        if is_complete:
            self.tiny_reads = 0
            server.count_in(self, 0)
        elif 0 < count < TINY_READ_SIZE:
            self.tiny_reads += 1
        server.count_in(self, partial)
        # One that is paused already is not read, and what it keeps does not wait for the frames of others.
        if partial and not self.paused and (self.tiny_reads > MAX_TINY_READS or server.must_wait()):
            server.wait(self)

    def close(self) -> None:
        if self._server is not None:
            self._server.forget(self)


class ServerBudget:
    """The totals of one server's connections on all ports. `on_writable` is called after a pause for OUTPUT."""

    def __init__(
        self, limits: ConnectionLimits, on_writable: Callable[[BudgetedConnection], None] = lambda connection: None
    ) -> None:
        self.on_writable = on_writable
        self.closed: Counter[str] = Counter()
        """Connections closed or not accepted, by the key of the limit."""
        self.bytes_out = 0
        self.bytes_in = 0
        self._limits = limits
        self._count = 0
        self._out: set[Budget] = set()
        self._in: dict[Budget, int] = {}
        """The size of each partial frame at the last check, or _UNCHECKED."""
        self._waiting: OrderedDict[Budget, None] = OrderedDict()
        """In INPUT, next first."""
        self._is_releasing = self._is_short = False
        self._check_timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None

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

    def forget(self, budget: Budget) -> None:
        self.count_out(budget, 0)
        self.count_in(budget, 0)
        self._waiting.pop(budget, None)

    # Bytes out.

    def is_full(self, unsent: int) -> bool:
        limits = self._limits
        # With 16 counted connections and 64 MiB for all, each may have 64 / (2 * 16) = 2 MiB.
        share = limits.max_unsent_bytes // (2 * len(self._out)) if self._out else limits.max_unsent_bytes
        return unsent >= min(limits.max_unsent_bytes_per_connection, max(share, UNCOUNTED))

    def count_out(self, budget: Budget, size: int) -> None:
        self.bytes_out += size - budget.bytes_out
        budget.bytes_out = size
        if not size:
            self._out.discard(budget)
            return
        self._out.add(budget)
        limits = self._limits
        if size > limits.max_unsent_bytes_per_connection + _EXCESS:
            self._close(budget, "maxUnsentBytesPerConnection", f"does not read {size} bytes")
        while self.bytes_out > limits.max_unsent_bytes and len(self._out) > 1:
            # In whole seconds: of connections that stopped alike, the one with the most bytes is closed.
            slowest = max(self._out, key=lambda one: (one.connection.unsent_ms // 1000, one.bytes_out))
            why = f"does not read {slowest.bytes_out} of {self.bytes_out} unsent bytes"
            self._close(slowest, "maxUnsentBytes", why)

    # Bytes in.

    def count_in(self, budget: Budget, size: int) -> None:
        self.bytes_in += size - budget.bytes_in
        budget.bytes_in = size
        if not size:
            self._in.pop(budget, None)
            return
        self._in.setdefault(budget, _UNCHECKED)
        if self._check is None and self._check_timer is None:
            self._schedule_check()

    def must_wait(self) -> bool:
        """Whether a partial frame waits for others; one connection is always read."""
        if self.bytes_in <= self._limits.max_partial_frame_bytes or len(self._in) - len(self._waiting) <= 1:
            return False
        if not self._is_short:
            self._is_short = True
            self._schedule_check()
        return True

    def wait(self, budget: Budget) -> None:
        budget.pause(Pause.INPUT)
        self._waiting[budget] = None
        if not self._is_releasing:
            self._is_releasing = True
            asyncio.get_running_loop().call_later(RELEASE_INTERVAL_S, self._release)

    def _release(self) -> None:
        for _ in range(min(len(self._waiting), RELEASED)):
            is_read = len(self._in) > len(self._waiting)
            if self.bytes_in > self._limits.max_partial_frame_bytes and is_read:
                break
            self._waiting.popitem(last=False)[0].resume(Pause.INPUT)
        self._is_releasing = bool(self._waiting)
        if self._waiting:
            asyncio.get_running_loop().call_later(RELEASE_INTERVAL_S, self._release)

    def _schedule_check(self) -> None:
        """Check frames after an interval, which is short while connections wait for memory."""
        if self._check_timer is not None:
            self._check_timer.cancel()
        loop = asyncio.get_running_loop()

        def check() -> None:
            self._check_timer = None
            self._check = loop.create_task(in_slices(self.close_slow_frames()))

        self._check_timer = loop.call_later(CHECK_INTERVAL_S if self._is_short else FRAME_CHECK_INTERVAL_S, check)

    def close_slow_frames(self) -> Generator[None, None, None]:
        """Close the connections whose partial frame has hardly grown since the last check, in small steps."""
        is_short = self._is_short
        # 65,536 bytes in a second, or 7,680 in 30.
        growth = MIN_RATE * CHECK_INTERVAL_S if is_short else MIN_FRAME_RATE * FRAME_CHECK_INTERVAL_S
        for budget in list(self._in):
            yield
            before = self._in.get(budget)
            if before is None:
                continue
            if budget.paused and (is_short or budget.paused != {Pause.INPUT}):
                self._in[budget] = _UNCHECKED  # it is not read, so its frame cannot grow
            elif budget.bytes_in - before >= growth:
                self._in[budget] = budget.bytes_in
            else:
                key = "maxPartialFrameBytes" if is_short else "slowFrame"
                self._close(budget, key, f"has sent {budget.bytes_in} bytes of a frame, hardly any of them lately")
        self._check = None
        self._is_short = self.bytes_in > self._limits.max_partial_frame_bytes and bool(self._waiting)
        if self._in:
            self._schedule_check()

    def _close(self, budget: Budget, key: str, why: str) -> None:
        self._note(key, f"{budget.connection.peer} {why}", closed=True)
        self.forget(budget)
        budget.connection.abort()

    def _note(self, key: str, why: str, *, closed: bool = False) -> None:
        self.closed[key] += 1
        done = "closed" if closed else "not accepted"
        log_rate_limited(logger, logging.WARNING, key, "connection %s (%s): %s", done, key, why)
