"""The right of a master to acknowledge messages: a deadline on CLOCK_BOOTTIME, which includes sleep.

The broker checks it before it stores a message and before its responses are sent (`remoting.batching_event_loop`), so a
stopped process finds it passed. Between check and system call remain some microseconds; with SYNC_MASTER, all possible
masters have those messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time_s() -> float:
    """Return seconds since the machine's start, including sleep."""
    return time.clock_gettime(_CLOCK)


class WriteLease:
    def __init__(self, clock: Callable[[], float] = boot_time_s) -> None:
        self._clock = clock
        self._until_s = 0.0
        self._was_used = False

    @property
    def until_s(self) -> float:
        return self._until_s

    def set(self, until_s: float) -> None:
        """Set the deadline; 0 ends the right at once."""
        self._until_s = until_s

    def is_held(self) -> bool:
        """Whether a message may be acknowledged now."""
        is_held = self._clock() < self._until_s
        self._was_used |= is_held
        return is_held

    def may_send(self) -> bool:
        """Whether responses since the last call may be sent: none required the right, or it still holds."""
        if not self._was_used:
            return True
        self._was_used = False
        return self._clock() < self._until_s
