"""Deadline: a point in time shared by all steps of one call, such as connect, send and retry."""

from __future__ import annotations

import asyncio

from rucola.errors import ConfigError


class Deadline:
    """A point in time on the loop's clock (`at`, in seconds). ConfigError for a negative timeout."""

    __slots__ = ("_loop", "at", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        try:
            is_valid = timeout_ms >= 0  # not NaN
        except TypeError:
            is_valid = False
        if not is_valid:
            raise ConfigError(f"timeout_ms is {timeout_ms!r}: it must be a number, 0 or more", subject="timeout_ms")
        self._loop = asyncio.get_running_loop()
        self.timeout_ms = timeout_ms
        self.at = self._loop.time() + timeout_ms / 1000

    @property
    def left_ms(self) -> float:
        """Milliseconds until the deadline; 0 after it."""
        return max(0.0, (self.at - self._loop.time()) * 1000)

    def share(self, parts: int) -> Deadline:
        """Return the deadline of a step that may use 1/`parts` of the remaining time."""
        return Deadline(self.left_ms / parts)

    def scope(self) -> asyncio.Timeout:
        """Cancel the body at the deadline and raise TimeoutError."""
        return asyncio.timeout_at(self.at)
