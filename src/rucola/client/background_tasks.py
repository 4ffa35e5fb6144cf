"""BackgroundTasks: the tasks that an object runs from its opening until it is closed.

The owner keeps a strong reference to each task (asyncio itself holds tasks only weakly). A task that fails is logged
immediately, not when the garbage collector finds it. `close` cancels every remaining task and waits for it, so that no
task outlives its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)

CANCEL_TIMEOUT_MS = 5000
"""How long `close` waits for cancelled tasks to end."""


class BackgroundTasks:
    """The running tasks of one owner. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` as a task. An exception that it raises is logged under `name`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def __len__(self) -> int:
        """Return the number of tasks that are running."""
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        """Return whether `task` was started here and is still running."""
        return task in self._tasks

    async def wait(self, timeout_ms: float) -> None:
        """Wait until the tasks that run now have ended, at most `timeout_ms`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_ms / 1000)

    async def close(self, grace_ms: float = 0) -> None:
        """End all tasks: cancel those that still run after `grace_ms`, and wait.

        A task that is still running `CANCEL_TIMEOUT_MS` after its cancellation is logged and abandoned.
        """
        # 1. The grace period. `asyncio.wait` cancels nothing and raises nothing.
        if grace_ms:
            await self.wait(grace_ms)
        # 2. Cancel. The copy is needed because a task that ends removes itself.
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        # 3. Wait for the cancelled tasks, which may have cleaning up to do.
        if tasks:
            _, running = await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_MS / 1000)
            for task in running:
                logger.warning("%s is still running %d ms after it was cancelled", task.get_name(), CANCEL_TIMEOUT_MS)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        # asyncio raises KeyboardInterrupt from `run_forever` itself, so logging it here would report it twice.
        if error is not None and not isinstance(error, KeyboardInterrupt):
            logger.error("%s failed", task.get_name(), exc_info=error)
