"""ReadyQueue: the assigned queues with waiting messages, served in rotation.

Fetchers put messages in; the dispatcher's workers and iterations get deliveries, of one queue each:

    concurrently    a queue stays in rotation while messages of it wait, so that many deliveries of it are in flight
    in order        a queue is blocked with each delivery and unblocked when that is complete, and blocked without its
                    lock (see `queue_locks`), so that at most one delivery of it is in flight
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from rucola.client.consumer.assigned_queue import AssignedQueue, Delivery
from rucola.message import MessageExt


class ReadyQueue:
    """The waiting messages. Belongs to one event loop. If `can_deliver` is False, it calls `unblock` later."""

    def __init__(self, *, in_order: bool, can_deliver: Callable[[AssignedQueue], bool]) -> None:
        self._in_order = in_order
        self._can_deliver = can_deliver
        self._rotation: deque[AssignedQueue] = deque()
        """The queues with waiting messages that are not blocked, each once (`is_ready`)."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Callers of `get` that wait for a delivery, in order."""
        self._is_waking = False
        """Whether a waiter was woken that has not run yet; it wakes the next one."""
        self._is_closed = True

    def open(self) -> None:
        self._rotation.clear()
        self._is_waking = self._is_closed = False

    def put(self, assigned: AssignedQueue, messages: Iterable[MessageExt]) -> None:
        """Append messages to the waiting ones of their queue."""
        assigned.waiting.extend(messages)
        self._add(assigned)

    def get_nowait(self, max_count: int = 1) -> Delivery | None:
        """Return up to `max_count` messages of the next queue; None if none can be delivered."""
        while self._rotation and not self._is_closed:
            # The queue may have been revoked or reset since it was added.
            assigned = self._rotation.popleft()
            assigned.is_ready = False
            if assigned.is_revoked or not assigned.waiting:
                continue
            if self._in_order and not self._can_deliver(assigned):
                assigned.is_blocked = True
                continue
            # One at a time is the usual case, for which a comprehension would cost more.
            waiting = assigned.waiting
            if max_count == 1:
                delivery = Delivery(assigned, [waiting.popleft()])
            else:
                delivery = Delivery(assigned, [waiting.popleft() for _ in range(min(max_count, len(waiting)))])
            if self._in_order:
                assigned.is_blocked = True
                assigned.idle.clear()
            elif waiting:
                assigned.is_ready = True
                self._rotation.append(assigned)
                if self._waiters and not self._is_waking:
                    self._wake()
            return delivery
        return None

    async def get(self, max_count: int = 1) -> Delivery | None:
        """Wait for and return a delivery as `get_nowait`; None when the ready queue is closed."""
        while (delivery := self.get_nowait(max_count)) is None and not self._is_closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                waiter.cancel()
                with suppress(ValueError):
                    self._waiters.remove(waiter)
                if not waiter.cancelled():  # this waiter had been woken up: pass that on to the next one
                    self._is_waking = False
                    self._wake()
                raise
            self._is_waking = False
        self._wake()
        return delivery

    def complete(self, delivery: Delivery) -> None:
        """Complete all messages of a delivery. In order, the next messages of its queue may then be delivered."""
        delivery.complete()
        if self._in_order:
            delivery.assigned.idle.set()
            self.unblock(delivery.assigned)

    def requeue(self, delivery: Delivery) -> None:
        """Requeue incomplete messages at the front of their queue, for immediate delivery."""
        self.requeue_blocked(delivery, delivery.incomplete)
        self.unblock(delivery.assigned)

    def requeue_blocked(self, delivery: Delivery, messages: Iterable[MessageExt]) -> None:
        """Requeue messages at the front of their queue. In order, the queue stays blocked until `unblock`."""
        assigned = delivery.assigned
        if delivery.process_queue is assigned.process_queue and not assigned.is_revoked:
            assigned.waiting.extendleft(reversed(list(messages)))
        assigned.idle.set()

    def unblock(self, assigned: AssignedQueue) -> None:
        assigned.is_blocked = False
        self._add(assigned)

    def reclaim(self, delivery: Delivery) -> bool:
        """Take out a requeued message to settle it; False if it was delivered again, reset or revoked."""
        assigned, message = delivery.assigned, delivery.messages[0]
        if delivery.process_queue is not assigned.process_queue or assigned.is_revoked:
            return False
        index = next((index for index, waiting in enumerate(assigned.waiting) if waiting is message), None)
        if index is None:
            return False
        del assigned.waiting[index]
        # The requeue has unblocked the queue: block it again, as if the delivery had never been requeued.
        if self._in_order:
            if assigned.is_ready:
                assigned.is_ready = False
                self._rotation.remove(assigned)
            assigned.is_blocked = True
            assigned.idle.clear()
        return True

    def close(self) -> None:
        """Stop deliveries; every waiting `get` returns None."""
        self._is_closed = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _add(self, assigned: AssignedQueue) -> None:
        if assigned.waiting and not assigned.is_ready and not assigned.is_blocked:
            assigned.is_ready = True
            self._rotation.append(assigned)
            self._wake()

    def _wake(self) -> None:
        """Wake the first waiter, unless one is awake that will wake it."""
        while self._waiters and self._rotation and not self._is_waking:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._is_waking = True
