"""The engine: a directory that takes messages and gives them back.

    <store>/commitlog/      the messages                                    commit_log
           /consumequeue/   where the messages of each queue lie            consume_queue
           /index/          where the messages with a key lie               index
           /config/         the broker's small tables                       config_files
           /checkpoint      up to when everything is on disk                checkpoint
           /abort           there while the store is open, and after a crash
           /lock            held by whoever serves the store                lock

`put` writes a record into the mapped log and notes it as pending; `reput` writes the units and entries that lead to
what is pending, many at once. Every read winds `reput` first, so that whoever was told of a message can read it.
Nothing here waits for the disk but `flush` and `checkpoint`, which any thread may call while the owner's thread puts
and reads; all other methods belong to one thread.

A store that could not bring its bytes to disk cannot know what is there. After an error from fsync, or from a disk
that fills up in the middle of a dispatch, it refuses writes until it is opened again, and leaves `abort` behind so
that opening recovers. Reads go on.

Answers to org.apache.rocketmq.store.DefaultMessageStore. Deliberate differences: no record counts as being "in disk",
so a get is limited by the limits for memory alone; an fsync error is never swallowed (apache/rocketmq#2706).
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from rucola.errors import InvalidMessage, StoreError
from rucola.files import make_directory, sync_directory
from rucola.message import MessageInner, MessageInnerBatch, sysflag
from rucola.message.delay import parse_delay_levels
from rucola.message.properties import MAX_PROPERTIES_SIZE
from rucola.message.record import encode, encode_many
from rucola.store.checkpoint import Checkpoint
from rucola.store.commit_log import BLANK_SIZE, CommitLog
from rucola.store.config import (
    PUT_OK,
    GetMessageStatus,
    GetResult,
    PutBatchResult,
    PutMessageStatus,
    PutResult,
    QueryResult,
    StoreConfig,
)
from rucola.store.config_files import remove_temporary_files
from rucola.store.consume_queue import UNIT_SIZE, ConsumeQueue, flush_queues, iter_units, open_queues
from rucola.store.dispatch import ArrivalListener, ConsumeQueues, Dispatcher, DispatchRequest, check_queue_name
from rucola.store.index import MAX_LONG, Index
from rucola.store.lock import DirectoryLock
from rucola.store.mapped_file import MappedFile, MappedFileQueue
from rucola.store.read_batch import report_damaged_unit, take
from rucola.store.recovery import Recovery
from rucola.store.replica import Replica
from rucola.store.retention import DiskUsage, Retention

log = logging.getLogger(__name__)

_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Transient: this put fails, the store stays writable. Any other error makes it refuse writes."""

_MIN_UNITS_LOOKED_AT = 16_000 // UNIT_SIZE


class MessageStore:
    """A store, to be opened once and closed once; also a context manager, which opens at time 0.

    A put before which nothing was pending calls `on_pending`, so that `reput` is called soon. `reput` calls
    `on_arrival` with the topics that got messages; see `dispatch.ArrivalListener`. It may read.
    """

    def __init__(
        self,
        config: StoreConfig,
        on_arrival: ArrivalListener | None = None,
        on_pending: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self.refuses_writes: str | None = "the store is not open"
        """Why puts are turned away; None while they are taken."""
        self.failure: str | None = self.refuses_writes
        """Why they are turned away for good, until the store is opened again; a full disk is no such reason."""
        self._refusing = threading.Lock()
        self._refusal = "the broker is a slave, whose log is its master's alone" if config.is_slave else None
        self.replica: Replica | None = None  # of a slave, while the store is open
        self._root = Path(config.store_path_root_dir)
        self._store_host = config.store_host
        self._on_arrival = on_arrival
        self._on_pending = on_pending
        self._pending: list[DispatchRequest] = []
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._damaged: set[ConsumeQueue] = set()
        self._lost_bytes: OSError | None = None
        self._put_timestamp = self._dispatched_timestamp = self._flushing_timestamp = 0
        self._dirty: set[ConsumeQueue] = set()
        self._flushing: set[ConsumeQueue] = set()
        self._dirty_lock = threading.Lock()
        self._one_flush = threading.Lock()
        self._is_full = self._is_open = False

    # -- opening and closing ------------------------------------------------------------------------------------------

    def open(self, now_ms: int = 0) -> None:
        """Take the directory, recover what a crash left and be ready for puts.

        Raises StoreLocked where another broker has it, StoreCorrupt where the files contradict each other or the
        configuration, and StoreError where the system does not let it work there.
        """
        config, root = self.config, self._root
        with _said_clearly(root), ExitStack() as resources:
            make_directory(root)
            resources.callback(DirectoryLock(root).release)
            remove_temporary_files(root)
            abort = root / "abort"
            self._checkpoint = Checkpoint(root / "checkpoint")
            after_crash = abort.exists()
            files = MappedFileQueue.open(
                config.commit_log_directory,
                writable=True,
                file_size=config.mapped_file_size_commit_log,
                after_crash=after_crash,
            )
            resources.callback(files.close)
            self._queues = ConsumeQueues(root / "consumequeue", config.mapped_file_size_consume_queue)
            resources.callback(self._close_queues)
            place, size = self._queues.directory, self._queues.file_size
            self._queues.update(open_queues(place, writable=True, file_size=size, after_crash=after_crash))
            index = None
            if config.message_index_enable:
                slots, entries = config.max_hash_slot_num, config.max_index_num
                index = Index.open(root / "index", slots, entries, writable=True)
                resources.callback(index.close)
            self._dispatcher = Dispatcher(self._queues, index, parse_delay_levels(config.message_delay_level))
            recovery = Recovery(files, self._dispatcher, self._checkpoint, after_crash=after_crash)
            abort.touch()
            sync_directory(root)
            self._log = CommitLog(files, recovery.run())
            self._retention = Retention(config, self._log, self._queues, index)
            self._resources = resources.pop_all()
        self._log.flushed_end = self._log.begin if recovery.after_crash else self._log.end
        for name, queue in self._queues.items():
            self._next_offsets[name] = queue.max_offset
            if after_crash or queue.is_changed:
                self._dirty.add(queue)
            last_ms = self.store_time(*name, queue.max_offset - 1)
            self._put_timestamp = self._dispatched_timestamp = max(self._put_timestamp, last_ms)
        if self._refusal is not None:
            self.replica = Replica(self._log, self._queues.values(), self._next_offsets, self._note, self._forget)
        self._is_open = True
        self.failure, self.refuses_writes = None, self._refusal

    def _close_queues(self) -> None:
        for queue in self._queues.values():
            queue.files.close()

    def close(self) -> None:
        """Bring everything to disk and give the directory up. A store that refuses writes leaves `abort` behind.

        Raises OSError where the last flush fails; the directory is given up all the same.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self.failure is None:
                self.reput()
                if self.replica is not None:
                    self.replica.truncate()
            if self.failure is None:
                self.refuses_writes = "the store is closed"
                self.checkpoint()
                self._retention.delete()
                if self._dispatcher.index is not None:
                    self._dispatcher.index.flush()
                (self._root / "abort").unlink(missing_ok=True)
                sync_directory(self._root)
        finally:
            self.failure = self.refuses_writes = self.failure or "the store is closed"
            self._resources.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- putting ------------------------------------------------------------------------------------------------------

    def put(self, message: MessageInner, now_ms: int) -> PutResult:
        """Append one message, stored at `now_ms`, to its queue.

        With PUT_OK the message is in the log and readable, not yet on disk (see `flush`). Never raises for the contents
        of a message. Every one that fits a record and a file is accepted: maxMessageSize is for a broker's admissions.
        """
        if self.refuses_writes is not None:
            return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        commit_log = self._log
        topic, queue_id = name = (message.topic, message.queue_id)
        takes_place = not message.sys_flag & sysflag.TRANSACTION_PREPARED
        queue_offset = self._next_offsets.get(name, 0) if takes_place else 0
        physical_offset = commit_log.end
        try:
            if not queue_offset:
                check_queue_name(topic, queue_id)
            record = encode(message, queue_offset, physical_offset, now_ms, self._store_host)
            size = len(record)
            if physical_offset + size > commit_log.safe_end:
                if size + BLANK_SIZE > self.config.mapped_file_size_commit_log:
                    return PutResult(PutMessageStatus.MESSAGE_ILLEGAL)
                place = commit_log.ensure_room(size)
                self._is_full = False
                if place != physical_offset:
                    physical_offset = place
                    record = encode(message, queue_offset, physical_offset, now_ms, self._store_host)
            commit_log.append(record)
        except InvalidMessage as error:
            return PutResult(self._illegal(topic, queue_id, [message.properties], error))
        except OSError as error:
            return PutResult(self._no_room(error))
        self._put_timestamp = now_ms
        if takes_place:
            self._next_offsets[name] = queue_offset + 1
        if not self._pending and self._on_pending is not None:
            self._on_pending()
        self._pending.append(
            (
                topic, queue_id, queue_offset, physical_offset, size, now_ms,
                message.sys_flag, message.tags_code, message.unique_key, message.keys, message.properties,
            )
        )  # fmt: skip
        return PutResult(PUT_OK, physical_offset, queue_offset, size)

    def put_batch(self, batch: MessageInnerBatch, now_ms: int) -> PutBatchResult:
        """Append messages for one queue, all or none: contiguous in the queue and in one file of the log.

        Transaction messages cannot travel in a batch (MESSAGE_ILLEGAL), nor can nothing. Otherwise as `put`.
        """
        if self.refuses_writes is not None:
            return PutBatchResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        count = len(batch.bodies)
        if not count or batch.sys_flag & sysflag.TRANSACTION_MASK:
            return PutBatchResult(PutMessageStatus.MESSAGE_ILLEGAL)
        commit_log, host = self._log, self._store_host
        topic, queue_id = name = (batch.topic, batch.queue_id)
        queue_offset = self._next_offsets.get(name, 0)
        physical_offset = commit_log.end
        try:
            check_queue_name(topic, queue_id)
            records, sizes = encode_many(batch, queue_offset, physical_offset, now_ms, host)
            size = len(records)
            if size + BLANK_SIZE > self.config.mapped_file_size_commit_log:
                return PutBatchResult(PutMessageStatus.MESSAGE_ILLEGAL)
            place = commit_log.ensure_room(size)
            self._is_full = False
            if place != physical_offset:
                physical_offset = place
                records, sizes = encode_many(batch, queue_offset, physical_offset, now_ms, host)
            commit_log.append(records)
        except InvalidMessage as error:
            return PutBatchResult(self._illegal(topic, queue_id, batch.properties, error))
        except OSError as error:
            return PutBatchResult(self._no_room(error))
        physical_offsets = list(accumulate(sizes[:-1], initial=physical_offset))
        if not self._pending and self._on_pending is not None:
            self._on_pending()
        self._pending += zip(
            repeat(topic), repeat(queue_id), range(queue_offset, queue_offset + count), physical_offsets, sizes,
            repeat(now_ms), repeat(batch.sys_flag), batch.tags_codes, batch.unique_keys, batch.keys, batch.properties,
        )  # fmt: skip
        self._put_timestamp = now_ms
        self._next_offsets[name] = queue_offset + count
        return PutBatchResult(PUT_OK, physical_offsets, queue_offset, size)

    def _illegal(self, topic: str, queue_id: int, strings: Sequence[bytes], error: InvalidMessage) -> PutMessageStatus:
        log.debug("a message for %s-%d was refused: %s", topic, queue_id, error)
        if max(map(len, strings)) > MAX_PROPERTIES_SIZE:
            return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        return PutMessageStatus.MESSAGE_ILLEGAL

    def _no_room(self, error: OSError) -> PutMessageStatus:
        if not self._is_full:
            log.error("no place for a record at %d: %s", self._log.end, error)
        self._is_full = True  # logged once, not by every sender
        if error.errno not in _PASSING:
            self._fail(f"the disk gave no place for a message: {error}")
        return PutMessageStatus.CREATE_MAPEDFILE_FAILED

    def reput(self, max_count: int | None = None, max_new_queues: int | None = None) -> int:
        """Write the units and entries of what is pending, tell `on_arrival`, and return how many there were.

        What is above `max_count`, or needs more than `max_new_queues` new files, stays pending. An error from the disk
        makes the store refuse writes and is raised.
        """
        pending = self._pending
        if not pending:
            return 0
        self._pending = []
        end = len(pending) if max_count is None else max_count
        if max_new_queues is not None and len(self._next_offsets) > len(self._queues) + max_new_queues:
            end = self._queues.count_within_new_queues(pending[:end], max_new_queues)
        pending, rest = pending[:end], pending[end:]
        try:
            touched = self._dispatcher.dispatch(pending, self._on_arrival)
        except OSError as error:
            rest = []
            self._fail(f"a message could not be dispatched: {error}")
            raise
        finally:  # not before: who is told of arrivals may read, and reading dispatches
            self._pending = rest + self._pending
        with self._dirty_lock:
            self._dirty.update(touched)
            self._dispatched_timestamp = pending[-1][5]
        return len(pending)

    def _note(self, item: DispatchRequest) -> None:
        self._pending.append(item)
        self._put_timestamp = item[5]

    def _forget(self, topic: str, queue_id: int) -> None:
        """Drop a queue that begins anew."""
        self.reput()
        self._queues[topic, queue_id].delete()
        del self._queues[topic, queue_id]

    @property
    def has_pending(self) -> bool:
        """Whether something was put that `reput` has not dispatched yet."""
        return bool(self._pending)

    # -- to disk ------------------------------------------------------------------------------------------------------

    @property
    def last_store_timestamp(self) -> int:
        """When the last message was put, milliseconds; 0 for a store that never had one in a queue."""
        return self._put_timestamp

    @property
    def max_physical_offset(self) -> int:
        """The end of the log."""
        return self._log.end

    @property
    def min_physical_offset(self) -> int:
        """The beginning of the log."""
        return self._log.begin

    @property
    def flushed_physical_offset(self) -> int:
        """Every record that ends at or before this physical offset is on disk."""
        return self._log.flushed_end

    def flush(self) -> None:
        """Wait until every put that was answered before this call is on disk. For any thread.

        An error from fsync makes the store refuse writes from then on and is raised: the kernel may have dropped the
        pages that it could not write, so asking again proves nothing.
        """
        with self._one_flush:  # the kernel tells one caller alone that it failed; the next shall hear of it from him
            timestamp = self._put_timestamp
            self._sync(self._log.flush)
            self._checkpoint.physic_timestamp = timestamp or self._checkpoint.physic_timestamp

    def checkpoint(self, max_queues: int | None = None) -> None:
        """Bring log, queues and full index files to disk, and then the checkpoint that vouches for them.

        With `max_queues` a call flushes no more queues than that: the checkpoint vouches for what was in them when all
        that had something new have had their turn. For any thread, one at a time. Errors as in `flush`.
        """
        self.flush()
        with self._dirty_lock:
            if max_queues is None or not self._flushing:
                self._flushing, self._dirty = self._flushing | self._dirty, set()
                self._flushing_timestamp = self._dispatched_timestamp
        queues = list(self._flushing)[:max_queues]
        self._sync(lambda: flush_queues(queues, beside_others=max_queues is not None))
        self._flushing.difference_update(queues)
        point, index = self._checkpoint, self._dispatcher.index
        if not self._flushing:
            point.logics_timestamp = self._flushing_timestamp or point.logics_timestamp
        if index is not None:
            self._sync(index.flush_full_files)
            point.index_timestamp = max(point.index_timestamp, index.flushed_timestamp)
        self._sync(point.write)

    def warm(self) -> None:
        """Touch the next few megabytes of the log, so that puts do not wait for pages. For any thread."""
        self._log.warm()

    def _sync(self, flush: Callable[[], object]) -> None:
        if self._lost_bytes is not None:
            raise self._lost_bytes
        try:
            flush()
        except OSError as error:
            self._lost_bytes = error
            self._fail(f"the disk did not take what was stored: {error}")
            raise

    def _fail(self, why: str) -> None:
        log.error("%s refuses writes: %s", self._root, why)
        with self._refusing:
            self.failure = self.refuses_writes = why

    # -- retention ----------------------------------------------------------------------------------------------------

    def begin_retention_round(self, now_ms: int, hour: int, disks: Sequence[DiskUsage]) -> None:
        """Begin a round of retention, and refuse or take puts as full as the disks are.

        `hour` is the local one, `disks` has the figures of every file system on which the store lies.
        """
        self._retention.begin_round(now_ms, hour, disks)
        with self._refusing:
            if self.failure is None:
                self.refuses_writes = self._refusal or self._retention.refusal

    def expire(self, now_ms: int) -> bool:
        """Let the log begin after its oldest file, if the round lets that go. With True, call `delete_expired`."""
        return self._retention.expire(now_ms)

    def delete_expired(self) -> None:
        """Remove from the disk what `expire` took out. For any thread. Raises OSError; may be called again then."""
        self._retention.delete()

    def request_manual_deletion(self) -> None:
        """Let files that are old enough go in the next rounds, whatever the hour."""
        self._retention.request_manual_deletion()

    def delete_queue(self, topic: str, queue_id: int) -> bool:
        """Forget a queue all of whose messages have left the log; False where it has some. It would begin at 0 again.

        Raises OSError.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or queue.min_offset < queue.max_offset:
            return False
        queue.delete()
        del self._queues[topic, queue_id]
        self._next_offsets.pop((topic, queue_id), None)
        return True

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        max_bytes: int | None = None,
        accepts: Callable[[int], bool] | None = None,
        matches: Callable[[Mapping[str, str]], bool] | None = None,
    ) -> GetResult:
        """Return records of a queue from `queue_offset` on: up to `max_count`, and up to `max_bytes` after the first.

        `accepts` is asked with the tags code of each, then `matches` with the properties; what they refuse is passed
        over, and so is a unit that does not point at its record. Wherever that ends, `next_begin_offset` is where to go
        on; for an offset outside, the nearest inside.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0)
        begin, end = queue.min_offset, queue.max_offset
        status, correction = GetMessageStatus.NO_MATCHED_MESSAGE, -1
        if queue_offset < begin:
            status, correction = GetMessageStatus.OFFSET_TOO_SMALL, begin
        elif queue_offset == end:
            status, correction = GetMessageStatus.OFFSET_OVERFLOW_ONE, end
        elif queue_offset > end:
            status, correction = GetMessageStatus.OFFSET_OVERFLOW_BADLY, end
        if correction >= 0:
            return GetResult(status, correction, begin, end, [], 0)
        units = queue.units_in_file(queue_offset, max(_MIN_UNITS_LOOKED_AT, max_count))
        if not units:
            status = GetMessageStatus.OFFSET_FOUND_NULL
            return GetResult(status, queue.end_of_file(queue_offset), begin, end, [], 0)
        most, room, suggests_slave = self.config.transfer_limits(self._log.end - int.from_bytes(units[:8], "big"))
        max_count, max_bytes = min(max_count, most), room if max_bytes is None else max_bytes
        status, looked_at, records, total = take(
            self._log,
            units,
            queue_offset,
            max_count,
            max_bytes,
            accepts,
            matches,
            lambda at: report_damaged_unit(queue, at, self._damaged),
        )
        return GetResult(status, queue_offset + looked_at, begin, end, records, total, suggests_slave)

    def units(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of up to `max_count` units from `queue_offset` on.

        They end at the end of a file of the queue, so fewer may come while more are there; none where there is none.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return []
        return list(iter_units(queue.units_in_file(queue_offset, max_count)))

    def unit_array(self, topic: str, queue_id: int, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the units from `begin` to `end` as far as they are there: shape (n,), of type consume_queue.UNIT."""
        self.reput()
        return self._queues[topic, queue_id].units(begin, end)

    def hold_bytes(self, physical_offset: int, max_size: int) -> tuple[MappedFile, memoryview] | None:
        """Return bytes of the log in place; see `CommitLog.hold_bytes`."""
        return self._log.hold_bytes(physical_offset, max_size)

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the whole record that begins there, or None where none does."""
        return self._log.record(physical_offset)

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int = 0, end_ms: int = MAX_LONG, before: int = MAX_LONG
    ) -> QueryResult:
        """Return records whose key has the hash of `key`, at most maxMsgsNumBatch (64), the latest where more do.

        The caller compares the keys. The window is in whole seconds, see `index`. Physical offsets are below `before`.
        """
        self.reput()
        index = self._dispatcher.index
        if index is None:
            return QueryResult([], [], 0, 0, None)
        indexed = index.begin_timestamp, index.end_timestamp
        max_count = min(max_count, self.config.max_msgs_num_batch)
        offsets = index.query(topic, key, max_count, begin_ms, end_ms, before)
        if not offsets:
            return QueryResult([], [], 0, 0, indexed)
        found = [(offset, record) for offset in offsets if (record := self._log.record(offset)) is not None]
        records, offsets = [record for _, record in found], [offset for offset, _ in found]
        return QueryResult(records, offsets, index.end_timestamp, index.end_physical_offset, indexed)

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return {(topic, queue id): (min queue offset, max queue offset)} of every queue, half-open."""
        self.reput()
        for queue in self._queues.values():
            queue.raise_min_offset(self._log.begin)
        return {name: (queue.min_offset, queue.max_offset) for name, queue in self._queues.items()}

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read; 0 for a queue without messages."""
        queue = self._queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message will get; 0 for a queue without messages."""
        queue = self._queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a message; -1 where the queue does not have it."""
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        return self._log.store_timestamp(queue.unit(queue_offset)[0])

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the first message of a queue that can be read; -1 without one."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the message that was stored nearest to that time.

        Before the first that is the first, after the last the last; of two as near the earlier. Among messages of
        the same millisecond it is the one that Apache's halving meets first. An empty queue answers 0.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or queue.max_offset == queue.min_offset:
            return 0
        return queue.nearest_offset(timestamp_ms, self._log.store_timestamp)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue with everything that was put and is still there; None if nothing ever was."""
        if self._pending:
            self.reput()
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            queue.raise_min_offset(self._log.begin)
        return queue


@contextmanager
def _said_clearly(root: Path) -> Iterator[None]:
    """Turn an error of the system into one that names the store."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{root} cannot be opened: {error}") from error
