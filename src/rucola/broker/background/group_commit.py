"""Group commit: one flush of the CommitLog shared by all senders that wait for it.

`GroupCommit` runs `MessageStore.flush` (one msync per file) in its own thread, one flush at a time. A message that must
be durable before its response waits for the first flush that begins after its put. All messages that arrive during a
flush share the next one, so groups grow with the load, without a timer. Checkpoints run in a second thread, because
flushing the queues may take longer than a sender waits.

Contract: `wait_flushed` returns True only if a flush that covers the physical offset has succeeded. After a failed
flush every waiter receives False. If it is unknown which bytes reached the disk, the store becomes read-only; a flush
that got no descriptor is repeated by the next waiter.

Corresponds to `GroupCommitService` and `FlushRealTimeService` of Apache RocketMQ 4.9.8. Deliberate difference: a flush
that fails is never reported as success.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

MAX_GATHER_ITERATIONS = 8
"""Event loop iterations for which a flush is delayed at most while new waiters keep arriving."""

QUEUES_PER_CHECKPOINT = 128
"""Flushing one ConsumeQueue costs some tenths of a millisecond of disk time and the CPU time of ten messages."""


class GroupCommit:
    """Flushes one store. All methods must be called in the same event loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        root = store.config.store_path_root_dir
        self._thread = ThreadPoolExecutor(1, f"flush of {root}")
        self._checkpoint_thread = ThreadPoolExecutor(1, f"checkpoint of {root}")
        self._waiters: list[tuple[int, asyncio.Future[bool]]] = []
        """Physical offset and future of each waiter that the next flush will serve."""
        self._running: asyncio.Task[None] | None = None
        """The task that flushes until there is no waiter; None while idle."""

    async def wait_flushed(self, physical_offset: int, timeout_ms: int) -> bool:
        """Wait until all bytes below `physical_offset` are on disk.

        Returns False after a failed flush or the timeout.
        """
        if self._store.flushed_physical_offset >= physical_offset:
            return True
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append((physical_offset, done))
        self.start_flush()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await done
        except TimeoutError:
            return False

    def start_flush(self) -> None:
        """Start a flush unless one is running.

        The running task flushes again while there are waiters.
        """
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())

    async def checkpoint(self) -> None:
        """Flush log, queues and index, then write the checkpoint, concurrently with flushes.

        One call flushes QUEUES_PER_CHECKPOINT queues at most.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._checkpoint_thread, self._store.checkpoint, QUEUES_PER_CHECKPOINT)

    async def stop(self) -> None:
        """Wait for the running flush and checkpoint, then end both threads without blocking the loop."""
        if self._running is not None:
            await self._running
        for thread in (self._thread, self._checkpoint_thread):
            await asyncio.to_thread(thread.shutdown)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                # 1. Close the group: a waiter that arrives from here on belongs to the next flush, because its bytes
                #    may have been appended after this flush has read the end of the log.
                await self._gather()
                waiters, self._waiters = self._waiters, []
                # 2. Flush. The store keeps the reason of a failure and refuses puts from then on.
                try:
                    await loop.run_in_executor(self._thread, self._store.flush)
                except OSError as error:
                    logger.error("flush failed: %s", error)
                # 3. Resolve the group against the offset that is known to be on disk, not against the outcome of this
                #    call: a checkpoint may have flushed as well. Cancelled and timed-out futures are done already.
                flushed = self._store.flushed_physical_offset
                for physical_offset, done in waiters:
                    if not done.done():
                        done.set_result(flushed >= physical_offset)
                # 4. Waiters that arrived during the flush form the next group.
                if not self._waiters:
                    return
        finally:
            self._running = None

    async def _gather(self) -> None:
        """Wait for a loop iteration that brings no new waiter, for MAX_GATHER_ITERATIONS at most.

        Senders released by the last flush send their next message within a few iterations. Without this wait, the next
        flush would begin with the first one or two of them, and all others would wait for the flush after it.
        """
        count = 0
        for _ in range(MAX_GATHER_ITERATIONS):
            if len(self._waiters) == count:
                break
            count = len(self._waiters)
            await asyncio.sleep(0)
