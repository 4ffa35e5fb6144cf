"""Slices: long work on an event loop, divided to serve other requests in between.

Work that may take longer than `SLICE_S` is written as a generator that yields at every small step. `in_slices` drives
it on the event loop: when a slice is used up, the loop serves what is ready, and the work continues after a pause, at
least as long as the slice. All such work of an event loop shares these slices, so that however many requests need them,
at most half of its time goes there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

SLICE_S: Final = 0.0005
"""Time for which work holds the event loop at once. The pause is rounded up to a millisecond, as all timers."""
_STEPS_PER_CHECK: Final = 16
"""Steps between two readings of the clock; a step takes some microseconds."""

_free_at_s: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
"""The time of each loop at which the next slice may begin, after one that was used up."""


async def in_slices(work: Generator[None, None, T]) -> T:
    """Run a generator to its end, slice by slice, and return its result."""
    loop = asyncio.get_running_loop()
    while True:
        while (wait_s := _free_at_s.get(loop, 0.0) - loop.time()) > 0:  # noqa: ASYNC110 - it waits for a time
            await asyncio.sleep(wait_s)  # in a loop: other work may take the next slice
        end_s = loop.time() + SLICE_S
        try:
            while loop.time() < end_s:
                for _ in range(_STEPS_PER_CHECK):
                    next(work)
        except StopIteration as stop:
            result: T = stop.value
            return result
        _free_at_s[loop] = loop.time() + SLICE_S


def run(work: Generator[None, None, T]) -> T:
    """Run a generator to its end at once, where nothing waits, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            result: T = stop.value
            return result
