"""BackgroundTasks: the tasks of an object from its opening until it is closed, referenced, and logged if they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)

CANCEL_TIMEOUT_MS = 5000


class BackgroundTasks:
    """The running tasks of one owner. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` as a task; log its exception under `name`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    async def wait(self, timeout_ms: float) -> None:
        """Wait until the tasks that run now have ended, at most `timeout_ms`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_ms / 1000)

    async def close(self, grace_ms: float = 0) -> None:
        """Cancel the tasks that still run after `grace_ms`; abandon and log those that outlast CANCEL_TIMEOUT_MS."""
        if grace_ms:
            await self.wait(grace_ms)
        # A copy, since a task that ends removes itself.
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
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
