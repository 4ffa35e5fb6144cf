"""The clocks of a client, in milliseconds."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the wall-clock time since 1970, as stored in messages and shown to operators."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the monotonic clock in whole milliseconds, for ages and durations."""
    return time.monotonic_ns() // 1_000_000


def precise_monotonic_ms() -> float:
    """Return the monotonic clock with fractions, for latencies that may be below one millisecond."""
    return time.monotonic() * 1000
