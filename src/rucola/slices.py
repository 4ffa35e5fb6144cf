"""Slices: long work on an event loop, divided to serve other requests in between.

Such work is a generator that yields at every small step. After `SLICE_S` it pauses for at least as long. All work of a
loop shares the slices, at most half of the loop's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")

SLICE_S: Final = 0.0005
"""The pause is rounded up to a millisecond, as all timers."""
_STEPS_PER_CHECK: Final = 16
"""A step takes some microseconds."""

_free_at_s: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
"""When the next slice of each loop may start."""


async def in_slices(work: Generator[None, None, T]) -> T:
    """Run a generator slice by slice, and return its result."""
    loop = asyncio.get_running_loop()
    while True:
        while (wait_s := _free_at_s.get(loop, 0.0) - loop.time()) > 0:  # noqa: ASYNC110 - it waits for a time
            await asyncio.sleep(wait_s)  # in a loop: other work may use the next slice
        end_s = loop.time() + SLICE_S
        try:
            while loop.time() < end_s:
                for _ in range(_STEPS_PER_CHECK):
                    next(work)
        except StopIteration as stop:
            result: T = stop.value
            return result
        _free_at_s[loop] = loop.time() + SLICE_S


def sliced(steps: Callable[P, Generator[None, None, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a generator function, to be awaited as a coroutine that runs slice by slice."""

    @wraps(steps)
    async def coroutine(*args: P.args, **kwargs: P.kwargs) -> T:
        return await in_slices(steps(*args, **kwargs))

    return coroutine


def run(work: Generator[None, None, T]) -> T:
    """Run a generator at once, where nothing waits, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            result: T = stop.value
            return result
