"""The replica of a master's log on a slave, equal to it byte for byte.

The master sends pieces of its log, each with its physical offset; they may start and end anywhere. The replica appends
them and queues complete records for dispatch. It checks everything:

* A piece starts at or before the end of this log, and repeated bytes must be equal. After a reconnection the slave
  requests a few bytes again (`begin`), to detect a master that lost its newest records or is the wrong master.
* The first piece of an empty log starts at any file; the queues then start at the queue offsets of their first records.
* Every record states its own physical offset, and is the next of its queue or the first of a queue that starts at 0
  again, because its topic was deleted and created again.

The first violation is an error; `truncate` must end the log with its last complete record before anything is appended.

Corresponds to `DefaultMessageStore.appendToCommitLog` and a part of `ReputMessageService` of Apache RocketMQ 4.9.8.
Deliberate difference: Apache checks only that the offset is the end of the log, and logs invalid records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from rucola.errors import InvalidMessage, StoreError
from rucola.message import sysflag
from rucola.message.record import BLANK_MAGIC, FRAME, MESSAGE_MAGIC, MIN_RECORD_SIZE
from rucola.store.commit_log import CommitLog
from rucola.store.consume_queue import ConsumeQueue, check_queue_name, queue_offset_mismatch
from rucola.store.dispatch_request import (
    DispatchRequest,
    dispatch_requests,
    read_dispatch_request,
    read_requests,
)
from rucola.store.multi_dispatch import MultiDispatch

logger = logging.getLogger(__name__)

MAX_OVERLAP: Final = 4 * 1024 * 1024
"""The most bytes that are compared after a reconnection."""


class Replica:
    """The replica of one open store. Belongs to the store's owner thread, except for `truncate`."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: Iterable[ConsumeQueue],
        next_offsets: dict[tuple[str, int], int],
        enqueue: Callable[[DispatchRequest], None],
        restart: Callable[[str, int], None],
        multi_dispatch: MultiDispatch,
    ) -> None:
        self._log = commit_log
        self._multi_dispatch = multi_dispatch
        self._next_offsets = next_offsets
        """The store's next queue offsets, which the replica advances."""
        self._enqueue = enqueue
        """Called with every complete record, in the order of the log."""
        self._restart = restart
        """Called with the topic and queue id of a queue that starts at 0 again."""
        self._complete_end = commit_log.end
        self._last_record = max(
            [queue.unit(queue.max_offset - 1)[0] for queue in queues if queue.max_offset > queue.min_offset], default=0
        )
        """The physical offset of the last record; after opening the last one with a unit."""

    @property
    def begin(self) -> int:
        """The physical offset to request, a little before the end; 0 (haTransferFrom) only for an empty log at 0."""
        log = self._log
        # From the last record on, but not more than MAX_OVERLAP before the end.
        return log.end if log.end == log.begin else max(self._last_record, log.end - MAX_OVERLAP, log.begin, 1)

    def append(self, physical_offset: int, data: memoryview) -> None:
        """Append the bytes that the log lacks, and queue the records that they complete.

        Raises StoreError if the bytes do not belong to this log, and OSError; `truncate` must follow.
        """
        log = self._log
        # An empty log starts with the first file that the master sends.
        if log.end == log.begin and log.end != physical_offset:
            if physical_offset % log.files.file_size:
                raise StoreError(
                    f"the master's log begins at {physical_offset}, where no file of {log.files.file_size} bytes "
                    "begins: set mappedFileSizeCommitLog to the master's value",
                    subject="mappedFileSizeCommitLog",
                )
            log.start_at(physical_offset)
            self._complete_end = physical_offset
        overlap = log.end - physical_offset
        if overlap < 0:
            raise StoreError(f"this log ends at {log.end}, but the master sends bytes from {physical_offset} on")
        if overlap:
            self._compare(physical_offset, data[:overlap])
        log.copy(data[overlap:])
        self._enqueue_complete_records()

    def truncate(self) -> None:
        """End the log with its last complete record, durably, while nothing is appended. Raises OSError."""
        if self._log.end > self._complete_end:
            self._log.truncate(self._complete_end)

    def _compare(self, physical_offset: int, data: memoryview) -> None:
        compared = 0
        while compared < len(data):
            held = self._log.hold_bytes(physical_offset + compared, len(data) - compared)
            if held is None:
                raise StoreError(
                    f"the master sends bytes from {physical_offset} on, but this log begins at {self._log.begin}"
                )
            with held:
                is_equal = held.view == data[compared : compared + len(held)]
                compared += len(held)
            if not is_equal:
                raise StoreError(
                    f"the master's log is another one: it differs from this one between {physical_offset} and "
                    f"{physical_offset + len(data)}, near the end at {self._log.end}"
                )

    def _enqueue_complete_records(self) -> None:
        log = self._log
        while self._complete_end + FRAME.size <= log.end:
            begin = self._complete_end
            file = log.files.find(begin)
            assert file is not None
            position, left = begin - file.begin, file.end - begin
            for request in read_requests(file.map, position, min(log.end - file.begin, file.size)):
                self._enqueue_record(request)
            if self._complete_end > begin:
                continue
            # No whole record: a blank, a record whose rest is in a later piece, or none.
            size, magic = FRAME.unpack_from(file.map, position)
            if magic == BLANK_MAGIC:
                if size != left:
                    raise StoreError(
                        f"at {begin} a blank claims {size} bytes, but the file has {left} left: set "
                        "mappedFileSizeCommitLog to the master's value"
                    )
            elif magic != MESSAGE_MAGIC or not MIN_RECORD_SIZE <= size <= left:
                raise StoreError(f"the master sent no record at {begin} (size {size}, magic {magic:#010x})")
            if begin + size > log.end:
                break
            if magic == MESSAGE_MAGIC:
                try:
                    read_dispatch_request(file.map, position)
                except InvalidMessage as error:
                    raise StoreError(f"the master sent no record at {begin}: {error}") from None
            self._complete_end = begin + size

    def _enqueue_record(self, request: DispatchRequest) -> None:
        begin = self._complete_end
        self._advance_queue(request, begin)
        self._enqueue(request)
        if self._multi_dispatch is not MultiDispatch.OFF:
            self._enqueue_further(dispatch_requests(request, self._multi_dispatch)[1:], begin)
        self._last_record = begin
        self._complete_end = begin + request.size

    def _enqueue_further(self, requests: list[DispatchRequest], begin: int) -> None:
        for request in requests:
            try:
                check_queue_name(request.topic, request.queue_id)
                self._advance_queue(request, begin)
            except (InvalidMessage, StoreError) as error:
                logger.warning("%s: %s", self._log.files.directory, error)
            else:
                self._enqueue(request)

    def _advance_queue(self, request: DispatchRequest, begin: int) -> None:
        """Raise StoreError unless the record is at its own offset and the next of its queue."""
        if request.physical_offset != begin:
            raise StoreError(f"the record that the master sent at {begin} belongs at {request.physical_offset}")
        if request.sys_flag & sysflag.TRANSACTION_PREPARED:
            return
        name, queue_offset = (request.topic, request.queue_id), request.queue_offset
        expected = self._next_offsets.get(name, queue_offset)
        if queue_offset == 0 and expected > 0:
            self._restart(*name)
        elif queue_offset != expected:
            raise StoreError(f"the record at {begin}: {queue_offset_mismatch(*name, queue_offset, expected)}")
        self._next_offsets[name] = queue_offset + 1
