"""BackgroundTasks: the tasks that an object keeps running, from its opening to its closing.

A task started here is held (asyncio itself holds tasks only weakly), its failure is logged at once and not when
the garbage collector comes by, and `close` ends whatever still runs and waits for it, so nothing outlives its owner.
"""

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
        """Run `work` as a task. An error that leaves it is logged under `name`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def __contains__(self, task: object) -> bool:
        """Whether a task is one of these."""
        return task in self._tasks

    async def close(self, grace_ms: float = 0) -> None:
        """Give the tasks so long to end by themselves, cancel those that do not, and wait until all have ended.

        A task that has not ended `CANCEL_TIMEOUT_MS` after it was cancelled is logged and left alone.
        """
        if grace_ms and self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_ms / 1000)
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, running = await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_MS / 1000)
            for task in running:
                logger.warning("%s is still running %d ms after it was cancelled", task.get_name(), CANCEL_TIMEOUT_MS)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, KeyboardInterrupt):  # asyncio raises that from the loop
            logger.error("%s failed", task.get_name(), exc_info=error)
