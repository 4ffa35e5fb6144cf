"""BrokerFaults: which brokers are slow or failing, and for how long producers avoid them.

Every response reports the latency of its broker and makes the broker unavailable for a time that grows with it:

    latency at least, ms       50   100     550    1000     2000     3000    15,000
    unavailable for, ms         0     0  30,000  60,000  120,000  180,000   600,000

A failure counts as a latency of 30 s. Producers send only to queues of available brokers. If a topic has none, they
rotate over the better half of all brokers with a recorded latency: available ones first, then faster ones.

No I/O: the time is passed in. Corresponds to `LatencyFaultToleranceImpl` of Apache RocketMQ 4.9.8, whose figures these
are. As there, producers use it only if it is enabled (sendLatencyFaultEnable).
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

LATENCY_MAX_MS = (50, 100, 550, 1000, 2000, 3000, 15_000)
NOT_AVAILABLE_DURATION_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILURE_LATENCY_MS = 30_000


class _Fault(msgspec.Struct):
    latency_ms: float
    """The latency of the latest response."""
    available_from_ms: float
    """The time from which the broker is available again."""


class BrokerFaults:
    """Latest latency of each broker, by broker name, with times of any monotonic clock."""

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}
        self._rotation = 0

    def record_response(self, broker_name: str, latency_ms: float, now_ms: float, *, failed: bool = False) -> None:
        """Record how long the broker took to respond or to fail."""
        # The column of the table: the last one whose latency is not above the recorded one.
        step = bisect_right(LATENCY_MAX_MS, FAILURE_LATENCY_MS if failed else latency_ms)
        duration_ms = NOT_AVAILABLE_DURATION_MS[step - 1] if step else 0
        self._faults[broker_name] = _Fault(latency_ms, now_ms + duration_ms)

    def is_available(self, broker_name: str, now_ms: float) -> bool:
        """Return whether producers may use the broker; true if it has no record."""
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault.available_from_ms

    def least_faulty(self, now_ms: float) -> str | None:
        """Return a broker of the better half, in rotation; None if none has a record."""

        def badness(broker_name: str) -> tuple[bool, float, float]:
            fault = self._faults[broker_name]
            return not self.is_available(broker_name, now_ms), fault.latency_ms, fault.available_from_ms

        # Sorting costs little: a cluster has few brokers, and this runs only if none of them is available.
        best = sorted(self._faults, key=badness)[: max(1, len(self._faults) // 2)]
        if not best:
            return None
        self._rotation += 1
        return best[self._rotation % len(best)]

    def forget(self, broker_name: str) -> None:
        """Remove a broker that has no write queue any more."""
        self._faults.pop(broker_name, None)
