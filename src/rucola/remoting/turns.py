"""Turns: round-robin time slices for connections that sent many requests at once.

    1. A connection processes the requests of a read for `SLICE_S` at most, and all connections for `ITERATION_S` in
       one iteration. After each `YIELD_S` other sockets that are ready go first.
    2. The rest waits for its turn in a later iteration, as do large messages that are written in pieces.
    3. Connections that have used up a slice share `TURNS_S` in each iteration until they have waited for no turn for
       `PROBATION_S`.

Headers that Python decodes, MAX_PYTHON_COST in one iteration, come first: at the limit, a connection waits with all of
its received bytes. A read with up to `connection.UNSLICED` requests is never interrupted.
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
YIELD_S: Final = 0.00025
"""A check for other ready sockets takes 3 µs."""
STEP: Final = 4
"""Commands between two looks at the clock."""
ITERATION_S: Final = 0.003
"""For all connections."""
PROBATION_S: Final = 1.0
"""Otherwise a client with hundreds of requests per round trip would have a full slice each time."""
TURNS_S: Final = 0.0002
"""For all connections that have used up a slice."""

MAX_PYTHON_COST: Final = 8 * 1024
"""Bytes of headers, in addition to one header: 2 to 12 ms."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


class Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._now_s = loop.time
        # A due timer runs after the sockets of an iteration; `call_soon` would run before them.
        self._after_reads: Callable[[Callable[[], None]], object] = partial(loop.call_later, 0)
        self._batching = write_batching_of(loop)
        self._waiting: deque[Callable[[], None]] = deque()
        self._begin_s = 0.0
        self._is_begun = False
        self._python_cost = 0
        """Of this iteration."""

    def may_decode(self, cost: int) -> bool:
        """Count a header to decode in Python; False if its connection has to wait for its turn."""
        self._begin()
        if self._python_cost >= MAX_PYTHON_COST:
            return False
        self._python_cost += cost
        return True

    def begin_slice(self, descriptor: int, *, takes_turns: bool) -> Slice:
        """Start a connection's time slice; shorter if it has used up one."""
        self._begin()
        now_s = self._now_s()
        end_s = self._begin_s + TURNS_S if takes_turns else min(now_s + SLICE_S, self._begin_s + ITERATION_S)
        is_any_ready = partial(self._batching.is_any_ready, but=descriptor)
        return Slice(self._now_s, is_any_ready, now_s, self._begin_s + YIELD_S, end_s, takes_turns=takes_turns)

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` at the connection's turn."""
        self._waiting.append(resume)
        self._begin()

    def _next(self) -> None:
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
        if not self._is_begun:
            self._is_begun = True
            self._python_cost = 0
            self._begin_s = self._now_s()
            self._after_reads(self._next)


class Slice:
    """One connection's time slice; checks the clock every `step` commands."""

    def __init__(
        self, now_s: Callable[[], float], is_any_ready: Callable[[], bool], begin_s: float, look_s: float,
        end_s: float, *, takes_turns: bool,
    ) -> None:  # fmt: skip
        """`look_s` is the first check for other ready sockets."""
        self.step = 1 if takes_turns else STEP
        self._now_s = now_s
        self._is_any_ready = is_any_ready
        self._begin_s = begin_s
        self._end_s = end_s
        self._look_s = min(look_s, end_s)
        self._takes_turns = takes_turns

    def is_over(self) -> bool:
        """Whether the connection has to wait for its turn."""
        now_s = self._now_s()
        if now_s <= self._look_s:
            return False
        if now_s > self._end_s or self._is_any_ready():
            return True
        self._look_s = min(now_s + YIELD_S, self._end_s)
        return False

    def probation_end_s(self) -> float:
        """When full slices resume; 0 unless this one was used up."""
        now_s = self._now_s()
        return now_s + PROBATION_S if self._takes_turns or now_s - self._begin_s > SLICE_S else 0.0


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns(loop)
    return turns
