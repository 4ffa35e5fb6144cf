"""Faults: which brokers are slow or failing, and whose turn it is meanwhile. Pure; the time is passed in.

Each answer says how long its broker took, and puts it out of turn for a while that grows with that:

    took at least, ms    50   100     550    1000     2000     3000    15,000
    out of turn, ms       0     0  30,000  60,000  120,000  180,000   600,000

A failure counts as 30 s. While a topic has queues of brokers that are in turn, only these are sent to. Where it has
none, the better half of all brokers that have been heard of take turns, those in turn first, then the faster.

Answers to `MQFaultStrategy` and `LatencyFaultToleranceImpl` of Apache RocketMQ 4.9.8, whose figures these are. There as
here it is off unless asked for (sendLatencyFaultEnable).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from rucola.protocol.queue import MessageQueue

LATENCY_MAX_MS = (50, 100, 550, 1000, 2000, 3000, 15_000)
NOT_AVAILABLE_DURATION_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILURE_LATENCY_MS = 30_000


class _Fault(msgspec.Struct):
    latency_ms: float
    available_from_ms: float


class BrokerFaults:
    """What the last answer of each broker said, by broker name. Times are of any clock that only goes forward."""

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}
        self._turn = 0

    def answered(self, broker_name: str, latency_ms: float, now_ms: float, *, failed: bool = False) -> None:
        """The broker took so long to answer, or to fail."""
        step = bisect_right(LATENCY_MAX_MS, FAILURE_LATENCY_MS if failed else latency_ms)
        duration_ms = NOT_AVAILABLE_DURATION_MS[step - 1] if step else 0
        self._faults[broker_name] = _Fault(latency_ms, now_ms + duration_ms)

    def is_available(self, broker_name: str, now_ms: float) -> bool:
        """Whether the broker is in turn. One that was never heard of is."""
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault.available_from_ms

    def least_bad(self, now_ms: float) -> str | None:
        """A broker of the better half, each in its turn; None where none was heard of."""

        def badness(broker_name: str) -> tuple[bool, float, float]:
            fault = self._faults[broker_name]
            return not self.is_available(broker_name, now_ms), fault.latency_ms, fault.available_from_ms

        best = sorted(self._faults, key=badness)[: max(1, len(self._faults) // 2)]
        if not best:
            return None
        self._turn += 1
        return best[self._turn % len(best)]

    def forget(self, broker_name: str) -> None:
        """The broker has no queue to send to any more."""
        self._faults.pop(broker_name, None)


class QueueRotation:
    """Which queue of a topic a message goes to that nobody chose one for: each in its turn.

    `faults` None leaves out how brokers fare, except for the one that has just failed.
    """

    def __init__(self, faults: BrokerFaults | None) -> None:
        self._faults = faults
        self._turns: dict[str, int] = {}

    def answered(self, broker_name: str, begin_ms: float, now_ms: float, *, failed: bool = False) -> None:
        """The broker has answered, or failed, what was asked of it at `begin_ms`."""
        if self._faults is not None:
            self._faults.answered(broker_name, now_ms - begin_ms, now_ms, failed=failed)

    def next(self, queues: Sequence[MessageQueue], now_ms: float, avoided_broker: str | None = None) -> MessageQueue:
        """One of the queues, which are all of one topic; of another broker than `avoided_broker` where there is one."""
        topic = queues[0].topic
        turn = self._turns.get(topic)
        if turn is None:
            turn = random.randrange(len(queues))
        for index in range(turn, turn + len(queues)):
            queue = queues[index % len(queues)]
            name = queue.broker_name
            if name != avoided_broker and (self._faults is None or self._faults.is_available(name, now_ms)):
                self._turns[topic] = index + 1
                return queue
        self._turns[topic] = turn + 1
        return self._of_the_least_bad(queues, turn, now_ms) or queues[turn % len(queues)]

    def _of_the_least_bad(self, queues: Sequence[MessageQueue], turn: int, now_ms: float) -> MessageQueue | None:
        name = None if self._faults is None else self._faults.least_bad(now_ms)
        if self._faults is None or name is None:
            return None
        of_broker = [queue for queue in queues if queue.broker_name == name]
        if not of_broker:
            self._faults.forget(name)
            return None
        return of_broker[turn % len(of_broker)]
