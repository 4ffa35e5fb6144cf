"""The clocks of a client: wall-clock time since 1970, and monotonic time with and without fractions."""

from __future__ import annotations

import time


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def precise_monotonic_ms() -> float:
    return time.monotonic() * 1000
