"""The flusher: makes log, ConsumeQueues and index durable, and then the checkpoint that covers them.

    flush         msync of the log; the periodic flush of ASYNC_FLUSH calls it, in a thread
    begin, end    the same by the kernel alone (`kernel_flush`), for the group commit of SYNC_FLUSH
    checkpoint    flush, then the dirty queues, the full index files, and last the checkpoint file

The order in `checkpoint` is the invariant of recovery: a time enters the checkpoint file only after everything up to
it is on disk. The checkpoint may be behind, never ahead.

fsync reports an error once, to one caller, and the kernel may drop the pages that it could not write. Therefore
flushes are serialised, so that every waiter gets the error, and the error stays: each later call raises it again
without asking the disk, and the store takes no puts until a recovery has found out what is there. Only a call that
asked the disk for nothing yet fails on its own: it got no descriptor, or the checkpoint file no space.

Corresponds to CommitLog.FlushRealTimeService and DefaultMessageStore.FlushConsumeQueueService of
org.apache.rocketmq.store. Deliberate difference: an fsync error is never swallowed (apache/rocketmq#2706).
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
    """The flusher of one open store.

    Threads: `mark_dirty`, `begin` and `end` are called by the store's owner. `flush` may be called by any thread,
    `checkpoint` by any one thread at a time. Neither holds a lock that `mark_dirty` or a put needs while the disk
    works.
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
        """Makes the store FAILED, with the reason."""
        self._put_timestamp = put_timestamp
        """Returns the store time of the last put, in milliseconds."""
        self._checkpoint = checkpoint
        """Its physic_timestamp is guarded by `_flush_lock`; the rest belongs to the thread in `checkpoint`."""
        self._flush_lock = threading.Lock()
        """Held during an fsync of the log: a waiter that comes meanwhile flushes after it, and so sees its error."""
        self._begun: tuple[Unflushed, int] | None = None
        """What `begin` began to flush, and the store time of its last record. Guarded by `_flush_lock`."""
        self._dirty_lock = threading.Lock()
        """Guards the next two attributes; never held while the disk works."""
        self._dirty: set[ConsumeQueue] = set()
        """Queues with units that no `checkpoint` has begun to flush."""
        self._dispatched_timestamp = 0
        """The store time of the last message whose unit is written."""
        self._flushing: set[ConsumeQueue] = set()
        """Queues that the current pass over the dirty queues has still to flush. Belongs to `checkpoint`."""
        self._flushing_timestamp = 0
        """The store time that the checkpoint gets for the queues when the pass ends. Belongs to `checkpoint`."""
        self._error: OSError | None = None
        """The first error of the disk. Set once, by any thread; never reset."""

    def mark_dirty(self, queues: Iterable[ConsumeQueue], dispatched_timestamp: int | None) -> None:
        """Note queues with new units, and the last dispatched message's store time.

        None keeps the time before: the dispatch is not complete.
        """
        with self._dirty_lock:
            self._dirty.update(queues)
            if dispatched_timestamp is not None:
                self._dispatched_timestamp = dispatched_timestamp

    def _written_timestamp(self) -> int:
        """Return the store time of the last put; 0 if its record may be collected.

        A collected record is no part of a flush.
        """
        timestamp = self._put_timestamp()  # first: the log may begin to collect meanwhile
        return 0 if self._log.is_behind else timestamp

    def flush(self) -> None:
        """Wait until every record that was put before this call is on disk.

        Raises OSError if the disk fails now or failed before; the store is FAILED then (see `write_state`). Without a
        descriptor it raises OSError, too, but the store stays as it is, and the next call may succeed.
        """
        with self._flush_lock:
            # Read before the flush, which need not contain messages that are put meanwhile. 0 if there was never a
            # message.
            timestamp = self._written_timestamp()
            self._sync(self._log.flush)
            self._checkpoint.physic_timestamp = timestamp or self._checkpoint.physic_timestamp

    def begin(self, kernel: KernelFlush) -> bool:
        """Begin to flush every record that was put before this call.

        The caller calls `end` when the kernel is done. False if `flush` has to be called instead, in a thread: while
        another thread flushes, so that both see its error; after an error; if more than one file, or the name of a
        file, has to be made durable.
        """
        if self._error is not None or not self._flush_lock.acquire(blocking=False):
            return False
        # The lock is kept until `end`: a `flush` in another thread waits for this one, and then sees its error.
        timestamp, unflushed = self._written_timestamp(), self._log.unflushed()
        descriptor = self._log.descriptor_of(unflushed)
        if descriptor is None or not kernel.submit(descriptor):
            self._flush_lock.release()
            return False
        self._begun = unflushed, timestamp
        return True

    def end(self, error: OSError | None) -> None:
        """Complete what `begin` began, with the result of the kernel. Raises OSError as `flush`."""
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
        """Make log, queues and full index files durable, then the checkpoint. Errors as in `flush`.

        With `max_queues` one call flushes at most that many queues, so that a store with thousands of them spreads the
        work. The checkpoint advances for the queues when a pass over all that were dirty at its start is complete:

            dirty A B C, max_queues=2:  flushes A B;  flushes C, advances;  flushes what is dirty since the first call
        """
        # 1. The log, first of all: a unit on disk must not point at a record that is not.
        self.flush()
        # 2. Begin a pass over the dirty queues, or continue the one that is not complete.
        with self._dirty_lock:
            # A queue that gets units from here on is dirty again, and part of the next pass.
            if max_queues is None or not self._flushing:
                self._flushing, self._dirty = self._flushing | self._dirty, set()
                self._flushing_timestamp = self._dispatched_timestamp
        # 3. The queues of this call.
        queues = list(self._flushing)[:max_queues]
        self._sync(lambda: flush_queues(queues, beside_others=max_queues is not None))
        self._flushing.difference_update(queues)
        point, index = self._checkpoint, self._index
        if not self._flushing:
            point.logics_timestamp = self._flushing_timestamp or point.logics_timestamp
        # 4. Index files that are full; a crash drops the last one anyway.
        if index is not None:
            self._sync(index.flush_full_files)
            point.index_timestamp = max(point.index_timestamp, index.flushed_timestamp)
        # 5. The checkpoint file, last.
        self._sync(point.write, EXHAUSTED)

    def _sync(self, flush: Callable[[], object], passing: Collection[int] = NO_DESCRIPTOR) -> None:
        """Call `flush`, unless an earlier one failed.

        Its error is raised, and makes the store FAILED. Errors with a number in `passing` do not: for log, queues and
        index those that no fsync has. The checkpoint file may get no space: one that holds the times before, or the new
        ones, is true in either case.
        """
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
