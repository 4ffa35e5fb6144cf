"""Turns: the connections of an event loop with more work than fits share its time, round robin.

A connection processes the requests of a read for `YIELD_S`, then further ones while no other socket is ready and no
other connection waits for its turn, for `ITERATION_S` at most. The rest is processed in its turns. All turns of an
iteration together last for `TURNS_S`, but at least one request; reads follow.

Headers that Python decodes, up to 4 ms each, count likewise; their connection waits with all received bytes. Large
messages that are written in pieces wait for turns, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from rucola.remoting.batching_event_loop import write_batching_of

YIELD_S: Final = 0.00025
"""A check for other ready sockets takes 3 µs."""
ITERATION_S: Final = 0.003
"""For all connections, unless they have less than YIELD_S."""
TURNS_S: Final = 0.0002

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


class Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now_s = loop.time
        # A due timer runs after the sockets of an iteration; `call_soon` would run before them.
        self._after_reads: Callable[[Callable[[], None]], object] = partial(loop.call_later, 0)
        self._batching = write_batching_of(loop)
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_begun = self._is_turn = self._has_decoded = False
        self._begin_s = 0.0

    def begin(self) -> float:
        """Start a connection's work; return when to `look`."""
        return self._begin_s + TURNS_S if self._is_turn else self.now_s() + YIELD_S

    def look(self, descriptor: int) -> float:
        """Return when a connection has to look again; 0.0 if others go first."""
        self._begin()
        now_s = self.now_s()
        if now_s >= self._begin_s + ITERATION_S or self._waiting or self._batching.is_any_ready(but=descriptor):
            return 0.0
        return now_s + YIELD_S

    def may_decode(self) -> bool:
        """Whether Python may decode a header now: one in each iteration, and further ones while there is time."""
        self._begin()
        is_first, self._has_decoded = not self._has_decoded, True
        return is_first or self.now_s() < self._begin_s + (TURNS_S if self._is_turn else ITERATION_S)

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` at the connection's turn."""
        self._waiting.append(resume)
        self._begin()

    def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun, self._has_decoded = True, False
            self._begin_s = self.now_s()
            self._after_reads(self._next)

    def _next(self) -> None:
        self._is_begun = False
        if not self._waiting:
            return
        self._batching.flush()
        self._begin()
        self._is_turn = True
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if self.now_s() >= self._begin_s + TURNS_S:
                    return
        finally:
            self._is_turn = False


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns(loop)
    return turns
