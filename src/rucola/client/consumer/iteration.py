"""Iterations: deliveries to `async for` loops, one message at a time.

1. in flight      the loop's body has it. Requesting the next message, or `ack`, completes it; `reconsume_later` retries
                  it.
2. abandoned      the loop ended without completing it (`break`, an exception, a cancellation). It is requeued at the
                  front of its queue for the next or another iteration, with its `reconsume_times`, since it may not
                  have failed. Until it is delivered again, `ack` and `reconsume_later` still work.
3. settled        completed or retried; further calls have no effect.

If the consumer closes before a message is completed, the next owner of its queue gets it, and a warning is logged: a
loop that ends by `break` without `ack` would otherwise silently start with the same message in every run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from rucola.client.consumer.assigned_queue import Delivery
from rucola.client.consumer.in_flight_deliveries import InFlightDeliveries
from rucola.client.consumer.ready_queue import ReadyQueue
from rucola.client.consumer.retry import ConsumeRetry
from rucola.client.values import Values
from rucola.errors import InvalidBody
from rucola.message import MessageExt

logger = logging.getLogger(__name__)


class Iterations:
    """The running iterations of one consumer and their messages. Belongs to one event loop."""

    def __init__(
        self, ready_queue: ReadyQueue, in_flight: InFlightDeliveries, retry: ConsumeRetry, values: Values
    ) -> None:
        self.count = 0
        self._ready_queue = ready_queue
        self._in_flight = in_flight
        self._retry = retry
        self._values = values
        self._delivered: dict[int, Delivery] = {}
        """By the `id` of their message, since an application may change a message's fields."""
        self._abandoned: dict[int, Delivery] = {}
        """By the `id` of their message, until they are delivered again or settled."""

    async def messages(
        self, check: Callable[[], None], idle_timeout_ms: float | None
    ) -> AsyncGenerator[MessageExt, None]:
        """Yield messages until closed, or until none has arrived for `idle_timeout_ms`; `check` is called first."""
        check()
        self.count += 1
        try:
            # The event loop closes abandoned generators in a separate task. Let that run first, so that this iteration
            # starts with their messages.
            for _ in range(2):
                await asyncio.sleep(0)
            get_nowait = self._ready_queue.get_nowait
            while (delivery := get_nowait() or await self._next(idle_timeout_ms)) is not None:
                message = delivery.messages[0]
                if self._values.is_used and not await self._decode(delivery):
                    continue
                self._delivered[id(message)] = delivery
                if self._abandoned:
                    self._abandoned.pop(id(message), None)
                self._in_flight.begin(delivery)
                try:
                    yield message
                except BaseException:
                    self._abandon(message)
                    raise
                self.ack(message)
        finally:
            self.count -= 1

    def ack(self, message: MessageExt) -> None:
        """Complete a message. No effect if it is settled."""
        if (delivery := self._settle(message)) is not None:
            self._in_flight.end(delivery, 1)
            self._ready_queue.complete(delivery)

    async def reconsume_later(self, message: MessageExt, delay_level: int) -> None:
        """Retry a message. No effect if it is settled."""
        if (delivery := self._settle(message)) is not None:
            self._in_flight.end(delivery, 0)
            await self._retry.retry(delivery, delay_level)

    def unacknowledged(self) -> list[MessageExt]:
        """Return the messages in flight or abandoned, which the group receives again if the consumer closes now."""
        deliveries = [*self._delivered.values(), *self._abandoned.values()]
        return [message for delivery in deliveries for message in delivery.incomplete]

    async def _decode(self, delivery: Delivery) -> bool:
        """Decode a message's value; if its body is invalid, retry the message and return False."""
        try:
            self._values.decode(delivery.messages[0])
        except InvalidBody as error:
            logger.warning("%s; it is retried", error)
            self._in_flight.begin(delivery)
            self._in_flight.end(delivery, 0)
            await self._retry.retry(delivery)
            return False
        return True

    async def _next(self, idle_timeout_ms: float | None) -> Delivery | None:
        """Wait for the next delivery; None if the consumer is closed or none arrived in time."""
        try:
            async with asyncio.timeout(None if idle_timeout_ms is None else idle_timeout_ms / 1000):
                return await self._ready_queue.get()
        except TimeoutError:
            return None

    def _settle(self, message: MessageExt) -> Delivery | None:
        """Return the message's delivery to settle; None if already settled or delivered again."""
        delivery = self._delivered.pop(id(message), None)
        if delivery is None and (delivery := self._abandoned.pop(id(message), None)) is not None:
            if not self._ready_queue.reclaim(delivery):
                return None
            self._in_flight.begin(delivery)
        return delivery

    def _abandon(self, message: MessageExt) -> None:
        if (delivery := self._delivered.pop(id(message), None)) is not None and self._in_flight.end(delivery, None):
            self._ready_queue.requeue(delivery)
            self._abandoned[id(message)] = delivery
            # Drop entries whose queue was revoked or reset, so that the table cannot grow.
            self._abandoned = {key: abandoned for key, abandoned in self._abandoned.items() if abandoned.incomplete}
