"""Values of single topics or groups, measured when a page shows them, within a budget of requests a second."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rucola.errors import MQError

T = TypeVar("T")

MAX_KEPT: Final = 20_000
MAX_MEASURING: Final = 32
WAIT_S: Final = 3.0
"""Wait of a page for what it is about."""


class RequestBudget:
    """Requests a second, of which those of `burst_s` seconds may come together."""

    def __init__(self, per_second: float, burst_s: float = 4.0) -> None:
        self._per_second = per_second
        self._burst = per_second * burst_s
        self._left = self._burst
        self._at_s = time.monotonic()

    def reserve(self, count: int) -> float:
        """Take `count` requests, and return the seconds to wait before they are sent."""
        now_s = time.monotonic()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_second) - count
        self._at_s = now_s
        return max(0.0, -self._left / self._per_second)


@dataclass(frozen=True, slots=True)
class Measurement(Generic[T]):
    """A value and when it was measured, or why it could not be."""

    time_ms: int
    value: T | None
    error: str = ""


class Measurements(Generic[T]):
    """The measurements of one kind by name; those that were shown least recently are forgotten.

    `measure` sends `cost(name)` requests.
    """

    def __init__(
        self, measure: Callable[[str], Awaitable[T]], cost: Callable[[str], int], budget: RequestBudget, fresh_s: float
    ) -> None:
        self._measure = measure
        self._cost = cost
        self._budget = budget
        self._fresh_ms = fresh_s * 1000
        self._known: OrderedDict[str, Measurement[T]] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._limit = asyncio.Semaphore(MAX_MEASURING)

    def known(self, name: str) -> Measurement[T] | None:
        """Return the latest measurement, of any age, without a request."""
        return self._known.get(name)

    def all_known(self) -> dict[str, T]:
        """Return the latest measured values, of any age, without a request."""
        return {name: found.value for name, found in self._known.items() if found.value is not None}

    async def get(self, names: Iterable[str], wait_s: float = 1.0) -> dict[str, Measurement[T]]:
        """Return fresh measurements; after `wait_s` older ones of what is still measured, if there are any."""
        names = list(names)
        now_ms = time.time_ns() // 1_000_000
        tasks = [self._task(name) for name in names if self._is_stale(name, now_ms)]
        if tasks:
            await asyncio.wait(tasks, timeout=wait_s)
        return {name: found for name in names if (found := self._known.get(name)) is not None}

    async def get_one(self, name: str, wait_s: float = WAIT_S) -> Measurement[T] | None:
        """Return one measurement, as `get` does; None if there is none yet."""
        return (await self.get([name], wait_s)).get(name)

    def _is_stale(self, name: str, now_ms: int) -> bool:
        found = self._known.get(name)
        return found is None or now_ms - found.time_ms >= self._fresh_ms

    def _task(self, name: str) -> asyncio.Task[None]:
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.create_task(self._run(name))
            task.add_done_callback(lambda _: self._running.pop(name, None))
        return task

    async def _run(self, name: str) -> None:
        async with self._limit:
            await asyncio.sleep(self._budget.reserve(self._cost(name)))
            value, error = None, ""
            try:
                value = await self._measure(name)
            except MQError as failure:
                error = str(failure)
            self._known[name] = Measurement(time.time_ns() // 1_000_000, value, error)
            self._known.move_to_end(name)
            if len(self._known) > MAX_KEPT:
                self._known.popitem(last=False)

    def forget(self, name: str) -> None:
        """Measure a value again when it is shown next: after a change."""
        self._known.pop(name, None)

    async def close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
