"""InFlightDeliveries: the deliveries that the application is consuming, with their timeout and statistics.

Concurrently, a delivery in flight for longer than `consume_timeout_ms` returns to the broker, so that one message does
not hold the committed offset forever; a later completion has no effect, and a plain function keeps its thread. In order
there is no timeout, since later messages must not overtake.

Corresponds to `ProcessQueue.cleanExpiredMsg` of Apache RocketMQ 4.9.8. Deliberate difference: the timeout is exact;
Apache checks once per timeout, so it takes up to twice as long.
"""

from __future__ import annotations

import asyncio
import logging

from rucola.client.clock import precise_monotonic_ms
from rucola.client.consumer.assigned_queue import Delivery
from rucola.client.consumer.retry import EXPIRED_DELAY_LEVEL, ConsumeRetry
from rucola.client.stats import ConsumeCounters, TopicConsumeCounters
from rucola.message import MessageExt

logger = logging.getLogger(__name__)


class InFlightDeliveries:
    """The deliveries in flight of one consumer. Belongs to one event loop."""

    def __init__(self, retry: ConsumeRetry, counters: ConsumeCounters, timeout_ms: float) -> None:
        self._retry = retry
        self._counters = counters
        self._timeout_ms = timeout_ms
        self._deliveries: dict[Delivery, tuple[float, TopicConsumeCounters]] = {}
        """The start and the counters of each delivery, oldest first."""

    def begin(self, delivery: Delivery) -> None:
        counters = self._counters.of(delivery.assigned.queue.topic)
        counters.in_flight += len(delivery.messages)
        self._deliveries[delivery] = precise_monotonic_ms(), counters

    def end(self, delivery: Delivery, completed: int | None) -> bool:
        """Remove a delivery and count its outcome, unless `completed` is None; return False if it timed out before."""
        entry = self._deliveries.pop(delivery, None)
        if entry is None:
            return False
        begin_ms, counters = entry
        counters.end_delivery(len(delivery.messages), completed, precise_monotonic_ms() - begin_ms)
        return True

    def messages(self) -> list[MessageExt]:
        """The messages in flight, oldest delivery first."""
        return [message for delivery in self._deliveries for message in delivery.messages]

    async def watch_timeouts(self) -> None:
        """Retry deliveries that time out; runs until it is cancelled."""
        while True:
            # The oldest delivery times out first, since all have the same timeout.
            delivery = next(iter(self._deliveries), None)
            begin_ms = precise_monotonic_ms() if delivery is None else self._deliveries[delivery][0]
            left_ms = begin_ms + self._timeout_ms - precise_monotonic_ms()
            if delivery is None or left_ms > 0:
                await asyncio.sleep(left_ms / 1000)
                continue
            self.end(delivery, 0)
            logger.warning(
                "%s: messages from offset %d on were not consumed within %d s and go back to the broker",
                delivery.assigned.queue, delivery.messages[0].queue_offset, self._timeout_ms / 1000,
            )  # fmt: skip
            await self._retry.retry(delivery, EXPIRED_DELAY_LEVEL)
