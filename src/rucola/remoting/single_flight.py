"""SingleFlight: one task per key, whose result concurrent callers share, such as a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from rucola.errors import RemotingConnectError
from rucola.remoting.deadline import Deadline

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """A task continues if a caller is cancelled or reaches its deadline, so it must have its own timeout."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[T]] = {}

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, T]], deadline: Deadline, purpose: str) -> T:
        """Return the task's result; `work` starts it. TimeoutError; RemotingConnectError (`purpose`) after `close`."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda task: self._ended(key, task))
        try:
            async with deadline.scope():
                # Not `shield`: since Python 3.14 asyncio logs the error of a shielded task whose caller has been
                # cancelled, although other callers receive it.
                await asyncio.wait([task])
            return task.result()
        except asyncio.CancelledError:
            # Either `close` cancelled the task, or the caller was cancelled: only the first is our error.
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise RemotingConnectError(f"{purpose}: this client was closed") from None
            raise

    def close(self) -> None:
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()

    def _ended(self, key: K, task: asyncio.Task[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # retrieve it, or asyncio logs it: all callers may have timed out before
