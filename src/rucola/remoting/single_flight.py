"""SingleFlight: work that concurrent callers share instead of repeating it, such as connecting to one address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from rucola.errors import RemotingConnectError
from rucola.remoting.deadline import Deadline

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """At most one task per key. Its result or error goes to every caller that waits for it.

    The task is independent of its callers: one that is cancelled, or runs out of time, leaves it to the others. The
    work must be bounded in time by itself.
    """

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[T]] = {}

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, T]], deadline: Deadline, purpose: str) -> T:
        """Wait for the task of `key`, started from `work` unless it runs already.

        TimeoutError at the deadline. After `close` RemotingConnectError, which begins with `purpose`.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda task: self._ended(key, task))
        try:
            async with deadline.scope():
                return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise RemotingConnectError(f"{purpose}: this client was closed") from None
            raise

    def close(self) -> None:
        """Cancel every task."""
        for task in list(self._tasks.values()):
            task.cancel()

    def _ended(self, key: K, task: asyncio.Task[T]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: every caller may have left before the task failed
