"""Flush: makes what was put durable, in a thread, for many messages at once.

`GroupCommit` runs `MessageStore.flush` (one msync a file) on a thread of its own, one run at a time. A message that
needs durability before its answer waits for the first run that begins after it was put: every message that arrives
during a run shares the next one, and so does what comes in the turns of the loop right before it. This is group commit,
and needs no timer: under load the groups grow by themselves.
Checkpoints have a thread of their own, since the queues may take longer than a sender waits.

The promise: `wait_flushed` returns True only when a flush that covers the physical offset has succeeded. After a
flush has
failed nobody knows what reached the disk, so the store takes no more writes, and every waiter gets False.

Answers to `GroupCommitService` and `FlushRealTimeService` of Apache RocketMQ 4.9.8. Deliberate difference: an error
of the flush is never taken for success.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

MAX_GATHER_ITERATIONS = 8

QUEUES_PER_CHECKPOINT = 128
"""Each costs the disk some tenths of a millisecond, and the processor as much as ten messages."""


class GroupCommit:
    """Flushes one store. Belongs to one event loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "flush")
        self._checkpoint_thread = ThreadPoolExecutor(1, "checkpoint")
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self._running: asyncio.Task[None] | None = None

    async def wait_flushed(self, physical_offset: int, timeout_ms: int) -> bool:
        """Wait until everything below `physical_offset` is on disk; False where that fails or takes too long."""
        if self._store.flushed_physical_offset >= physical_offset:
            return True
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((physical_offset, done))
        self.start_flush()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await done
        except TimeoutError:
            return False

    def start_flush(self) -> None:
        """Begin a flush unless one is under way; that one is followed by another while somebody waits."""
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())

    async def checkpoint(self) -> None:
        """Bring log, some queues and index to disk, and the checkpoint after them, while flushes go on."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._checkpoint_thread, self._store.checkpoint, QUEUES_PER_CHECKPOINT)

    async def stop(self) -> None:
        """Let flush and checkpoint under way end, and the threads with them. Others are served meanwhile."""
        if self._running is not None:
            await self._running
        for thread in (self._thread, self._checkpoint_thread):
            await asyncio.to_thread(thread.shutdown)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._gather()
                waiting, self._waiting = self._waiting, []
                try:
                    await loop.run_in_executor(self._thread, self._store.flush)
                except OSError as error:
                    logger.error("flush failed; the store takes no more messages: %s", error)
                flushed = self._store.flushed_physical_offset
                for physical_offset, done in waiting:
                    if not done.done():
                        done.set_result(flushed >= physical_offset)
                if not self._waiting:
                    return
        finally:
            self._running = None

    async def _gather(self) -> None:
        """Let the group grow as long as each turn of the loop brings more, but not for ever: those whom the last flush
        let go come again within a few turns, and would else wait for a flush of one or two of them."""
        count = 0
        for _ in range(MAX_GATHER_ITERATIONS):
            if len(self._waiting) == count:
                break
            count = len(self._waiting)
            await asyncio.sleep(0)
