"""Cancellation of a coroutine at each of the points at which it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class CancelledAt:
    """Runs a coroutine, and cancels it where it waits for the time with this number, counted from 0."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], number: int) -> None:
        self._coroutine = coroutine
        self._number = number

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            for _ in range(self._number):
                yield self._coroutine.send(None)
            self._coroutine.send(None)
            waited = self._coroutine.throw(asyncio.CancelledError())
            while True:
                yield waited
                waited = self._coroutine.send(None)
        except StopIteration:
            return
