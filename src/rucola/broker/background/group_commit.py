"""Group commit: one flush of the CommitLog shared by all senders that wait for it.

A durable message waits for the first flush that starts after its put. All messages that arrive during a flush share the
next one, so groups grow with the load. One flush runs at a time:

    read      the messages of one loop iteration are put, and their waiters registered
    its end   `_begin` closes the group, and submits the flush to the kernel (`rucola.store.kernel_flush`)
    disk      the loop serves others
    event     `_end` calls the waiters; their responses are written at the end of this iteration

Without such a kernel flush, or if the store needs more than one call (`Flusher.begin`), or with ASYNC_FLUSH, a thread
flushes without the interpreter lock and wakes the loop. Checkpoints run in another thread, because flushing the queues
may take longer than a sender waits.

Contract: a waiter gets True only if a flush that covers its physical offset has succeeded. After a failed flush every
waiter gets False. If it is unknown which bytes reached the disk, the store becomes read-only; a flush that got no
descriptor is repeated by the next waiter.

Corresponds to `GroupCommitService` and `FlushRealTimeService` of Apache RocketMQ 4.9.8. Deliberate difference: a flush
that fails is never reported as success.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from msgspec import Struct

from rucola.broker.delayed_operations import DelayedOperations
from rucola.remoting.batching_event_loop import WriteBatching, write_batching_of
from rucola.store.kernel_flush import KernelFlush
from rucola.store.message_store import MessageStore

logger = logging.getLogger(__name__)

MAX_GATHER_ITERATIONS = 8
"""Event loop iterations by which new waiters can delay a flush."""

QUEUES_PER_CHECKPOINT = 128
"""Flushing one ConsumeQueue costs some tenths of a millisecond of disk time."""


class _Waiter(Struct, eq=False, gc=False):
    physical_offset: int
    done: Callable[[bool], None]


class FlushThread:
    """The thread that flushes a store once for each `wake`, and then calls `on_end` in the event loop."""

    def __init__(self, store: MessageStore, on_end: Callable[[Exception | None], None]) -> None:
        self._store = store
        self._on_end = on_end
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(
            target=self._run, name=f"flush of {store.config.store_path_root_dir}", daemon=True
        )
        # The thread acquires it for each flush. A lock is the cheapest way to wake a thread: 5 µs instead of 30.
        self._is_wanted = threading.Lock()
        self._is_wanted.acquire()
        self._is_stopping = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def wake(self) -> None:
        self._is_wanted.release()

    async def stop(self) -> None:
        """End the thread without blocking the loop. No flush may be running."""
        if self._thread.is_alive():
            self._is_stopping = True
            self._is_wanted.release()
            await asyncio.to_thread(self._thread.join)

    def flush(self) -> Exception | None:
        """Flush the store; return the error."""
        try:
            self._store.flush()
        except Exception as error:
            return error
        return None

    def _run(self) -> None:
        while True:
            self._is_wanted.acquire()
            if self._is_stopping:
                return
            self._loop.call_soon_threadsafe(self._on_end, self.flush())


class GroupCommit:
    """Flushes one store. All methods must be called in the same event loop."""

    def __init__(self, store: MessageStore) -> None:
        self.on_end: Callable[[], None] = lambda: None
        """Called after each flush, failed or not, and its waiters."""
        self._store = store
        self._checkpoint_thread = ThreadPoolExecutor(1, f"checkpoint of {store.config.store_path_root_dir}")
        self._thread = FlushThread(store, self._end)
        self._is_stopping = False
        # The next two are set before the first flush.
        self._kernel: KernelFlush | None = None
        """None before the first flush, and if flushes need a thread."""
        self._batching: WriteBatching | None = None
        self._waiting: DelayedOperations[_Waiter] = DelayedOperations(self._try_complete)
        """In the order of arrival: the running flush first, then the next."""
        self._arrived = 0
        """Waiters since the last flush began."""
        self._last_count = 0
        """Waiters of the last flush, which are likely to send again."""
        self._flushing_end = 0
        """The end of the log when the last flush began."""
        self._is_running = False
        self._idle = asyncio.Event()
        self._idle.set()

    def when_flushed(self, physical_offset: int, timeout_ms: int, done: Callable[[bool], None]) -> None:
        """Call `done` in the loop: True once all bytes below `physical_offset` are on disk, False if not in time."""
        if self._store.flushed_physical_offset >= physical_offset:
            done(True)
            return
        self._waiting.add(_Waiter(physical_offset, done), timeout_ms / 1000)
        self._arrived += 1
        self.start_flush()

    async def wait_flushed(self, physical_offset: int, timeout_ms: int) -> bool:
        """Wait until all bytes below `physical_offset` are on disk; False after a failed flush or the timeout."""
        flushed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.when_flushed(physical_offset, timeout_ms, partial(_resolve, flushed))
        return await flushed

    def flush_all(self) -> None:
        """Flush everything that was put before this call; the running flush may do so."""
        end = self._store.max_physical_offset
        if not self._is_running or end > self._flushing_end:
            self.when_flushed(end, self._store.config.sync_flush_timeout, lambda is_flushed: None)

    def start_flush(self) -> None:
        """Start a flush unless one is running, which is followed by another if there are waiters."""
        if not self._is_running and not self._is_stopping:
            self._is_running = True
            self._idle.clear()
            self._begin_at_iteration_end(0, 0)

    async def checkpoint(self, max_queues: int | None = QUEUES_PER_CHECKPOINT) -> None:
        """Flush log, index and `max_queues` queues at most, then write the checkpoint; flushes may run."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._checkpoint_thread, self._store.checkpoint, max_queues)

    async def stop(self) -> None:
        """Wait for the running flush and checkpoint, then end both threads without blocking the loop."""
        await self._idle.wait()
        self._is_stopping = True
        self._waiting.stop()
        await self._thread.stop()
        await asyncio.to_thread(self._checkpoint_thread.shutdown)
        if self._kernel is not None:
            asyncio.get_running_loop().remove_reader(self._kernel.descriptor)
            self._kernel.close()
            self._kernel = None

    def _begin_at_iteration_end(self, iterations: int, count: int) -> None:
        if self._batching is None:
            loop = asyncio.get_running_loop()
            self._batching = write_batching_of(loop)
            self._thread.start(loop)
            if self._store.config.is_sync_flush:
                self._kernel = KernelFlush.open()
            if self._kernel is not None:
                loop.add_reader(self._kernel.descriptor, self._end_in_kernel, self._kernel)
        self._batching.call_at_iteration_end(partial(self._begin, iterations, count))

    def _begin(self, iterations: int, count: int) -> None:
        """Close the group and start its flush, once an iteration brings no new waiter (or MAX_GATHER_ITERATIONS)."""
        arrived = self._arrived
        if arrived < self._last_count and arrived != count and iterations < MAX_GATHER_ITERATIONS:
            self._begin_at_iteration_end(iterations + 1, arrived)
            return
        # A waiter that arrives from here on belongs to the next flush, because its bytes may have been appended after
        # this flush has read the end of the log.
        self._flushing_end = self._store.max_physical_offset
        self._last_count, self._arrived = arrived, 0
        if self._kernel is None or not self._store.flusher.begin(self._kernel):
            self._thread.wake()

    def _end_in_kernel(self, kernel: KernelFlush) -> None:
        error: Exception | None = None
        try:
            self._store.flusher.end(kernel.result())
        except Exception as caught:
            error = caught
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if isinstance(error, OSError):  # the store knows whether it is unknown what reached the disk
            logger.error("flush failed: %s", error)
        elif error is not None:
            logger.error("flush failed", exc_info=error)
        self._waiting.wake_all()
        self.on_end()
        if self._arrived:
            self._begin_at_iteration_end(0, 0)
        else:
            self._is_running = False
            self._idle.set()

    def _try_complete(self, waiter: _Waiter, is_last: bool) -> bool:
        # Judged by the offset that is known to be on disk, not by the outcome of this flush: a checkpoint may have
        # flushed as well.
        is_flushed = self._store.flushed_physical_offset >= waiter.physical_offset
        if not is_flushed and not is_last and waiter.physical_offset > self._flushing_end:
            return False  # the next flush covers it
        waiter.done(is_flushed)
        return True


def _resolve(future: asyncio.Future[bool], is_flushed: bool) -> None:
    if not future.done():  # cancelled by its awaiter
        future.set_result(is_flushed)
