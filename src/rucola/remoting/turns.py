"""Turns: connections that sent many requests at once process them by slices, in rotation.

A read can have hundreds of requests, and hundreds of connections can be read in one iteration of the event loop. A
connection processes requests for `SLICE_S` at once, and all together for `ITERATION_S` in one iteration; the rest is
processed in the following ones, each connection in turn. A connection with few requests in a read waits for no turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

SLICE_S: Final = 0.003
"""Time for which one connection processes requests at once."""
ITERATION_S: Final = 0.009
"""Time for which connections with many requests process them in one iteration of the event loop."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


class Turns:
    """The turns of the connections of one event loop."""

    def __init__(self, now_s: Callable[[], float], call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._now_s = now_s
        self._call_soon = call_soon
        self._waiting: deque[Callable[[], None]] = deque()
        self._end_s = 0.0
        """The end of the time for this iteration."""
        self._is_begun = False

    def end_s(self) -> float:
        """Return the time until which a connection may process requests now; a past one if it has to wait."""
        now_s = self._now_s()
        if not self._is_begun:
            self._is_begun = True
            self._end_s = now_s + ITERATION_S
            self._call_soon(self._next)
        return min(now_s + SLICE_S, self._end_s)

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when it is the turn of its connection again."""
        self._waiting.append(resume)
        self.end_s()

    def _next(self) -> None:
        """Begin the next iteration with the connections that wait."""
        self._is_begun = False
        if not self._waiting:
            return
        self.end_s()
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if self._now_s() >= self._end_s:
                return


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """Return the turns of a loop."""
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns(loop.time, loop.call_soon)
    return turns
