"""QueueRotation: round-robin choice of a topic's write queue, around slow and failing brokers.

No I/O: the time is passed in. Corresponds to `MQFaultStrategy` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from rucola.client.producer.latency_faults import BrokerFaults
from rucola.domain.queue import MessageQueue


class QueueRotation:
    """The next queue of each topic. Without `faults` only the broker of the last failure is avoided."""

    def __init__(self, faults: BrokerFaults | None) -> None:
        self._faults = faults
        self._next_index: dict[str, int] = {}
        """By topic, the index from which to look for the next queue; not reduced modulo the number of queues."""

    def record_response(self, broker_name: str, begin_ms: float, now_ms: float, *, failed: bool = False) -> None:
        """Record that the broker responded, or failed to, at `now_ms` to a request of `begin_ms`."""
        if self._faults is not None:
            self._faults.record_response(broker_name, now_ms - begin_ms, now_ms, failed=failed)

    def next(self, queues: Sequence[MessageQueue], now_ms: float, avoided_broker: str | None = None) -> MessageQueue:
        """Return the next of a topic's `queues`, whose broker is available and not `avoided_broker`.

        A topic starts at a random queue, so that producers do not all start with the same broker. Otherwise, a queue of
        the least faulty broker; if no faults are recorded, the queue in turn.
        """
        topic = queues[0].topic
        first = self._next_index.get(topic)
        if first is None:
            first = random.randrange(len(queues))  # noqa: S311 - spreads load
        for index in range(first, first + len(queues)):
            queue = queues[index % len(queues)]
            name = queue.broker_name
            if name != avoided_broker and (self._faults is None or self._faults.is_available(name, now_ms)):
                self._next_index[topic] = index + 1
                return queue
        self._next_index[topic] = first + 1
        return self._of_least_faulty_broker(queues, first, now_ms) or queues[first % len(queues)]

    def _of_least_faulty_broker(self, queues: Sequence[MessageQueue], index: int, now_ms: float) -> MessageQueue | None:
        name = None if self._faults is None else self._faults.least_faulty(now_ms)
        if self._faults is None or name is None:
            return None
        candidates = [queue for queue in queues if queue.broker_name == name]
        if not candidates:
            self._faults.forget(name)
            return None
        return candidates[index % len(candidates)]
