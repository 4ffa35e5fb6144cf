"""The right of a master to acknowledge messages, which ends by itself.

The right is a deadline on a clock that counts also while the process is stopped or the machine sleeps
(CLOCK_BOOTTIME): however long a master was held up, it finds the deadline passed. The broker asks twice, before it
stores a message and before its answers leave (`remoting.batching_event_loop`).

The remaining gap is that between the last question and the system call that sends, some microseconds. A process that is
stopped there sends what it had checked. With SYNC_MASTER, all brokers that may become master have those messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time_s() -> float:
    """Return seconds since the machine's start, including sleep, unaffected by changes of the wall clock."""
    return time.clock_gettime(_CLOCK)


class WriteLease:
    """The deadline of one broker. Without a deadline, in the past, nothing may be acknowledged."""

    def __init__(self, clock: Callable[[], float] = boot_time_s) -> None:
        self._clock = clock
        self._until_s = 0.0
        self._was_used = False

    @property
    def until_s(self) -> float:
        """The deadline, on the clock of `boot_time_s`."""
        return self._until_s

    def set(self, until_s: float) -> None:
        """Set the deadline; 0 ends the right at once."""
        self._until_s = until_s

    def is_held(self) -> bool:
        """Tell whether a message may be acknowledged now."""
        is_held = self._clock() < self._until_s
        self._was_used |= is_held
        return is_held

    def may_send(self) -> bool:
        """Tell whether answers that were produced since the last call may leave.

        They may if none of them was produced by the right, or if the right still holds.
        """
        if not self._was_used:
            return True
        self._was_used = False
        return self._clock() < self._until_s
