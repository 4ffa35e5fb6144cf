"""The flusher: makes log, ConsumeQueues and index durable, and then the checkpoint that covers them.

    flush         msync of the log; the periodic flush of ASYNC_FLUSH calls it, in a thread
    begin, end    the same by the kernel alone (`kernel_flush`), for the group commit of SYNC_FLUSH
    checkpoint    flush, then the dirty queues, the index without its slots, and last the checkpoint file

This order is the invariant of recovery: the checkpoint may be late, but never ahead of the disk.

fsync reports an error once, to one caller, and the kernel may drop the pages that it could not write. Therefore
flushes are serialised, so that every waiter gets the error, each later call raises it again, and the store refuses
puts until a recovery. Only a call that wrote nothing fails alone: without a descriptor, or space for the checkpoint.

Corresponds to `CommitLog.FlushRealTimeService` and `DefaultMessageStore.FlushConsumeQueueService` of
Apache RocketMQ 4.9.8. Deliberate difference: an fsync error is never swallowed (apache/rocketmq#2706).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from rucola.store.checkpoint import Checkpoint
from rucola.store.commit_log import CommitLog, Unflushed
from rucola.store.consume_queue import ConsumeQueue, flush_queues
from rucola.store.index import Index
from rucola.store.kernel_flush import KernelFlush
from rucola.system_calls import EXHAUSTED, NO_DESCRIPTOR


class Flusher:
    """The flusher of one open store; `flush` is for any thread, `checkpoint` for one, the rest for the owner.

    No lock that `mark_dirty` or a put needs is held during I/O.
    """

    __slots__ = (
        "_begun",
        "_checkpoint",
        "_dirty",
        "_dirty_lock",
        "_dispatched_timestamp",
        "_error",
        "_fail",
        "_flush_lock",
        "_flushing",
        "_flushing_timestamp",
        "_index",
        "_log",
        "_put_timestamp",
    )

    def __init__(
        self,
        log: CommitLog,
        index: Index | None,
        checkpoint: Checkpoint,
        fail: Callable[[str], None],
        put_timestamp: Callable[[], int],
    ) -> None:
        self._log = log
        self._index = index
        self._fail = fail
        self._put_timestamp = put_timestamp
        self._checkpoint = checkpoint
        """Its physic_timestamp is guarded by `_flush_lock`; the rest belongs to the thread in `checkpoint`."""
        self._flush_lock = threading.Lock()
        """Held during an fsync of the log: a waiter flushes after it, and so gets its error."""
        self._begun: tuple[Unflushed, int] | None = None
        self._dirty_lock = threading.Lock()
        """Guards the next two attributes; never held during I/O."""
        self._dirty: set[ConsumeQueue] = set()
        """Queues with units that no `checkpoint` has started to flush."""
        self._dispatched_timestamp = 0
        """The store time of the last message whose unit is written."""
        self._flushing: set[ConsumeQueue] = set()
        self._flushing_timestamp = 0
        self._error: OSError | None = None
        """The first error of the disk. Set once, by any thread; never reset."""

    def mark_dirty(self, queues: Iterable[ConsumeQueue], dispatched_timestamp: int | None) -> None:
        """Note queues with new units, and the last store time; None while the dispatch is not complete."""
        with self._dirty_lock:
            self._dirty.update(queues)
            if dispatched_timestamp is not None:
                self._dispatched_timestamp = dispatched_timestamp

    def flush(self) -> None:
        """Make every record that was put before this call durable.

        Raises OSError, which makes the store FAILED (see `write_state`) unless only a descriptor was missing.
        """
        with self._flush_lock:
            # Read before the flush, which need not contain later messages. 0 if there was never a message.
            timestamp = self._put_timestamp()
            self._sync(self._log.flush)
            self._checkpoint.physic_timestamp = timestamp or self._checkpoint.physic_timestamp

    def begin(self, kernel: KernelFlush) -> bool:
        """Start to flush what was put before this call; call `end` when the kernel is done.

        False if `flush` has to be called in a thread: during its run, after an error, or for more than one file or a
        directory entry.
        """
        if self._error is not None or not self._flush_lock.acquire(blocking=False):
            return False
        # The lock is kept until `end`: a `flush` in another thread waits for this one, and then gets its error.
        timestamp, unflushed = self._put_timestamp(), self._log.unflushed()
        descriptor = self._log.descriptor_of(unflushed)
        if descriptor is None or not kernel.submit(descriptor):
            self._flush_lock.release()
            return False
        self._begun = unflushed, timestamp
        return True

    def end(self, error: OSError | None) -> None:
        """Complete `begin` with the kernel's result. Raises OSError as `flush`."""
        assert self._begun is not None
        unflushed, timestamp = self._begun

        def complete() -> None:
            if error is not None:
                raise error
            self._log.mark_flushed(unflushed)

        try:
            self._sync(complete)
            self._checkpoint.physic_timestamp = timestamp or self._checkpoint.physic_timestamp
        finally:
            self._begun = None
            self._flush_lock.release()

    def checkpoint(self, max_queues: int | None = None) -> None:
        """Make log, queues and index entries durable, then the checkpoint. Errors as in `flush`.

        With `max_queues`, the checkpoint advances only after a pass over all queues that were dirty at its start.
        """
        # The log, first of all: a unit on disk must not point at a record that is not.
        self.flush()
        with self._dirty_lock:
            # A queue that gets units from here on is dirty again, and part of the next pass.
            if max_queues is None or not self._flushing:
                self._flushing, self._dirty = self._flushing | self._dirty, set()
                self._flushing_timestamp = self._dispatched_timestamp
        queues = list(self._flushing)[:max_queues]
        self._sync(lambda: flush_queues(queues, beside_others=max_queues is not None))
        self._flushing.difference_update(queues)
        point, index = self._checkpoint, self._index
        # Before the checkpoint covers their messages: a recovery keeps the entries of messages before it.
        if index is not None:
            self._sync(index.flush_entries)
            point.index_timestamp = index.flushed_timestamp or point.index_timestamp
        if not self._flushing:
            point.logics_timestamp = self._flushing_timestamp or point.logics_timestamp
        self._sync(point.write, EXHAUSTED)

    def _sync(self, flush: Callable[[], object], passing: Collection[int] = NO_DESCRIPTOR) -> None:
        """Call `flush` unless one failed; an error makes the store FAILED, except for those in `passing`."""
        if self._error is not None:
            raise self._error
        try:
            flush()
        except OSError as error:
            if error.errno in passing:
                raise
            self._error = error
            self._fail(f"the disk failed during a flush, so it is unknown what is stored: {error}")
            raise
