"""The clocks of a client, in milliseconds."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Since 1970: what stands in messages and what operators see."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Of a clock that only goes forward: for how long something took or lasts."""
    return time.monotonic_ns() // 1_000_000


def precise_monotonic_ms() -> float:
    """As `monotonic_ms`, with fractions: for what may take less than a millisecond."""
    return time.monotonic() * 1000
