"""Pace and progress of the transfer of a log to a slave that catches up."""

from __future__ import annotations

from collections.abc import Callable

_BURST_S = 0.005
"""Shorter delays are added up: a timer of the event loop is not more exact."""


class Pace:
    """Delays that hold transfers to `rate` bytes per second. `clock` counts seconds monotonically."""

    def __init__(self, rate: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._paid_until = clock()

    def delay_s(self, size: int) -> float:
        """Return the time to wait after a transfer of `size` bytes; earlier pauses are not credited."""
        now = self._clock()
        self._paid_until = max(self._paid_until, now) + size / self._rate
        delay_s = self._paid_until - now
        return delay_s if delay_s >= _BURST_S else 0


class TransferProgress:
    """Progress of a slave since its transfer started at a physical offset."""

    def __init__(self, begin: int, now_s: float) -> None:
        self._begin = begin
        self._last = (begin, now_s)

    def text(self, reported: int, end: int, now_s: float) -> str:
        """Return the progress and the rate since the last call as text; empty for a slave that has everything."""
        last, last_s = self._last
        self._last = (reported, now_s)
        if reported >= end:
            return ""
        # A slave that is compared first reports an offset before the begin.
        total, done = end - self._begin, max(0, reported - self._begin)
        rate = max(0, reported - last) / max(now_s - last_s, 0.001)
        left = f", about {(end - reported) / rate:.0f} s left" if rate else ""
        return f"; {100 * done // max(1, total)} % of the {total} bytes from {self._begin} on, {rate:.0f} bytes/s{left}"
