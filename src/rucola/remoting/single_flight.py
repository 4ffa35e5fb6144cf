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
    """Runner of at most one task per key.

    Every caller that waits for a task receives its result or error. The task is independent of its callers: if one is
    cancelled or reaches its deadline, the task continues for the others. The task must therefore have a timeout of its
    own.
    """

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[T]] = {}

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, T]], deadline: Deadline, purpose: str) -> T:
        """Return the result of `key`'s task. Start it by `work` if it is not running.

        TimeoutError at the deadline. RemotingConnectError, whose text begins with `purpose`, if `close` cancelled it.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda task: self._ended(key, task))
        try:
            async with deadline.scope():
                # Unlike `shield`, `wait` leaves no trace of a caller that has gone: since Python 3.14 asyncio logs the
                # error of a shielded task that nothing waits for, although other callers receive it.
                await asyncio.wait([task])
            return task.result()
        except asyncio.CancelledError:
            # Either `close` cancelled the task, or the caller itself was cancelled: only the first is our error.
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise RemotingConnectError(f"{purpose}: this client was closed") from None
            raise

    def close(self) -> None:
        """Cancel all tasks."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()

    def _ended(self, key: K, task: asyncio.Task[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # retrieve it, or asyncio logs it: all callers may have timed out before the task failed
