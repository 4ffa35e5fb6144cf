"""ReadyQueue: the queues with messages that wait for the application, each in its turn.

Fetcher puts messages into their queue; listeners and iterations take them out, one at a time or several of one queue:

    side by side    a queue stands in the line while a message of it waits, so many can have messages of it in hand
    in order        a queue leaves the line with what is taken and comes back when that is done, so that one alone
                    has messages of it in hand, and the next follow after these

In order, a queue whose lock is not held (see `locks`) is not given out; whoever made the line is told instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from rucola.client.consumer.assigned_queue import AssignedQueue, Delivery
from rucola.message import MessageExt


class ReadyQueue:
    """What waits to be taken. Belongs to one event loop.

    `may_take` is asked of each queue before something of it is given out; where it says no the queue is held back
    until `come_back`, which is for the one who answered to call.
    """

    def __init__(self, *, in_order: bool, may_take: Callable[[AssignedQueue], bool]) -> None:
        self._in_order = in_order
        self._may_take = may_take
        self._queues: deque[AssignedQueue] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._is_closed = True

    def open(self) -> None:
        """Begin, with nothing waiting."""
        self._queues.clear()
        self._is_closed = False

    def put(self, own: AssignedQueue, messages: Iterable[MessageExt]) -> None:
        """More messages of a queue wait, behind those that do already."""
        own.waiting.extend(messages)
        self._offer(own)

    def take_now(self, max_count: int = 1) -> Delivery | None:
        """At most so many messages of the queue whose turn it is; None where nothing waits."""
        while self._queues and not self._is_closed:
            own = self._queues.popleft()
            own.is_offered = False
            if own.is_given_up or not own.waiting:
                continue
            if not self._may_take(own):
                own.is_held_back = True
                continue
            waiting = own.waiting
            if max_count == 1:
                delivery = Delivery(own, [waiting.popleft()])
            else:
                delivery = Delivery(own, [waiting.popleft() for _ in range(min(max_count, len(waiting)))])
            if self._in_order:
                own.is_held_back = True
                own.idle.clear()
            elif waiting:
                self._offer(own)
            return delivery
        return None

    async def take(self, max_count: int = 1) -> Delivery | None:
        """As `take_now`, waiting for something to come; None once the line is closed."""
        while (delivery := self.take_now(max_count)) is None and not self._is_closed:
            taker = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                taker.cancel()
                with suppress(ValueError):
                    self._takers.remove(taker)
                if not taker.cancelled():
                    self._wake()  # it was this one's turn; now it is the next one's
                raise
        return delivery

    def leave(self, delivery: Delivery) -> None:
        """What was taken is done, as far as it will be here: in order, what follows may be taken now."""
        if self._in_order:
            delivery.own.idle.set()
            self.come_back(delivery.own)

    def put_back(self, delivery: Delivery, messages: Iterable[MessageExt]) -> None:
        """These messages were not done: they wait in front again; in order, held back until `come_back`."""
        own = delivery.own
        if delivery.progress is own.progress and not own.is_given_up:
            own.waiting.extendleft(reversed(list(messages)))
        own.idle.set()

    def come_back(self, own: AssignedQueue) -> None:
        """The queue is held back no more."""
        own.is_held_back = False
        self._offer(own)

    def requeue(self, delivery: Delivery) -> None:
        """Put a delivery's unfinished messages back in front of their queue, from which they may be taken at once."""
        self.put_back(delivery, delivery.not_done)
        self.come_back(delivery.own)

    def take_again(self, delivery: Delivery) -> bool:
        """Take the message of a requeued delivery out again.

        False if it does not wait any more: it was taken, or its queue was reset or given up.
        """
        own, message = delivery.own, delivery.messages[0]
        if delivery.progress is not own.progress or own.is_given_up:
            return False
        index = next((index for index, waiting in enumerate(own.waiting) if waiting is message), None)
        if index is None:
            return False
        del own.waiting[index]
        if self._in_order:
            if own.is_offered:
                own.is_offered = False
                self._queues.remove(own)
            own.is_held_back = True
            own.idle.clear()
        return True

    def close(self) -> None:
        """Give out nothing more; whoever waits is told so."""
        self._is_closed = True
        for taker in self._takers:
            if not taker.done():
                taker.set_result(None)

    def _offer(self, own: AssignedQueue) -> None:
        if own.waiting and not own.is_offered and not own.is_held_back:
            own.is_offered = True
            self._queues.append(own)
            self._wake()

    def _wake(self) -> None:
        while self._takers and self._queues:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                break
