"""Results: the results of a call that works only as they are consumed."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Results(AsyncIterator[T], Generic[T]):
    """Results to await as a list, or to iterate over with `async for` while the work continues; only once.

        results = await producer.send_many(messages)
        async for result in producer.send_many(messages): ...

    Nothing happens before that. Unused, it issues a RuntimeWarning, like a coroutine that was never awaited.
    """

    def __init__(self, call: str, results: AsyncGenerator[T, None]) -> None:
        self._call = call
        self._results = results
        self._is_used = False

    def __await__(self) -> Generator[Any, None, list[T]]:
        if self._is_used:
            raise RuntimeError(f"the results of {self._call} were taken already: call it again")
        self._is_used = True
        return self._collect().__await__()

    def __aiter__(self) -> AsyncGenerator[T, None]:
        self._is_used = True
        return self._results

    def __anext__(self) -> Awaitable[T]:
        self._is_used = True
        return self._results.__anext__()

    async def aclose(self) -> None:
        """End the call without the remaining results."""
        self._is_used = True
        await self._results.aclose()

    async def _collect(self) -> list[T]:
        return [result async for result in self._results]

    def __del__(self) -> None:
        # Without the attribute, the call itself failed.
        if not getattr(self, "_is_used", True):
            warnings.warn(
                f"{self._call} was neither awaited nor iterated over, so it did nothing: write `await`",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )
