"""BrokerFaults: which brokers are slow or failing, and for how long producers avoid them.

Every response makes its broker unavailable for a time that grows with the latency; a failure counts as 30 s:

    latency at least, ms       50   100     550    1000     2000     3000    15,000
    unavailable for, ms         0     0  30,000  60,000  120,000  180,000   600,000

If a topic has no available broker, producers rotate over the better half of all recorded brokers: available ones first,
then faster ones. No I/O: the time is passed in.

Corresponds to `LatencyFaultToleranceImpl` of Apache RocketMQ 4.9.8, whose figures these are. As there, it must be
enabled (sendLatencyFaultEnable).
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

LATENCY_MAX_MS = (50, 100, 550, 1000, 2000, 3000, 15_000)
NOT_AVAILABLE_DURATION_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILURE_LATENCY_MS = 30_000


class _Fault(msgspec.Struct):
    latency_ms: float
    available_from_ms: float


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

        best = sorted(self._faults, key=badness)[: max(1, len(self._faults) // 2)]
        if not best:
            return None
        self._rotation += 1
        return best[self._rotation % len(best)]

    def forget(self, broker_name: str) -> None:
        """Remove a broker that has no write queue any more."""
        self._faults.pop(broker_name, None)
