"""Deadline: a point in time shared by all steps of one call.

A call that looks up a route, connects, sends and retries passes its deadline to each step. With the same timeout for
every step instead, a call with a timeout of 500 ms could take a multiple of it.
"""

from __future__ import annotations

import asyncio

from rucola.errors import ConfigError


class Deadline:
    """A point in time on the loop's clock (`at`, in seconds), `timeout_ms` after construction.

    ConfigError if that is negative.
    """

    __slots__ = ("_loop", "at", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        if not timeout_ms >= 0:  # also refuses NaN
            raise ConfigError(f"timeout_ms is {timeout_ms}: it must be 0 or more")
        self._loop = asyncio.get_running_loop()
        self.timeout_ms = timeout_ms
        self.at = self._loop.time() + timeout_ms / 1000

    @property
    def left_ms(self) -> float:
        """Milliseconds until the deadline; 0 after it."""
        return max(0.0, (self.at - self._loop.time()) * 1000)

    def share(self, parts: int) -> Deadline:
        """Return the deadline of a step that may take 1/`parts` of the remaining time."""
        return Deadline(self.left_ms / parts)

    def scope(self) -> asyncio.Timeout:
        """Return a context manager that cancels its body at the deadline and raises TimeoutError."""
        return asyncio.timeout_at(self.at)
