"""Deadline: the end of one call, for all of its steps together.

A call that looks up a route, connects, sends and retries gives each step what is left of its time. Passing the same
timeout to every step instead would let a call of 500 ms take a multiple of that.
"""

from __future__ import annotations

import asyncio


class Deadline:
    """A moment on the running event loop's clock, `timeout_ms` after construction."""

    __slots__ = ("_loop", "at", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.timeout_ms = timeout_ms
        self.at = self._loop.time() + timeout_ms / 1000

    @property
    def left_ms(self) -> float:
        """The time that is left; 0 once the deadline has passed."""
        return max(0.0, (self.at - self._loop.time()) * 1000)

    def share(self, parts: int) -> Deadline:
        """Return the deadline of a step that may take one of `parts` equal parts of the time that is left."""
        return Deadline(self.left_ms / parts)

    def scope(self) -> asyncio.Timeout:
        """Return a context manager that ends its body at the deadline, with TimeoutError."""
        return asyncio.timeout_at(self.at)
