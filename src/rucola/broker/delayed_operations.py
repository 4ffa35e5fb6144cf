"""Delayed operations: they wait for a condition, and end at their deadline in any case.

    operation                  completed when                                        tried
    held pull                  its queue has a message that it accepts               after a dispatch
    held receive by POP        its group can receive a message                       after a dispatch, or a change
    sender with SYNC_FLUSH     the log is on disk up to the end of its message       after a flush
    sender with SYNC_MASTER    the slaves have the log up to the end of its message  after a report, or a disconnect

The owner knows which operations an event concerns, and has them tried. Sets of operations take turns, one operation at
a time, and after a slice of time they continue in the next iteration of the event loop. So waking 30,000 operations
delays no other one.

Corresponds to `DelayedOperationPurgatory` of Apache Kafka. Deliberate differences: the owner keeps the operations of
each key; without threads, no operation has a lock.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_MAX_ENDED: Final = 1024
"""Ended operations among the deadlines, beyond the number of those that wait."""


class DelayedOperations(Generic[T]):
    """Operations of one kind, hashed by identity. Belongs to the event loop, by default the running one.

    `try_complete(operation, is_last)` completes an operation and returns True, or returns False if it waits on. With
    `is_last`, its deadline has passed.
    """

    def __init__(
        self,
        try_complete: Callable[[T, bool], bool],
        slice_s: float = math.inf,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._try_complete = try_complete
        self._slice_s = slice_s
        self._loop = loop or asyncio.get_running_loop()
        self._deadlines: dict[T, float] = {}
        self._by_deadline: list[tuple[float, int, T]] = []
        """A heap; a number orders equal deadlines. An operation that has ended remains until it comes first."""
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tried: deque[Iterator[T]] = deque()
        """Sets to be tried; operations in them that have ended are skipped."""
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, operation: T, timeout_s: float) -> None:
        """Wait, without a first try."""
        deadline_s = self._loop.time() + timeout_s
        self._deadlines[operation] = deadline_s
        self._count += 1
        heap = self._by_deadline
        heappush(heap, (deadline_s, self._count, operation))
        if len(heap) > 2 * len(self._deadlines) + _MAX_ENDED:
            heap[:] = [entry for entry in heap if entry[2] in self._deadlines]
            heapify(heap)
        if heap[0][2] is operation:
            self._set_timer()

    def wake(self, operations: Iterable[T]) -> None:
        """Try operations now, as far as the slice reaches, and the others in later iterations."""
        self._tried.append(iter(operations))
        if not self._is_scheduled:
            self._try_some()

    def wake_all(self) -> None:
        self.wake(list(self._deadlines))

    def complete(self, operation: T) -> None:
        """Complete an operation at once, as if its deadline had passed."""
        if self._deadlines.pop(operation, None) is not None:
            self._try_complete(operation, True)

    def stop(self) -> None:
        """Complete all operations."""
        for operation in list(self._deadlines):
            self.complete(operation)
        if self._timer is not None:
            self._timer.cancel()

    def _try_some(self) -> None:
        until_s = self._loop.time() + self._slice_s
        self._is_scheduled = True  # operations woken during this loop are handled below
        while self._tried:
            operation = next(self._tried[0], None)
            if operation is None:
                self._tried.popleft()
                continue
            self._tried.rotate(-1)
            now_s = self._loop.time()
            if (deadline_s := self._deadlines.get(operation)) is not None:
                try:
                    is_completed = self._try_complete(operation, deadline_s <= now_s)
                except Exception as error:  # the others do not wait longer
                    message = f"a delayed operation failed: {operation!r}"
                    self._loop.call_exception_handler({"message": message, "exception": error})
                    is_completed = True
                if is_completed:
                    self._deadlines.pop(operation, None)
            if now_s > until_s:
                break
        self._is_scheduled = bool(self._tried)
        if self._is_scheduled:
            self._loop.call_soon(self._try_some)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._by_deadline[0][0], lambda: self.wake(self._expired()))

    def _expired(self) -> Iterator[T]:
        heap = self._by_deadline
        while heap and (heap[0][0] <= self._loop.time() or heap[0][2] not in self._deadlines):
            yield heappop(heap)[2]
        if heap:
            self._set_timer()
