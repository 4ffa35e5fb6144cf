"""Replica: a log that is a copy of another's, byte for byte.

Bytes come in pieces that end anywhere, each with the physical offset of its first byte, and lie there afterwards. As
soon as a record is whole, it is handed on to be dispatched. What is sent is not believed:

* a piece begins where the log ends, or before that; what the log has already must be the same. A copy that is taken up
  again begins with bytes that are there (`begin`), so a master whose log became another one is found out: it lost the
  end of it with its disk, or it is the wrong master;
* a copy into an empty log begins where a file begins. It may be any file: a queue then begins where its first record
  says;
* every record lies at the address that it names, and goes on where its queue stopped, or begins its queue anew, as that
  of a topic does that was deleted and made again.

The first byte that breaks this is an error. `truncate` then ends the log with its last whole record; nothing more is
taken before that.

Answers to DefaultMessageStore.appendToCommitLog and the part of ReputMessageService that a slave needs, of
org.apache.rocketmq.store. Deliberate difference: Apache appends what it is sent wherever its own log ends, if only the
address is that, and goes on behind what is no record with a line in its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rucola.errors import InvalidMessage, StoreError
from rucola.message import sysflag
from rucola.message.record import BLANK_MAGIC, FRAME, MESSAGE_MAGIC, MIN_RECORD_SIZE
from rucola.store.commit_log import CommitLog
from rucola.store.consume_queue import ConsumeQueue
from rucola.store.dispatch import DispatchRequest, read_dispatch_request

MAX_OVERLAP: Final = 4 * 1024 * 1024
"""How much of the log is compared at most when a copy is taken up again."""


class Replica:
    """The copy of one open store. `next_offsets` are those of its queues.

    `note` is told of every whole record, in order; `forget` drops a queue with all its units.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: Iterable[ConsumeQueue],
        next_offsets: dict[tuple[str, int], int],
        note: Callable[[DispatchRequest], None],
        forget: Callable[[str, int], None],
    ) -> None:
        self._log = commit_log
        self._next_offsets = next_offsets
        self._note = note
        self._forget = forget
        self._whole_end = commit_log.end
        self._last_record = max(
            [queue.unit(queue.max_offset - 1)[0] for queue in queues if queue.max_offset > queue.min_offset], default=0
        )

    @property
    def begin(self) -> int:
        """The physical offset from which on bytes are wanted: a little before the end, where the log has anything.

        Then it is never 0, which asks a master to begin with its newest file.
        """
        log = self._log
        return log.end if log.end == log.begin else max(self._last_record, log.end - MAX_OVERLAP, log.begin, 1)

    def append(self, physical_offset: int, data: memoryview) -> None:
        """Append the bytes that the log does not have yet, and hand on the records that are whole with them.

        Raises StoreError where the bytes cannot be the log's, after which only `truncate` is of use, and OSError.
        """
        log = self._log
        if log.end == log.begin and log.end != physical_offset:
            if physical_offset % log.files.file_size:
                raise StoreError(
                    f"the master begins its log at {physical_offset}, where no file of {log.files.file_size} bytes "
                    "does: give mappedFileSizeCommitLog the value that it has on the master"
                )
            log.start_at(physical_offset)
            self._whole_end = physical_offset
        overlap = log.end - physical_offset
        if overlap < 0:
            raise StoreError(f"this log ends at {log.end}, and the master sends it what begins at {physical_offset}")
        if overlap:
            self._compare(physical_offset, data[:overlap])
        log.copy(data[overlap:])
        self._look_for_records()

    def truncate(self) -> None:
        """Let the log end with its last whole record, on disk as well. Raises OSError.

        For any thread, while nothing is taken.
        """
        if self._log.end > self._whole_end:
            self._log.truncate(self._whole_end)

    def _compare(self, physical_offset: int, data: memoryview) -> None:
        taken = 0
        while taken < len(data):
            found = self._log.hold_bytes(physical_offset + taken, len(data) - taken)
            if found is None:
                raise StoreError(
                    f"the master sends what begins at {physical_offset}, but this log begins at {self._log.begin}"
                )
            file, there = found
            try:
                is_same = there == data[taken : taken + len(there)]
                taken += len(there)
            finally:
                there.release()
                file.release()
            if not is_same:
                raise StoreError(
                    f"the master's log is another one: it differs from this one between {physical_offset} and "
                    f"{physical_offset + len(data)}, near the end at {self._log.end}"
                )

    def _look_for_records(self) -> None:
        log = self._log
        while self._whole_end + FRAME.size <= log.end:
            begin = self._whole_end
            file = log.files.find(begin)
            assert file is not None
            position, left = begin - file.begin, file.end - begin
            size, magic = FRAME.unpack_from(file.map, position)
            if magic == BLANK_MAGIC:
                if size != left:
                    raise StoreError(
                        f"at {begin} a blank claims {size} bytes where {left} are left in the file: give "
                        "mappedFileSizeCommitLog the value that it has on the master"
                    )
            elif magic != MESSAGE_MAGIC or not MIN_RECORD_SIZE <= size <= left:
                raise StoreError(f"what the master sends at {begin} is no record (size {size}, magic {magic:#010x})")
            if begin + size > log.end:
                break
            if magic == MESSAGE_MAGIC:
                try:
                    item = read_dispatch_request(file.map, position)
                except InvalidMessage as error:
                    raise StoreError(f"what the master sends at {begin} is no record: {error}") from None
                self._count(item, begin)
                self._note(item)
                self._last_record = begin
            self._whole_end = begin + size

    def _count(self, item: DispatchRequest, begin: int) -> None:
        """Hold a record against its place, and let its queue count on."""
        topic, queue_id, queue_offset, physical_offset, _, _, sys_flag, *_ = item
        if physical_offset != begin:
            raise StoreError(f"the record that the master sends at {begin} says that it lies at {physical_offset}")
        if sys_flag & sysflag.TRANSACTION_PREPARED:
            return
        name = (topic, queue_id)
        expected = self._next_offsets.get(name, queue_offset)
        if queue_offset == 0 and expected > 0:
            self._forget(*name)
        elif queue_offset != expected:
            queue = f"{name[0]}-{name[1]}"
            raise StoreError(
                f"the record at {begin} has queueOffset {queue_offset} where {queue} goes on with {expected}"
            )
        self._next_offsets[name] = queue_offset + 1
