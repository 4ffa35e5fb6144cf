"""Durations of puts: their distribution and percentiles in the last complete minute, and their maximum.

Only puts of a millisecond or more are recorded one by one. Waits for SYNC_FLUSH or SYNC_MASTER are included.

Corresponds to the put times of `StoreStatsService` of Apache RocketMQ 4.9.8. Deliberate difference: percentiles are
exact to the millisecond, where Apache interpolates within buckets.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

RANGES: Final = (
    (0, "[<=0ms]"), (9, "[0~10ms]"), (49, "[10~50ms]"), (99, "[50~100ms]"), (199, "[100~200ms]"), (499, "[200~500ms]"),
    (999, "[500ms~1s]"), (1999, "[1~2s]"), (2999, "[2~3s]"), (3999, "[3~4s]"), (4999, "[4~5s]"), (9999, "[5~10s]"),
)  # fmt: skip
"""Longest duration of each range in ms, and Apache's name of the range."""
LONGEST_RANGE: Final = "[10s~]"
COARSE_FROM_MS: Final = 1000
COARSE_MS: Final = 100
"""Longer durations are rounded down to multiples of this, which bounds the table."""


class PutDurations:
    def __init__(self) -> None:
        self.max_ms = 0
        self._current: Counter[int] = Counter()
        self._last: Counter[int] = Counter()
        self._total_at_end = 0

    def record(self, duration_ms: int, count: int = 1) -> None:
        """Record puts of a millisecond or more. A negative duration, after a step of the clock, is ignored."""
        if duration_ms <= 0:
            return
        self.max_ms = max(self.max_ms, duration_ms)
        if duration_ms > COARSE_FROM_MS:
            duration_ms -= duration_ms % COARSE_MS
        self._current[duration_ms] += count

    def end_minute(self, put_count: int) -> None:
        fast = put_count - self._total_at_end - self._current.total()
        self._last, self._current, self._total_at_end = self._current, Counter(), put_count
        self._last[0] = max(0, fast)

    def percentile_ms(self, share: float) -> int:
        """Duration that `share` of the puts of the last minute did not exceed; 0 without puts."""
        needed = share * self._last.total()
        for duration_ms in sorted(self._last):
            needed -= self._last[duration_ms]
            if needed <= 0:
                return duration_ms
        return 0

    def distribution(self) -> str:
        counts: Counter[str] = Counter()
        for duration_ms, count in self._last.items():
            counts[next((name for longest_ms, name in RANGES if duration_ms <= longest_ms), LONGEST_RANGE)] += count
        return "".join(f"{name}:{counts[name]} " for name in (*(name for _, name in RANGES), LONGEST_RANGE))
