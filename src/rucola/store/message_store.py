"""The message store: a directory of messages to put, read, and query by key.

    <store>/commitlog/      the records of all messages                                    commit_log
           /consumequeue/   for each queue, where its records are                          consume_queue
           /index/          for each key, the offsets of its records                       index
           /config/         the broker's small tables                                      config_files
           /checkpoint      the store times up to which log, queues and index are on disk  checkpoint
           /abort           exists while the store is open, and after a crash
           /lock            locked by the broker that serves the store                     lock

    put        encodes the record into the mapped log and adds a dispatch request to the pending ones
    reput      writes the ConsumeQueue units and index entries of the pending requests, in one batch
    flush      makes the log durable; `checkpoint` also the queues and the index (see `flusher`)
    get        reads records by queue offset; like every read it calls `reput` first

Any thread may call `flush`, `checkpoint`, `warm` and `delete_expired`; all other methods belong to the owner's thread.
Only `flush` and `checkpoint` wait for the disk.

After an fsync error the store refuses puts until it is opened again (`write_state`), and leaves `abort`, so that it
recovers. Without disk space or descriptors it refuses puts in the meantime (`pending`). It serves reads in both cases.

Corresponds to `DefaultMessageStore` of Apache RocketMQ 4.9.8. Deliberate difference: an fsync error is never swallowed
(apache/rocketmq#2706).
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy.typing as npt
from msgspec import structs

from rucola import slices
from rucola.errors import InvalidMessage
from rucola.files import FILE_MODE, make_directory, sync_directory
from rucola.message import MessageInner, MessageInnerBatch, sysflag
from rucola.message.delay import parse_delay_levels
from rucola.message.properties import MAX_PROPERTIES_SIZE
from rucola.message.record import LARGE_BODY, encode, encode_many, encode_parts
from rucola.speed import QueueOffsets
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
from rucola.store.consume_queue import (
    ConsumeQueue,
    MappingPool,
    TagsCodeReader,
    check_queue_name,
    iter_units,
    open_queues,
)
from rucola.store.directory_lock import DirectoryLock, naming_store
from rucola.store.dispatch import ArrivalListener, CommitLogDispatcher, ConsumeQueues
from rucola.store.dispatch_request import DispatchRequest, dispatch_requests, tags_code_reader
from rucola.store.features import check_features, check_units
from rucola.store.flusher import Flusher
from rucola.store.held_bytes import HeldBytes
from rucola.store.index import MAX_LONG, Index
from rucola.store.mapped_file import MappedFileQueue
from rucola.store.multi_dispatch import MULTI_DISPATCH_NAME, MultiDispatch, assign_offsets, further_units
from rucola.store.pending import PendingRequests
from rucola.store.query import query_steps
from rucola.store.read_batch import QueueReader
from rucola.store.recovery import Recovery
from rucola.store.replica import Replica
from rucola.store.retention import DiskUsage, Retention
from rucola.store.write_state import WriteState, WriteStatus
from rucola.system_calls import EXHAUSTED

log = logging.getLogger(__name__)

_PREPARED: Final = sysflag.TRANSACTION_PREPARED
_TRANSACTION: Final = sysflag.TRANSACTION_MASK
_OFF: Final = MultiDispatch.OFF


class MessageStore:
    """A message store, opened and closed once; as a context manager, opened at time 0.

    A put, or a slave's copy of a record, that finds no pending request calls `on_pending`, to request a `reput`, which
    calls `on_arrival` with new units by topic. That may read from the store.
    """

    def __init__(
        self,
        config: StoreConfig,
        on_arrival: ArrivalListener | None = None,
        on_pending: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self.write_state = WriteState(is_slave=config.is_slave)
        self.replica: Replica | None = None
        """Appends the master's log; None unless this is an open store of a slave."""
        self._multi_dispatch = config.multi_dispatch
        self._root = Path(config.store_path_root_dir)
        self._store_host = config.store_host
        self._on_arrival = on_arrival
        self._on_pending = on_pending
        self._pending: list[DispatchRequest] = []
        self._next_offsets: QueueOffsets = {}
        self.recovered = (0, 0)
        """While the store opens: the physical offset up to which the log is read, and one that it ends before."""
        self._put_timestamp = 0
        """The store time of the last put, in milliseconds. The flusher's thread reads it."""
        self._is_full = False
        self._is_open = False
        self.visible_end: int | None = None
        """The physical offset from which on consumers see nothing, set by the owner; None for the end of the log."""

    def set_host(self, store_host: bytes) -> None:
        """Set the encoded address of future records; a broker opens its store before binding its port."""
        self._store_host = store_host

    # -- opening and closing ------------------------------------------------------------------------------------------

    def open(self, now_ms: int = 0) -> None:
        """Lock the directory, recover from a crash if there was one, and accept puts.

        Raises StoreLocked, StoreCorrupt if the files contradict each other or the configuration, and StoreError.
        """
        config, root = self.config, self._root
        with naming_store(root), _without_gc(), ExitStack() as resources:
            check_features(config)
            make_directory(root)
            resources.callback(DirectoryLock(root, config.commit_log_directory).release)
            remove_temporary_files(root)
            abort = root / "abort"
            after_crash = abort.exists()
            checkpoint = Checkpoint(root / "checkpoint")
            files = MappedFileQueue.open(
                config.commit_log_directory,
                writable=True,
                file_size=config.mapped_file_size_commit_log,
                after_crash=after_crash,
            )
            resources.callback(files.close)
            delay_levels = parse_delay_levels(config.message_delay_level)
            self._open_queues(tags_code_reader(files, delay_levels), after_crash)
            resources.callback(self._close_queues)
            check_units(self._queues.values(), files, self._multi_dispatch)
            index = None
            if config.message_index_enable:
                slots, entries = config.max_hash_slot_num, config.max_index_num
                index = Index.open(root / "index", slots, entries, writable=True)
                resources.callback(index.close)
            # `abort` exists from here on: a crash during the recovery starts it again.
            self._dispatcher = CommitLogDispatcher(self._queues, index, delay_levels)
            recovery = Recovery(
                files, self._dispatcher, checkpoint, self._multi_dispatch, self._on_recovery, after_crash=after_crash
            )
            abort.touch(FILE_MODE)
            sync_directory(root)
            self._log = CommitLog(files, recovery.run(), is_flushed_by_puts=config.is_sync_flush)
            self._reader = QueueReader(self._log, config)
            self._retention = Retention(config, self._log, self._queues, index)
            self._resources = resources.pop_all()
        # After a crash nothing counts as flushed.
        self._log.flushed_end = self._log.begin if recovery.after_crash else self._log.end
        self.flusher = Flusher(self._log, index, checkpoint, self._fail, lambda: self._put_timestamp)
        self._requests = PendingRequests(
            self._pending, self._dispatcher, self.flusher, self.write_state, self._on_arrival, self._fail, root
        )
        self._restore_queue_state(after_crash)
        if config.is_slave:
            self.replica = Replica(
                self._log,
                self._queues.values(),
                self._next_offsets,
                self._enqueue,
                self._restart,
                self._multi_dispatch,
            )
        self._is_open = True
        self.write_state.open()

    def _on_recovery(self, physical_offset: int, end: int) -> None:
        self.recovered = physical_offset, end

    def _open_queues(self, read_tags_code: TagsCodeReader, after_crash: bool) -> None:
        self._queues = ConsumeQueues(self._root / "consumequeue", self.config.mapped_file_size_consume_queue)
        directory, file_size = self._queues.directory, self._queues.file_size
        for name, queue in open_queues(
            directory, read_tags_code, self._queues.pool,
            writable=True, file_size=file_size, after_crash=after_crash,
        ).items():  # fmt: skip
            self._queues[name] = queue

    def _close_queues(self) -> None:
        for queue in self._queues.values():
            queue.files.close()

    def _restore_queue_state(self, after_crash: bool) -> None:
        dirty, last_end = [], -1
        for name, queue in self._queues.items():
            self._next_offsets[name] = queue.max_offset
            if after_crash or queue.is_changed:
                dirty.append(queue)
            if (end := queue.max_physical_offset) > last_end:
                last_end, last = end, queue
        if last_end >= 0:
            self._put_timestamp = max(self._log.store_timestamp(last.unit(last.max_offset - 1)[0]), 0)
        self.flusher.mark_dirty(dirty, self._put_timestamp)

    def close(self) -> None:
        """Make everything durable and unlock, even on OSError; `abort` stays if the store failed or is stalled."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self.write_state.failure is None:
                self._requests.dispatch()
                if self.replica is not None:
                    self.replica.truncate()
            if self.write_state.failure is None:
                self.write_state.close()
                self.checkpoint()
            if self.write_state.status is WriteStatus.CLOSED and not self._requests:
                self._retention.delete()
                if self._dispatcher.index is not None:
                    self._dispatcher.index.flush()
                (self._root / "abort").unlink(missing_ok=True)
                sync_directory(self._root)
        finally:
            self.write_state.close()
            self._resources.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- putting ------------------------------------------------------------------------------------------------------

    def put(self, message: MessageInner, now_ms: int, *, frees_space: bool = False) -> PutResult:
        """Append one message, stored at `now_ms`, to its queue; it can be read then, but is not on disk (see `flush`).

        Never raises for the contents of a message, and accepts every message that fits a record and a file. A put that
        `frees_space`, since a log file can be deleted after it, is accepted on a full disk.
        """
        state = self.write_state
        if not state.is_writable and not (frees_space and state.status is WriteStatus.DISK_FULL):
            return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        # A prepared message is in no queue and has queue offset 0.
        commit_log = self._log
        topic, queue_id = name = (message.topic, message.queue_id)
        is_queued = not message.sys_flag & _PREPARED
        queue_offset = self._next_offsets.get(name, 0) if is_queued else 0
        # Encode for the current end. If the record opens a new file, encode again for its physical offset there.
        physical_offset = commit_log.end
        encoded = encode if len(message.body) < LARGE_BODY else encode_parts
        try:
            if not queue_offset:
                check_queue_name(topic, queue_id)
            further = self._multi_dispatch is not _OFF and MULTI_DISPATCH_NAME in message.properties and is_queued
            if further:
                message = self._with_further_offsets(message)
                if self._has_too_many_lmqs(message):
                    return PutResult(PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED)
            record = encoded(message, queue_offset, physical_offset, now_ms, self._store_host)
            size = len(record)
            if physical_offset + size > commit_log.safe_end:
                if size + BLANK_SIZE > self.config.mapped_file_size_commit_log:
                    return PutResult(PutMessageStatus.MESSAGE_ILLEGAL)
                begin = commit_log.ensure_room(size)
                self._is_full = False
                if begin != physical_offset:
                    physical_offset = begin
                    record = encoded(message, queue_offset, physical_offset, now_ms, self._store_host)
            commit_log.append(record)
        except InvalidMessage as error:
            return PutResult(self._illegal(topic, queue_id, [message.properties], error))
        except OSError as error:
            return PutResult(self._no_room(error))
        # From here on the put has succeeded.
        self._put_timestamp = now_ms
        if is_queued:
            self._next_offsets[name] = queue_offset + 1
        if not self._pending and self._on_pending is not None:
            self._on_pending()
        request = DispatchRequest(
            topic, queue_id, queue_offset, physical_offset, size, now_ms,
            message.sys_flag, message.tags_code, message.unique_key, message.keys, message.properties,
        )  # fmt: skip
        self._pending.append(request)
        if further:
            for other in dispatch_requests(request, self._multi_dispatch)[1:]:
                self._next_offsets[other.topic, other.queue_id] = other.queue_offset + 1
                self._pending.append(other)
        return PutResult(PUT_OK, physical_offset, queue_offset, size)

    def _with_further_offsets(self, message: MessageInner) -> MessageInner:
        own = (message.topic, message.queue_id)
        stored = assign_offsets(message.properties, own, self._multi_dispatch, self._next_offsets)
        return structs.replace(message, properties=stored)

    def _has_too_many_lmqs(self, message: MessageInner) -> bool:
        queues = further_units(message.properties, (message.topic, message.queue_id), self._multi_dispatch)
        new = sum(name not in self._next_offsets for name in queues)
        if not new:
            return False
        self._reput_unless_stalled()
        return new + self._queues.lmq_count > self.config.max_lmq_consume_queue_num

    def put_batch(self, batch: MessageInnerBatch, now_ms: int) -> PutBatchResult:
        """Append messages, all or none, contiguous in one log file and in each queue; otherwise like `put`.

        MESSAGE_ILLEGAL for an empty batch, transaction messages and messages for further queues.
        """
        if not self.write_state.is_writable:
            return PutBatchResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        if not batch.bodies:
            return PutBatchResult(PutMessageStatus.MESSAGE_ILLEGAL)
        for sys_flag in batch.sys_flags:
            if sys_flag & _TRANSACTION:
                return PutBatchResult(PutMessageStatus.MESSAGE_ILLEGAL)
        if self._multi_dispatch is not _OFF and any(MULTI_DISPATCH_NAME in stored for stored in batch.properties):
            return PutBatchResult(PutMessageStatus.MESSAGE_ILLEGAL)
        commit_log, host, next_offsets = self._log, self._store_host, self._next_offsets
        physical_offset = commit_log.end
        try:
            queue_offsets, ends = list[int](), QueueOffsets()
            for name in zip(batch.topics, batch.queue_ids, strict=True):
                offset = ends.get(name, 0) or next_offsets.get(name, 0)
                if not offset:
                    check_queue_name(*name)
                queue_offsets.append(offset)
                ends[name] = offset + 1
            records, physical_offsets, sizes = encode_many(batch, queue_offsets, physical_offset, now_ms, host)
            size = len(records)
            if physical_offset + size > commit_log.safe_end:
                if size + BLANK_SIZE > self.config.mapped_file_size_commit_log:
                    return PutBatchResult(PutMessageStatus.MESSAGE_ILLEGAL)
                begin = commit_log.ensure_room(size)
                self._is_full = False
                if begin != physical_offset:
                    records, physical_offsets, sizes = encode_many(batch, queue_offsets, begin, now_ms, host)
            # `map` creates the requests without a Python-level loop.
            requests = list(
                map(
                    DispatchRequest,
                    batch.topics, batch.queue_ids, queue_offsets, physical_offsets, sizes, repeat(now_ms),
                    batch.sys_flags, batch.tags_codes, batch.unique_keys, batch.keys, batch.properties,
                )
            )  # fmt: skip
            commit_log.append(records)
        except InvalidMessage as error:
            return PutBatchResult(self._illegal(batch.topics[0], batch.queue_ids[0], batch.properties, error))
        except OSError as error:
            return PutBatchResult(self._no_room(error))
        # From here on the put has succeeded.
        self._put_timestamp = now_ms
        next_offsets.update(ends)
        was_pending = bool(self._pending)
        self._pending += requests
        if not was_pending and self._on_pending is not None:
            self._on_pending()
        return PutBatchResult(PUT_OK, physical_offsets, queue_offsets, size)

    def _illegal(self, topic: str, queue_id: int, strings: Sequence[bytes], error: InvalidMessage) -> PutMessageStatus:
        log.debug("%s-%d: message refused: %s", topic, queue_id, error)
        if max(map(len, strings)) > MAX_PROPERTIES_SIZE:
            return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        return PutMessageStatus.MESSAGE_ILLEGAL

    def _no_room(self, error: OSError) -> PutMessageStatus:
        if not self._is_full:
            log.error("no space for a record at %d: %s", self._log.end, error)
        self._is_full = True
        if error.errno not in EXHAUSTED:
            self._fail(f"the disk gave no space for a message: {error}")
        return PutMessageStatus.CREATE_MAPEDFILE_FAILED

    @property
    def is_accepting(self) -> bool:
        """Whether the store is writable, and had space for the last message."""
        return self.write_state.is_writable and not self._is_full

    def reput(self, max_count: int | None = None, max_new_queues: int | None = None) -> int:
        """Dispatch the pending requests, call `on_arrival`, and return their number.

        Leaves those beyond `max_count` (or a quarter, if that is more) and from the first that exceeds
        `max_new_queues`. 0 if STALLED; the next call continues. Another OSError makes the store FAILED.

        Corresponds to `ReputMessageService.doReput`.
        """
        if max_new_queues is not None and len(self._next_offsets) <= len(self._queues) + max_new_queues:
            max_new_queues = None
        return self._requests.dispatch(max_count, max_new_queues) if self.has_pending else 0

    def _enqueue(self, request: DispatchRequest) -> None:
        if not self._pending and self._on_pending is not None:
            self._on_pending()
        self._pending.append(request)
        self._put_timestamp = request.store_timestamp

    def _restart(self, topic: str, queue_id: int) -> None:
        self.reput()
        if self.has_pending:
            raise OSError(self._requests.stall)
        self._queues[topic, queue_id].delete()
        del self._queues[topic, queue_id]

    @property
    def has_pending(self) -> bool:
        return bool(self._pending) or (self._is_open and self.stall is not None)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def stall(self) -> str | None:
        """Why pending requests cannot be dispatched and puts are refused; None if they can."""
        return self._requests.stall

    # -- durability ---------------------------------------------------------------------------------------------------

    @property
    def last_store_timestamp(self) -> int:
        """The last put's store time in milliseconds; 0 if no queue ever had a message."""
        return self._put_timestamp

    @property
    def max_physical_offset(self) -> int:
        return self._log.end

    @property
    def min_physical_offset(self) -> int:
        return self._log.begin

    @property
    def oldest_file_end(self) -> int:
        return self._log.next_file_begin(self._log.begin)

    @property
    def flushed_physical_offset(self) -> int:
        """The physical offset up to which all records are on disk."""
        return self._log.flushed_end

    def flush(self) -> None:
        """Wait until every put that has returned is on disk. For any thread; see `Flusher.flush`."""
        self.flusher.flush()

    def checkpoint(self, max_queues: int | None = None) -> None:
        """Make log, queues and index durable, and then the checkpoint. For one thread; see `Flusher.checkpoint`."""
        self.flusher.checkpoint(max_queues)

    def warm(self, pause: Callable[[], None] | None = None) -> None:
        """Prefault the pages of the next puts. For any thread; see `CommitLog.warm`."""
        self._log.warm(pause)

    def _fail(self, reason: str) -> None:
        log.error("%s takes no more messages: %s", self._root, reason)
        self.write_state.fail(reason)

    # -- retention ----------------------------------------------------------------------------------------------------

    def begin_retention_round(self, now_ms: int, hour: int, disks: Sequence[DiskUsage]) -> None:
        """Start a retention round, given the local hour and the store's file systems; adjust the write state."""
        self._queues.pool.unmap_idle()
        self._log.close_idle()
        self._retention.begin_round(now_ms, hour, disks)
        self.write_state.set_disk_full(self._retention.refusal)

    @property
    def disks(self) -> Sequence[DiskUsage]:
        """The disks of the CommitLog and of the store directory, as the last retention round found them."""
        return self._retention.disks

    def will_expire(self, now_ms: int) -> bool:
        return self._retention.will_expire(now_ms)

    def expire(self, now_ms: int, *, is_due: bool = True) -> bool:
        """Remove the oldest file from the log if the round permits. If True, call `delete_expired`."""
        return self._retention.expire(now_ms, is_due=is_due)

    def delete_expired(self) -> None:
        """Delete the files that `expire` removed. For any thread. Raises OSError; may be repeated then."""
        self._retention.delete()

    def request_manual_deletion(self) -> None:
        self._retention.request_manual_deletion()

    def delete_queue(self, topic: str, queue_id: int) -> bool:
        """Delete a queue without messages, which would start at 0 again; False if it has any. Raises OSError."""
        if (queue := self._queue(topic, queue_id)) is None or queue.min_offset < queue.max_offset:
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
        may_hold: bool = False,
    ) -> GetResult:
        """Return up to `max_count` records from `queue_offset` on, up to `max_bytes` after the first.

        `accepts` gets the tags code, then `matches` the properties; rejected messages and damaged units are skipped.
        The next get continues at `next_begin_offset`; from outside the queue it is the nearest offset inside. With
        `may_hold`, a large record may be HeldBytes for the caller.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, b"", 0)
        begin, visible_end = queue.min_offset, self.visible_end
        end = queue.max_offset if visible_end is None else queue.end_before(visible_end)
        if not begin <= queue_offset < end:
            status, correction = GetMessageStatus.OFFSET_OVERFLOW_BADLY, end
            if queue_offset < begin:
                status, correction = GetMessageStatus.OFFSET_TOO_SMALL, begin
            elif queue_offset <= queue.max_offset:
                status, correction = GetMessageStatus.OFFSET_OVERFLOW_ONE, queue_offset
            return GetResult(status, correction, begin, end, b"", 0)
        return self._reader.read(queue, end, queue_offset, max_count, max_bytes, accepts, matches, may_hold)

    def units(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of up to `max_count` units, at most to the end of a queue file."""
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return []
        return list(iter_units(queue.units_in_file(queue_offset, max_count)))

    def unit_array(self, topic: str, queue_id: int, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the existing units from `begin` to `end`: shape (n,), type consume_queue.UNIT."""
        self._reput_unless_stalled()
        return self._queues[topic, queue_id].units(begin, end)

    def hold_bytes(self, physical_offset: int, max_size: int) -> HeldBytes | None:
        return self._log.hold_bytes(physical_offset, max_size)

    def record_at(self, physical_offset: int) -> bytes | None:
        return self._log.record(physical_offset)

    def next_record(self, physical_offset: int) -> int:
        """Return where the first record at or after a physical offset begins; the end of the log if none does."""
        return self._log.next_record(physical_offset)

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = MAX_LONG,
        before: int = MAX_LONG,
        after: int = -1,
    ) -> QueryResult:
        """Return the latest records with the hash of `key`, up to maxMsgsNumBatch and 8 MiB, below `before`.

        The caller compares the keys. Times are compared in whole seconds. The first offset continues the query. Index
        files with no physical offset above `after` are left out.
        """
        return slices.run(self.query_steps(topic, key, max_count, begin_ms, end_ms, before, after))

    def query_steps(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, before: int, after: int = -1
    ) -> Generator[None, None, QueryResult]:
        self._reput_unless_stalled()
        index, max_count = self._dispatcher.index, min(max_count, self.config.max_msgs_num_batch)
        if index is None:
            return QueryResult([], [], 0, 0, None)
        return (yield from query_steps(index, self._log, topic, key, max_count, begin_ms, end_ms, before, after))

    @property
    def mapping_pool(self) -> MappingPool:
        return self._queues.pool

    def consume_queues(self) -> list[ConsumeQueue]:
        return list(self._queues.values())

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return every queue's half-open range: {(topic, queue id): (min queue offset, max queue offset)}."""
        self._reput_unless_stalled()
        for queue in self._queues.values():
            queue.raise_min_offset(self._log.begin)
        return {name: (queue.min_offset, queue.max_offset) for name, queue in self._queues.items()}

    def queue_ends(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """Return a queue's half-open range (min queue offset, max queue offset); None if there is no such queue."""
        queue = self._queue(topic, queue_id)
        return None if queue is None else (queue.min_offset, queue.max_offset)

    def queue_names(self) -> list[tuple[str, int]]:
        return list(self._queues)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first readable message; 0 if there never was one."""
        queue = self._queue(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int, *, visible: bool = False) -> int:
        """Return the queue offset after the last message, or last visible one; 0 without any."""
        queue = self._queue(topic, queue_id)
        return queue.end_before(self.visible_end if visible else None) if queue is not None else 0

    def visible_ends(self, names: Iterable[tuple[str, int]]) -> list[int]:
        """Return the queue offset after the last visible message of each queue; 0 without any."""
        ends, visible_end, queues = [], self.visible_end, self._queues
        for name in names:
            queue = queues.get(name)
            if self._pending and self._next_offsets.get(name, 0) > (0 if queue is None else queue.max_offset):
                queue = self._queue(*name)
            if queue is None:
                ends.append(0)
            else:
                ends.append(queue.max_offset if visible_end is None else queue.end_before(visible_end))
        return ends

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return a visible message's store time in milliseconds; -1 if there is none."""
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.end_before(self.visible_end):
            return -1
        return self._log.store_timestamp(queue.unit(queue_offset)[0])

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the first readable message; -1 for an empty queue."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the visible message stored at a time or nearest to it; 0 for an empty queue."""
        queue = self._queue(topic, queue_id)
        if queue is None or (end := queue.end_before(self.visible_end)) == queue.min_offset:
            return 0
        return min(queue.nearest_offset(timestamp_ms, self._log.store_timestamp), end - 1)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queue = self._queues.get(name := (topic, queue_id))
        if self._pending and self._next_offsets.get(name, 0) > (0 if queue is None else queue.max_offset):
            self._reput_unless_stalled()
            queue = self._queues.get(name)
        if queue is not None and queue.log_begin < (begin := self._log.files.begin):
            queue.raise_min_offset(begin)
        return queue

    def _reput_unless_stalled(self) -> None:
        if self._requests.stall is None:
            self.reput()


@contextmanager
def _without_gc() -> Iterator[None]:
    """Suspend garbage collection: there are no cycles, and collections cost a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
