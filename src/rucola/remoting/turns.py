"""Turns: connections that sent many requests at once process them by slices, in rotation.

A read can have hundreds of requests, and hundreds of connections can be read in one iteration of the event loop.

    1. A connection processes the requests of a read for `SLICE_S` at once, and all together for `ITERATION_S` in one
       iteration. After each `YIELD_S` of an iteration it looks whether other sockets are ready, and lets them go first.
    2. The rest waits for its turn in one of the next iterations. So do large messages that are written in pieces.
    3. A connection that has used up its slice shares `TURNS_S` in each iteration with the others that have, until it
       has waited for no turn for `PROBATION_S`.

Headers that Python decodes, MAX_PYTHON_COST of all connections in one iteration, come before the requests: a connection
whose next header is one too many waits for its turn with all that it has received.

A connection with few requests waits for no turn: what it sends during a turn is processed and answered before the next
one. A read with up to `connection.UNSLICED` requests is never interrupted.
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
YIELD_S: Final = 0.00025
"""Time of an iteration after which other sockets that are ready go first. To look takes 3 µs."""
STEP: Final = 4
"""Commands between two looks at the clock."""
ITERATION_S: Final = 0.003
"""Time for which all connections do so in one iteration of the event loop."""
PROBATION_S: Final = 1.0
"""Time after which a connection that waited for its turn may use up a slice again. A client that sends hundreds of
requests, awaits the responses and begins anew would otherwise have a slice each time."""
TURNS_S: Final = 0.0002
"""Time in one iteration of all connections that have used up a slice. The iteration takes a tenth besides."""

MAX_PYTHON_COST: Final = 8 * 1024
"""Bytes of headers that Python decodes for all connections in one iteration, and one header: 2 to 12 ms."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


class Turns:
    """The turns of the connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._now_s = loop.time
        # A timer, even one that is due, runs after the sockets of an iteration; `call_soon` would run before them.
        self._after_reads: Callable[[Callable[[], None]], object] = partial(loop.call_later, 0)
        self._batching = write_batching_of(loop)
        self._waiting: deque[Callable[[], None]] = deque()
        self._begin_s = 0.0
        """When the first connection began to process requests in this iteration."""
        self._is_begun = False
        self._python_cost = 0
        """Bytes of headers that Python has decoded in this iteration."""

    def may_decode(self, cost: int) -> bool:
        """Return whether a connection may decode a header in Python now, and count it.

        If not, the connection waits for its turn.
        """
        self._begin()
        if self._python_cost >= MAX_PYTHON_COST:
            return False
        self._python_cost += cost
        return True

    def begin_slice(self, descriptor: int, *, takes_turns: bool) -> Slice:
        """Begin a connection's time and return it; shorter if it has used up a slice."""
        self._begin()
        now_s = self._now_s()
        end_s = self._begin_s + TURNS_S if takes_turns else min(now_s + SLICE_S, self._begin_s + ITERATION_S)
        is_any_ready = partial(self._batching.is_any_ready, but=descriptor)
        return Slice(self._now_s, is_any_ready, now_s, self._begin_s + YIELD_S, end_s, takes_turns=takes_turns)

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when it is the turn of its connection again."""
        self._waiting.append(resume)
        self._begin()

    def _next(self) -> None:
        """Begin the next iteration with the connections that wait."""
        self._is_begun = False
        if not self._waiting:
            return
        self._batching.flush()
        self._begin()
        end_s = self._begin_s + TURNS_S
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if self._now_s() >= end_s:
                return

    def _begin(self) -> None:
        """Begin the time of this iteration, unless a connection did."""
        if not self._is_begun:
            self._is_begun = True
            self._python_cost = 0
            self._begin_s = self._now_s()
            self._after_reads(self._next)


class Slice:
    """The time for which one connection processes requests now.

    It looks at the clock every `step` commands.
    """

    def __init__(
        self, now_s: Callable[[], float], is_any_ready: Callable[[], bool], begin_s: float, look_s: float,
        end_s: float, *, takes_turns: bool,
    ) -> None:  # fmt: skip
        """`look_s` is when to look whether other sockets are ready, for the first time."""
        self.step = 1 if takes_turns else STEP
        self._now_s = now_s
        self._is_any_ready = is_any_ready
        self._begin_s = begin_s
        self._end_s = end_s
        self._look_s = min(look_s, end_s)
        self._takes_turns = takes_turns

    def is_over(self) -> bool:
        """Return whether the connection has to wait for its turn."""
        now_s = self._now_s()
        if now_s <= self._look_s:
            return False
        if now_s > self._end_s or self._is_any_ready():
            return True
        self._look_s = min(now_s + YIELD_S, self._end_s)
        return False

    def probation_end_s(self) -> float:
        """Return until when the connection gets short slices; 0 unless it used up this one."""
        now_s = self._now_s()
        return now_s + PROBATION_S if self._takes_turns or now_s - self._begin_s > SLICE_S else 0.0


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """Return the turns of a loop."""
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns(loop)
    return turns
