"""The ConsumeQueue: the location in the CommitLog of each message of a queue, in order.

    consumequeue/<topic>/<queueId>/<20 digits>      a file name is 20 times the queue_offset of its first unit

A file is an array of units of 20 bytes, 300,000 of them by default; unit k is message k of the queue:

    position  bytes  field
           0      8  physicalOffset of the record
           8      4  size of the record
          12      8  tagsCode: String.hashCode of the tag, 0 without one; in SCHEDULE_TOPIC_XXXX the time at which
                     the message is due, in milliseconds; below -2^31 an address in Apache's consumequeue_ext

After the last unit the file holds zeros; there is no other end mark. If the first messages are deleted, the units
before the first real one in its file are fillers: (0, 0x7fffffff, 0). Units can be rebuilt from the log, so a put is
acknowledged before its unit is written.

There may be far more queues than descriptors and mappings: a MappingPool limits how many of their files are mapped. A
file that is not is read and written by system calls, which takes some microseconds longer.

consumequeue_ext (enableConsumeQueueExt) is neither read nor written: such units get the tags code from the record.

Corresponds to `ConsumeQueue` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rucola.errors import InvalidMessage
from rucola.files import sync_directory
from rucola.message.record import Peek, peek
from rucola.store.mapped_file import PAGE_SIZE, MappedFile, MappedFileQueue
from rucola.store.multi_dispatch import is_dispatched_to
from rucola.system_calls import descriptor_limit, mapping_limit

logger = logging.getLogger(__name__)

UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
"""The numpy type of a unit. Functions of `store` that return arrays of units return copies."""

UNIT_SIZE: Final = UNIT.itemsize
FILLER_SIZE: Final = 0x7FFFFFFF

MAX_EXT_ADDRESS: Final = -(1 << 31) - 1
"""A tags code up to this one is an address in consumequeue_ext; hashes of tags are greater."""

TagsCodeReader = Callable[[int, int], int]
"""Returns the tags code of the record at a physical offset, or its second argument without a record."""

_UNIT: Final = struct.Struct(">qiq")
_FILLER: Final = _UNIT.pack(0, FILLER_SIZE, 0)
_ZEROS: Final = bytes(UNIT_SIZE)
_NO_MAP: Final = mmap.mmap(-1, UNIT_SIZE)
_RESERVE_WINDOW: Final = 16 * PAGE_SIZE
"""Bytes of disk blocks requested at a time. The first windows of a file are smaller: most queues have few messages."""
_TAIL_COUNT: Final = 16
MAX_MAPPINGS: Final = 1 << 16
"""Mapped files from which on further descriptors make no difference."""
_THREADS: Final = 8
_MAX_SERIAL_FLUSHES: Final = 32
_TOPICS_PER_TASK: Final = 64


class MappingPool:
    """Limits the mapped files of a store's ConsumeQueues. Belongs to the store's owner thread.

    `limit` is by default a quarter of the descriptors or mappings that the process may have.
    """

    def __init__(self, limit: int | None = None) -> None:
        limits = {"LimitNOFILE": descriptor_limit() or MAX_MAPPINGS, "vm.max_map_count": mapping_limit()}
        self.limited_by = min(limits, key=limits.__getitem__)
        """The setting of the system from which `limit` follows."""
        self.limit = limit if limit is not None else limits[self.limited_by] // 4
        self.count = 0
        """Mapped files, and since the last `unmap_idle` deleted ones."""
        self._queues: set[ConsumeQueue] = set()
        self._is_reported = False

    def admit(self, queue: ConsumeQueue) -> bool:
        """Return whether a further file of the queue may be mapped, and count it."""
        if self.count >= self.limit:
            return False
        self.count += 1
        self._queues.add(queue)
        return True

    def unmap_idle(self) -> None:
        """If the pool is more than half full, unmap the files of queues not used since the last call."""
        if 2 * self.count > self.limit:
            for queue in list(self._queues):
                if queue.unmap_if_idle():
                    self._queues.discard(queue)
            self.count = sum(file.is_mapped for queue in self._queues for file in queue.files)
            if self.count >= self.limit and not self._is_reported:
                self._is_reported = True
                logger.warning(
                    "%d ConsumeQueue files are in use, a quarter of %s; a message elsewhere takes some microseconds "
                    "more. Raise %s (`ulimit -Hn` shows the limit of open files, `sysctl` that of mappings)",
                    self.count,
                    self.limited_by,
                    self.limited_by,
                )


class ConsumeQueue:
    """One queue, for the store's owner thread; `flush` may run in another thread.

    Between `rewind` and `finish_rewind` a recovery appends the units of the log; only those that differ are written.
    """

    __slots__ = (
        "_aside",
        "_files",
        "_flushed_end",
        "_is_used",
        "_last",
        "_map",
        "_map_begin",
        "_per_file",
        "_pool",
        "_read_tags_code",
        "_room_end",
        "_tail",
        "_used_end",
        "gap",
        "log_begin",
        "max_offset",
        "min_offset",
        "queue_id",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        files: MappedFileQueue,
        read_tags_code: TagsCodeReader | None = None,
        pool: MappingPool | None = None,
    ) -> None:
        self._pool = pool or MappingPool(MAX_MAPPINGS)
        self._is_used = False
        """Whether files were mapped or read since the last `unmap_if_idle`."""
        self._used_end = 0
        """`max_offset` at the last `unmap_if_idle`."""
        self.topic = topic
        self.queue_id = queue_id
        self._files = files
        self._read_tags_code = read_tags_code
        self._per_file = files.file_size // UNIT_SIZE
        self._aside: dict[int, MappedFile] | None = None
        """Files after the new end, by logical offset; None unless the queue is being rewound."""
        self._last: MappedFile | None = None
        self._map = _NO_MAP
        self._map_begin = 0
        self._room_end = 0
        """The queue offset up to which `_map` has disk blocks, so that units may be written straight to it."""
        self._select_last_file()
        self._flushed_end = 0
        self.log_begin = 0
        self._tail: tuple[int, bytes] = 0, b""
        """(queue offset, units), read by `unit` without mapping a file."""
        self.gap = files.gap
        """The start of the first missing file, or None. With a gap all units have to be appended again."""
        self.max_offset = self._count_written()
        self.min_offset = self._skip_fillers()
        """The queue offset of the first message in the log; earlier units may still be in the file."""
        if self.gap is not None:
            self.rewind(0)

    # -- reading ------------------------------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code or address in consumequeue_ext) of a unit in the files."""
        begin, tail = self._tail
        if begin <= queue_offset < begin + len(tail) // UNIT_SIZE:
            return _UNIT.unpack_from(tail, (queue_offset - begin) * UNIT_SIZE)
        file = self._files.find(queue_offset * UNIT_SIZE)
        assert file is not None, "no file has this unit"
        at = queue_offset * UNIT_SIZE - file.begin
        return _UNIT.unpack(self._read(file, at, at + UNIT_SIZE))

    def units(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return a copy of the existing units from `begin` to `end`: shape (n,), type UNIT."""
        begin, end = max(begin, self._files.begin // UNIT_SIZE), min(end, self.max_offset)
        parts = []
        while begin < end:
            file = self._files.find(begin * UNIT_SIZE)
            assert file is not None
            until = min(end, file.end // UNIT_SIZE)
            parts.append(self._read(file, begin * UNIT_SIZE - file.begin, until * UNIT_SIZE - file.begin))
            begin = until
        return np.frombuffer(self._resolved(b"".join(parts)), UNIT)

    def units_in_file(self, queue_offset: int, max_count: int) -> bytes:
        file = self._files.find(queue_offset * UNIT_SIZE)
        if file is None:
            return b""
        begin = queue_offset * UNIT_SIZE - file.begin
        end = min(begin + max_count * UNIT_SIZE, self.max_offset * UNIT_SIZE - file.begin, file.size)
        return self._resolved(self._read(file, begin, end))

    def _read(self, file: MappedFile, begin: int, end: int) -> bytes:
        if self._may_map(file):
            return file.map[begin:end]
        return file.read(begin, end)

    def _may_map(self, file: MappedFile) -> bool:
        self._is_used = True
        return file.is_mapped or self._pool.admit(self)

    def map_all(self) -> None:
        """Map the files that the pool admits, to read them even after another process deletes them. Raises OSError."""
        for file in self._files:
            _ = self._may_map(file) and file.map

    def unmap_if_idle(self) -> bool:
        """Unmap the files of a queue not used since the last call; return whether none is mapped."""
        if self._is_used or self._used_end != self.max_offset:
            self._is_used, self._used_end = False, self.max_offset
            return False
        self._map, self._room_end = _NO_MAP, 0
        for file in self._files:
            file.unmap()
        return not any(file.is_mapped for file in self._files)

    def _resolved(self, units: bytes) -> bytes:
        # The high bytes of hashes and times are 0x00 or 0xff: a quick check for 800 units.
        if self._read_tags_code is None or not units[12::UNIT_SIZE].strip(b"\x00\xff"):
            return units
        resolved = np.frombuffer(units, UNIT).copy()
        for at in np.flatnonzero(resolved["tags_code"] <= MAX_EXT_ADDRESS).tolist():
            physical_offset, _, address = resolved[at].tolist()
            resolved["tags_code"][at] = self._read_tags_code(physical_offset, address)
        return resolved.tobytes()

    def end_of_file(self, queue_offset: int) -> int:
        return queue_offset + self._per_file - queue_offset % self._per_file

    @property
    def files(self) -> MappedFileQueue:
        return self._files

    @property
    def max_physical_offset(self) -> int:
        """The end of the last unit's record; -1 without units."""
        if self.max_offset <= self.min_offset:
            return -1
        physical_offset, size, _ = self.unit(self.max_offset - 1)
        return physical_offset + size

    def first_at_or_after(self, physical_offset: int, begin: int = 0) -> int:
        """Return the first queue offset, from `min_offset` and `begin` on, at or after a physical offset. O(log n)."""
        low, high = max(self.min_offset, begin), self.max_offset
        while low < high:
            middle = (low + high) // 2
            address, size, _ = self.unit(middle)
            # Fillers (address 0) count as earlier; a unit of size 0, torn by a crash, as later.
            if size > 0 and address < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def end_before(self, physical_offset: int | None) -> int:
        """Return the end offset (exclusive) of records that end by `physical_offset`; None: no limit. O(log n)."""
        end = self.max_offset
        if physical_offset is None or end == self.min_offset or self._ends_by(end - 1, physical_offset):
            return end
        end = self.first_at_or_after(physical_offset)
        return end if end == self.min_offset or self._ends_by(end - 1, physical_offset) else end - 1

    def _ends_by(self, queue_offset: int, physical_offset: int) -> bool:
        begin, size, _ = self.unit(queue_offset)
        return begin + size <= physical_offset

    def count_at_or_after(self, physical_offset: int) -> int:
        """Return the number of units from `first_at_or_after` on, reading from the end: O(log n) of that number."""
        begin, step = self.max_offset, 1
        while begin > self.min_offset and self.unit(begin - 1)[0] >= physical_offset:
            begin, step = max(begin - step, self.min_offset), 2 * step
        return self.max_offset - self.first_at_or_after(physical_offset, begin)

    def nearest_offset(self, timestamp_ms: int, time_at: Callable[[int], int]) -> int:
        """Return the queue offset of the first message stored at a time; the queue must not be empty.

        Otherwise the message nearest in time, the earlier one if two are equally near. `time_at` returns the store time
        at a physical offset, or -1 without a record. O(log n). Deliberate difference: of several messages stored at the
        time, Apache returns the first that its bisection finds.

            times of units 0 to 5 are 10 20 20 20 30 40; the result is 1 for 20, 3 for 25, 4 for 26 and 5 for 99
        """
        low, high = self.min_offset, self.max_offset
        before_ms = after_ms = -1
        while low < high:
            middle = (low + high) // 2
            time_ms = time_at(self.unit(middle)[0])
            # A missing record counts as later: the search never skips messages because of it.
            if 0 <= time_ms < timestamp_ms:
                low, before_ms = middle + 1, time_ms
            else:
                high, after_ms = middle, time_ms
        if before_ms < 0:
            return low
        is_before_nearer = low == self.max_offset or timestamp_ms - before_ms <= after_ms - timestamp_ms
        return low - 1 if is_before_nearer else low

    def further_record(self, log: MappedFileQueue) -> tuple[bytes, tuple[str, int]] | None:
        if self.max_offset > self.min_offset and (found := self._record_at(self.max_offset - 1, log)) is not None:
            buffer, record = found
            if (own := (record.topic, record.queue_id)) != (self.topic, self.queue_id):
                return bytes(buffer[record.properties_begin : record.properties_end]), own
        return None

    def is_valid_at(self, queue_offset: int, log: MappedFileQueue) -> bool:
        """Return whether a unit points at its record, or before the log start offset."""
        return self.unit(queue_offset)[0] < log.begin or self._record_at(queue_offset, log) is not None

    def _record_at(self, queue_offset: int, log: MappedFileQueue) -> tuple[mmap.mmap, Peek] | None:
        physical_offset, size, _ = self.unit(queue_offset)
        if (file := log.find(physical_offset)) is None:
            return None
        try:
            record = peek(file.map, physical_offset - file.begin)
        except InvalidMessage:
            return None
        if (record.size, record.physical_offset) == (size, physical_offset) and (
            (record.topic, record.queue_id, record.queue_offset) == (self.topic, self.queue_id, queue_offset)
            or is_dispatched_to(file.map, record, (self.topic, self.queue_id), queue_offset)
        ):
            return file.map, record
        return None

    def _count_written(self) -> int:
        for file in reversed(self._files.files):
            count = self._count_written_in(file)
            if count:
                return file.begin // UNIT_SIZE + count
        return self._files.begin // UNIT_SIZE

    def _count_written_in(self, file: MappedFile) -> int:
        """Bisect in the page before the first hole, to avoid a disk read for each step over the whole file."""
        end = file.size // UNIT_SIZE
        if not end:
            return 0
        with file.opened() as fd:
            hole = os.lseek(fd, 0, os.SEEK_HOLE)
            first = max(hole - PAGE_SIZE, 0) // UNIT_SIZE
            near = os.pread(fd, PAGE_SIZE + 2 * UNIT_SIZE, first * UNIT_SIZE)
            there = min(len(near) // UNIT_SIZE, end - first)
            zeros = near.find(_ZEROS)
            filled = there if zeros < 0 else min(-(-zeros // UNIT_SIZE), there)
            count = _bisect_end(0, filled, lambda number: _UNIT.unpack_from(near, number * UNIT_SIZE)) + first
            # If it holds no end (only zeros or only units), bisect the rest of the file on that side.
            if count == first > 0 or count == first + there < end:
                low, high = (0, first) if count == first else (count, end)
                count = _bisect_end(low, high, lambda number: _UNIT.unpack(os.pread(fd, UNIT_SIZE, number * UNIT_SIZE)))
            if count:
                begin = max(count - _TAIL_COUNT, 0)
                tail = near[(begin - first) * UNIT_SIZE : (count - first) * UNIT_SIZE]
                if not first <= begin < count <= first + there:
                    tail = os.pread(fd, (count - begin) * UNIT_SIZE, begin * UNIT_SIZE)
                self._tail = file.begin // UNIT_SIZE + begin, tail
        return count

    def _skip_fillers(self) -> int:
        begin = self._files.begin // UNIT_SIZE
        if begin < self.max_offset:
            is_in_tail = self._tail[0] == begin
            first = self._tail[1] if is_in_tail else self._files.files[0].read(0, UNIT_SIZE)
            if first_unit(first)[1] == FILLER_SIZE:
                sizes = self.units(begin, self.end_of_file(begin))["size"]
                begin += int(np.argmax(sizes != FILLER_SIZE)) if (sizes != FILLER_SIZE).any() else len(sizes)
        return begin

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, queue_offset: int, units: bytes) -> None:
        """Append units at `max_offset`, or anywhere if empty. An OSError appends none; the call may be repeated."""
        position, end = 0, len(units)
        if queue_offset != self.max_offset:
            self._start_at(queue_offset)
        elif (following := queue_offset + end // UNIT_SIZE) <= self._room_end:
            begin = (queue_offset - self._map_begin) * UNIT_SIZE
            self._map[begin : begin + end] = units
            self.max_offset = following
            return
        while position < end:
            file = self._last
            at = queue_offset * UNIT_SIZE + position
            if file is None or not file.begin <= at < file.end:
                if file is not None:
                    file.seal()
                # The file may exist already: created before a crash that lost its units.
                file = self._last = self._files.find(at) or self._next_file(at)
            at -= file.begin
            size = min(end - position, file.size - at)
            self._write(file, at, units[position : position + size] if size < end else units)
            position += size
        self.max_offset = queue_offset + end // UNIT_SIZE
        # During a rewind `_room_end` stays 0: each unit has to be compared with the one in the file (`_write`).
        if self._aside is None and self._last is not None and self._last.is_mapped:
            self._map, self._map_begin = self._last.map, self._last.begin // UNIT_SIZE
            self._room_end = self._map_begin + self._last.reserved // UNIT_SIZE

    def _start_at(self, queue_offset: int) -> None:
        assert self.max_offset == self._files.begin // UNIT_SIZE, "a queue has no gaps"
        begin = queue_offset * UNIT_SIZE
        # A call that found no disk space may have created the file.
        file = self._last = self._files.find(begin) or self._next_file(begin - begin % self._files.file_size)
        self._write(file, 0, _FILLER * ((begin - file.begin) // UNIT_SIZE))
        self.min_offset = self.max_offset = queue_offset

    def _next_file(self, begin: int) -> MappedFile:
        begin -= begin % self._files.file_size
        if self._aside:
            if (file := self._aside.pop(begin, None)) is not None:
                file.reads_ahead = False
                self._files.files.append(file)
                return file
            self._delete_set_aside()  # otherwise there would be a gap between the new file and them
        self._room_end = 0
        return self._files.create_next(begin, reads_ahead=False, is_mapped=self._pool.admit(self))

    def _write(self, file: MappedFile, position: int, data: bytes) -> None:
        """Write units, unless a rewind finds the same in the file: no page gets dirty."""
        end = position + len(data)
        if self._aside is None or self._read(file, position, end) != data:
            if self._may_map(file):
                file.reserve(end, min(max(position - position % PAGE_SIZE, PAGE_SIZE), _RESERVE_WINDOW))
                file.map[position:end] = data
            else:
                file.put(position, data)

    def rewind(self, queue_offset: int) -> None:
        """Set `max_offset` back, or to 0 without units left. The bytes stay until `finish_rewind`."""
        self._flushed_end = min(self._flushed_end, queue_offset * UNIT_SIZE)
        self._tail = 0, b""
        if self._aside is None:
            self._aside = {}
        files = self._files.files
        # -1 is before every file, so all of them are set aside.
        end = queue_offset * UNIT_SIZE if queue_offset > self.min_offset else -1
        for file in files:
            if file.begin >= end:  # no checkpoint covers this file
                file.mark_name_unsynced()
        while files and files[-1].begin > end:
            file = files.pop()
            self._aside[file.begin] = file
        if end < 0:
            self.min_offset = self.max_offset = 0
        else:
            self.max_offset = min(self.max_offset, queue_offset)
        self._select_last_file()

    def rewind_to_physical_offset(self, physical_offset: int) -> None:
        if self.max_physical_offset > physical_offset:
            self.rewind(self.first_at_or_after(physical_offset))

    def finish_rewind(self) -> None:
        """Erase everything after the last unit; `flush` makes it durable before the checkpoint advances."""
        if self._aside is not None:
            if not self._files.files and 0 in self._aside:  # Erasing one file is cheaper than deleting it.
                self._files.files.append(self._aside.pop(0))
                self._select_last_file()
            self._delete_set_aside()
            self._aside = None
            if self._last is not None:
                self._last.erase(max(self.max_offset * UNIT_SIZE - self._last.begin, 0))

    def _delete_set_aside(self) -> None:
        """Delete from the end: no crash leaves a gap."""
        assert self._aside is not None
        begin = self._files.begin
        before = sorted(number for number in self._aside if number < begin)
        behind = sorted((number for number in self._aside if number >= begin), reverse=True)
        for number in before + behind:
            self._aside.pop(number).delete()
        if before or behind:
            sync_directory(self._files.directory)

    def truncate(self, queue_offset: int) -> None:
        """Delete all units from `queue_offset` on; an emptied queue starts at 0 again."""
        self.rewind(queue_offset)
        self.finish_rewind()

    def _select_last_file(self) -> None:
        """Write to the last file, without read-ahead by the kernel: it ends in holes."""
        self._room_end = 0
        self._last = self._files.files[-1] if self._files.files else None
        if self._last is not None:
            self._last.reads_ahead = not self._last.writable

    def raise_min_offset(self, min_physical_offset: int) -> None:
        if self.log_begin < min_physical_offset:
            self.log_begin = min_physical_offset
            if self.min_offset < self.max_offset and self.unit(self.min_offset)[0] < min_physical_offset:
                self.min_offset = self.first_at_or_after(min_physical_offset)

    def detach_expired(self) -> list[MappedFile]:
        """Remove and return the files before `min_offset`, except the last; the caller deletes them."""
        detached = []
        while len(self._files.files) > 1 and self._files.files[0].end <= self.min_offset * UNIT_SIZE:
            detached.append(self._files.detach_first())
        return detached

    def delete(self) -> None:
        """Delete files and directory, and the topic's directory after its last queue. Raises OSError."""
        self._files.truncate(-1)
        self._tail, self.min_offset, self.max_offset = (0, b""), 0, 0
        self._select_last_file()
        for directory in (self._files.directory, self._files.directory.parent):
            try:
                directory.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise

    @property
    def is_changed(self) -> bool:
        return any(file.is_changed for file in self._files)

    def flush(self) -> None:
        """Flush all units written before this call. For any thread, one at a time."""
        # Read the end first: later units belong to the next flush.
        end, begin = self.max_offset * UNIT_SIZE, self._flushed_end
        for file in list(self._files.files):
            # Including the file of the next unit, which `finish_rewind` may have erased.
            if file.begin <= end and begin < file.end:
                file.flush()
        self._flushed_end = end


pack_unit = _UNIT.pack
"""Return the 20 bytes of a unit, given (physical offset, size, tags code)."""


first_unit = _UNIT.unpack_from
"""Return (physical offset, size, tags code) of the first unit in bytes."""


def iter_units(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (physical offset, size, tags code) of every unit in `data`."""
    return _UNIT.iter_unpack(data)


def check_queue_name(topic: str, queue_id: int) -> None:
    """Raise InvalidMessage unless the queue can have a directory."""
    if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or queue_id < 0:
        raise InvalidMessage(f"topic {topic!r}, queue id {queue_id}: no queue can have this name")


def queue_offset_mismatch(topic: str, queue_id: int, queue_offset: int, expected: int) -> str:
    return f"queueOffset is {queue_offset}, but {topic}-{queue_id} continues with {expected}"


def _bisect_end(low: int, high: int, unit: Callable[[int], tuple[int, int, int]]) -> int:
    while low < high:
        middle = (low + high) // 2
        physical_offset, size, _ = unit(middle)
        if physical_offset >= 0 and size > 0:
            low = middle + 1
        else:
            high = middle
    return low


def open_queues(
    directory: Path,
    read_tags_code: TagsCodeReader | None = None,
    pool: MappingPool | None = None,
    *,
    writable: bool = False,
    file_size: int = 0,
    after_crash: bool = False,
) -> dict[tuple[str, int], ConsumeQueue]:
    """Open every queue under `consumequeue`, by (topic, queue id); parameters as in `MappedFileQueue.open`.

    If `writable`, a queue with a missing file is opened as well, rewound to its start (see `gap`).
    """

    pool = pool or MappingPool()

    def of_topics(topics: Sequence[str]) -> list[ConsumeQueue]:
        return [
            ConsumeQueue(
                topic,
                queue_id,
                MappedFileQueue.open(
                    path,
                    writable=writable,
                    file_size=file_size,
                    after_crash=after_crash,
                    may_have_gaps=writable,
                ),
                read_tags_code,
                pool,
            )
            for topic in topics
            for queue_id, path in _queues_of(directory / topic)
        ]

    topics = _directories(directory)
    parts = [topics[begin : begin + _TOPICS_PER_TASK] for begin in range(0, len(topics), _TOPICS_PER_TASK)]
    with ThreadPoolExecutor(_THREADS, "open-queues") as threads:
        opened = threads.map(of_topics, parts)
        return {(queue.topic, queue.queue_id): queue for queues in opened for queue in queues}


@contextmanager
def opened_queue(topic: str, queue_id: int, directory: Path) -> Iterator[ConsumeQueue]:
    """Open one queue, read-only, for the duration of the block. Raises StoreCorrupt."""
    files = MappedFileQueue.open(directory)
    try:
        yield ConsumeQueue(topic, queue_id, files)
    finally:
        files.close()


def flush_queues(queues: Sequence[ConsumeQueue], *, beside_others: bool) -> None:
    """Flush queues: serially while puts run (`beside_others`), otherwise in threads. Raises OSError."""

    def flush(some: Sequence[ConsumeQueue]) -> None:
        for queue in some:
            queue.flush()

    if beside_others or len(queues) <= _MAX_SERIAL_FLUSHES:
        flush(queues)
    else:
        with ThreadPoolExecutor(_THREADS, "flush-queues") as threads:
            list(threads.map(flush, [queues[number::_THREADS] for number in range(_THREADS)]))


def sync_names(directory: Path) -> None:
    """Sync the directory entries of topics and queues under `consumequeue`, but not of files."""
    directories = [directory / topic for topic in _directories(directory)]
    with ThreadPoolExecutor(_THREADS, "sync-names") as threads:
        list(threads.map(sync_directory, directories))
    if directories:
        sync_directory(directory)


def queue_directories(directory: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield (topic, queue id, path) of every queue under `consumequeue`, ordered by topic and id."""
    for topic in _directories(directory):
        for queue_id, path in _queues_of(directory / topic):
            yield topic, queue_id, path


def _queues_of(topic: Path) -> list[tuple[int, Path]]:
    ids = [name for name in _directories(topic) if name.isascii() and name.isdigit()]
    return [(int(name), topic / name) for name in sorted(ids, key=int)]


def _directories(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []
