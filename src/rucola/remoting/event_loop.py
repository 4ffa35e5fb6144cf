"""TurnLoop: an event loop in which what the connections have to say leaves at the end of a turn.

A turn of an asyncio loop waits in `select` until something is ready, and then runs all that is. A server that writes
each answer when it has it wakes a peer, which takes the answer and falls asleep, just to be woken by the next: on a
machine whose processors have to be woken by a hypervisor, that costs more than the message. So here the answers of a
turn are written one behind the other when all are there, just before the loop waits again. A turn of one answer costs
nothing more.

An answer waits for no more than `MOST_UNSENT` others, and a large one for none, so what is held back stays small.
What is written keeps its order. On any other loop connections write at once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, Final

MOST_UNSENT: Final = 32
LARGE: Final = 64 * 1024


class Turns(selectors.DefaultSelector):
    """The selector of a TurnLoop, which knows when a turn has ended: when it is asked what is ready next."""

    def __init__(self) -> None:
        super().__init__()
        self._late: list[Callable[[], None]] = []
        self._unsent: list[tuple[Callable[[bytes], None], bytes]] = []
        self._is_one_broken = False

    def at_end(self, act: Callable[[], None]) -> None:
        """Call `act` at the end of the turn; it may write. It raises nothing and asks nothing of the loop."""
        self._late.append(act)

    def writing_to(self, transport: asyncio.Transport) -> Callable[[bytes], None]:
        """Return what writes to a transport at the end of the turn, or at once, where enough is waiting for that."""
        unsent, flush, send = self._unsent, self.flush, transport.write

        def write(data: bytes) -> None:
            unsent.append((send, data))
            if len(unsent) == MOST_UNSENT or len(data) >= LARGE:
                flush()

        return write

    def flush(self) -> None:
        """Write now what waits for the end of the turn."""
        waiting = self._unsent[:]
        self._unsent.clear()
        for send, data in waiting:
            send(data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """End the turn, then wait for the next."""
        self._is_one_broken = False
        if self._late:
            late, self._late = self._late, []
            for act in late:
                act()
        if self._unsent:
            self.flush()
        if self._is_one_broken:  # of which the loop has something to tell that it did not know of when it asked
            timeout = 0
        return super().select(timeout)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Forget a file, as a transport asks that finds in writing that its peer has gone."""
        self._is_one_broken = True
        return super().unregister(fileobj)


class AtOnce:
    """What stands for Turns in a loop that does not say when its turns end: bytes are written when they come, and what
    is for the end of a turn waits for the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def at_end(self, act: Callable[[], None]) -> None:
        self._loop.call_soon(act)

    def writing_to(self, transport: asyncio.Transport) -> Callable[[bytes], None]:
        return transport.write

    def flush(self) -> None:
        """Nothing waits."""


class TurnLoop(asyncio.SelectorEventLoop):
    """For servers, whose peers wait for answers; to be had by `asyncio.Runner(loop_factory=TurnLoop)`."""

    def __init__(self) -> None:
        self.turns = Turns()
        super().__init__(self.turns)


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns | AtOnce:
    """Return by what the connections of a loop write."""
    return loop.turns if isinstance(loop, TurnLoop) else AtOnce(loop)
