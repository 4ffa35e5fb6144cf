"""Turns: connections that sent many requests at once process them by slices, in rotation.

A read can have hundreds of requests, and hundreds of connections can be read in one iteration of the event loop.

    1. A connection processes the requests of a read for `SLICE_S` at once, and all together for `ITERATION_S` in one
       iteration. 64 messages of 1 KB take 0.4 ms, so that well-behaved producers are never interrupted.
    2. The rest waits for its turn in one of the next iterations.
    3. A connection that has used up its slice shares `TURNS_S` in each iteration with the others that have, until it
       has waited for no turn for `PROBATION_S`.

A connection with few requests waits for no turn: what it sends during a turn is processed and answered before the next
one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from rucola.remoting.batching_event_loop import write_batching_of

SLICE_S: Final = 0.003
"""Time for which one connection processes the requests of a read."""
ITERATION_S: Final = 0.003
"""Time for which all connections do so in one iteration of the event loop."""
PROBATION_S: Final = 1.0
"""Time after which a connection that waited for its turn may use up a slice again. A client that sends hundreds of
requests, awaits the responses and begins anew would otherwise have a slice each time."""
TURNS_S: Final = 0.0003
"""Time in one iteration of all connections that have used up a slice. The iteration takes a fifteenth besides."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


class Turns:
    """The turns of the connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._now_s = loop.time
        # A timer, even one that is due, runs after the sockets of an iteration; `call_soon` would run before them.
        self._after_reads: Callable[[Callable[[], None]], object] = partial(loop.call_later, 0)
        self._flush = write_batching_of(loop).flush
        self._waiting: deque[Callable[[], None]] = deque()
        self._begin_s = 0.0
        """When the first connection began to process requests in this iteration."""
        self._is_begun = False

    def end_s(self) -> float:
        """Return the time until which a connection may process requests now; a past one if it has to wait."""
        self._begin()
        return min(self._now_s() + SLICE_S, self._begin_s + ITERATION_S)

    def end_of_turns_s(self) -> float:
        """Return the same for a connection that has used up a slice."""
        self._begin()
        return self._begin_s + TURNS_S

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when it is the turn of its connection again."""
        self._waiting.append(resume)
        self._begin()

    def _next(self) -> None:
        """Begin the next iteration with the connections that wait."""
        self._is_begun = False
        if not self._waiting:
            return
        self._flush()
        end_s = self.end_of_turns_s()
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if self._now_s() >= end_s:
                return

    def _begin(self) -> None:
        """Begin the time of this iteration, unless a connection did."""
        if not self._is_begun:
            self._is_begun = True
            self._begin_s = self._now_s()
            self._after_reads(self._next)


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """Return the turns of a loop."""
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns(loop)
    return turns
