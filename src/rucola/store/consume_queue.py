"""A ConsumeQueue: where in the CommitLog the messages of one queue lie, in their order.

    consumequeue/<topic>/<queueId>/<20 digits>      a file name is 20 times the queue_offset of its first unit

A file is an array of units of 20 bytes, 300,000 of them by default; unit k is message k of the queue:

    position  bytes  field
           0      8  physicalOffset of the record
           8      4  size of the record
          12      8  tagsCode: String.hashCode of the tag, 0 without one; in SCHEDULE_TOPIC_XXXX the time at which
                     the message is due, in milliseconds

Behind the last unit there are zeros. Where a queue goes on although its beginning is gone, the units of the first
file before the first real one are filled with (0, 0x7fffffff, 0).

Units can be rebuilt from the log at any time, therefore a put is answered before its unit is written.

Answers to org.apache.rocketmq.store.ConsumeQueue. ConsumeQueueExt (bit maps for SQL filters) is not kept.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rucola.errors import InvalidMessage
from rucola.files import sync_directory
from rucola.message.record import peek
from rucola.store.mapped_file import PAGE_SIZE, MappedFile, MappedFileQueue

UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
"""One unit. Arrays of units that this room gives out have this type and own their bytes."""

UNIT_SIZE: Final = UNIT.itemsize
FILLER_SIZE: Final = 0x7FFFFFFF

_UNIT: Final = struct.Struct(">qiq")
_pack_into: Final = _UNIT.pack_into
_FILLER: Final = _UNIT.pack(0, FILLER_SIZE, 0)
_NO_MAP: Final = mmap.mmap(-1, UNIT_SIZE)
_RESERVE_WINDOW: Final = 16 * PAGE_SIZE
_TAIL_COUNT: Final = 16
_AT_A_TIME: Final = 8
_FLUSHED_IN_A_ROW: Final = 32


class ConsumeQueue:
    """One queue. Its units run from `min_offset` to `max_offset`, half-open, both queue offsets.

    `min_offset` is the first unit whose record the log still has; units before it may still be in the file.
    """

    __slots__ = (
        "_aside",
        "_files",
        "_flushed_end",
        "_last",
        "_log_begin",
        "_map",
        "_map_begin",
        "_per_file",
        "_room_end",
        "_tail",
        "max_offset",
        "min_offset",
        "queue_id",
        "topic",
    )

    def __init__(self, topic: str, queue_id: int, files: MappedFileQueue) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._files = files
        self._per_file = files.file_size // UNIT_SIZE
        self._aside: dict[int, MappedFile] | None = None
        self._last: MappedFile | None = None
        self._map = _NO_MAP
        self._map_begin = self._room_end = 0
        """Of the file that is written: its bytes, its first queue offset, and the one behind what it has blocks for."""
        self._grow_at_the_end()
        self._flushed_end = 0
        self._log_begin = 0
        self._tail: tuple[int, bytes] = 0, b""
        self.max_offset = self._count_written()
        self.min_offset = self._skip_filler()

    # -- reading ------------------------------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code) of a unit between the first file's and `max_offset`."""
        begin, tail = self._tail
        if begin <= queue_offset < begin + len(tail) // UNIT_SIZE:
            return _UNIT.unpack_from(tail, (queue_offset - begin) * UNIT_SIZE)
        file = self._files.find(queue_offset * UNIT_SIZE)
        assert file is not None, "a unit was asked for that is not there"
        return _UNIT.unpack_from(file.map, queue_offset * UNIT_SIZE - file.begin)

    def units(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the units from `begin` to `end`, both cut to what is there: shape (n,), of type UNIT, a copy."""
        begin, end = max(begin, self._files.begin // UNIT_SIZE), min(end, self.max_offset)
        parts = []
        while begin < end:
            file = self._files.find(begin * UNIT_SIZE)
            assert file is not None
            until = min(end, file.end // UNIT_SIZE)
            parts.append(file.map[begin * UNIT_SIZE - file.begin : until * UNIT_SIZE - file.begin])
            begin = until
        return np.frombuffer(b"".join(parts), UNIT)

    def units_in_file(self, queue_offset: int, max_count: int) -> bytes:
        """Return up to `max_count` units from `queue_offset` on as bytes, none beyond the file in which it lies."""
        file = self._files.find(queue_offset * UNIT_SIZE)
        if file is None:
            return b""
        begin = queue_offset * UNIT_SIZE - file.begin
        end = min(begin + max_count * UNIT_SIZE, self.max_offset * UNIT_SIZE - file.begin, file.size)
        return file.map[begin:end]

    def end_of_file(self, queue_offset: int) -> int:
        """Return the queue offset with which the file after that of `queue_offset` begins."""
        return queue_offset + self._per_file - queue_offset % self._per_file

    @property
    def files(self) -> MappedFileQueue:
        """The files behind the queue."""
        return self._files

    @property
    def max_physical_offset(self) -> int:
        """The physical offset behind the record to which the last unit points; -1 without units."""
        if self.max_offset <= self.min_offset:
            return -1
        physical_offset, size, _ = self.unit(self.max_offset - 1)
        return physical_offset + size

    def first_at_or_behind(self, physical_offset: int, begin: int = 0) -> int:
        """Return the first queue offset whose record lies at `physical_offset` or behind it, none below `min_offset` or
        `begin`."""
        low, high = max(self.min_offset, begin), self.max_offset
        while low < high:
            middle = (low + high) // 2
            address, size, _ = self.unit(middle)
            if size > 0 and address < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def count_at_or_behind(self, physical_offset: int) -> int:
        """Return how many units there are from `first_at_or_behind` on, looking from the end. Believes the last unit."""
        begin, step = self.max_offset, 1
        while begin > self.min_offset and self.unit(begin - 1)[0] >= physical_offset:
            begin, step = max(begin - step, self.min_offset), 2 * step
        return self.max_offset - self.first_at_or_behind(physical_offset, begin)

    def nearest_offset(self, timestamp_ms: int, time_at: Callable[[int], int]) -> int:
        """Return the queue offset of the message that was stored nearest to that time; the queue must have some.

        `time_at` tells the store time of the record at a physical offset, -1 where it is gone.
        """
        low, high = self._file_of_time(timestamp_ms, time_at)
        left = right = -1
        left_time = right_time = 0
        while high >= low:
            middle = (low + high) // 2
            time_ms = time_at(self.unit(middle)[0])
            if time_ms < 0:
                return 0
            if time_ms == timestamp_ms:
                return middle
            if time_ms > timestamp_ms:
                high = middle - 1
                right, right_time = middle, time_ms
            else:
                low = middle + 1
                left, left_time = middle, time_ms
        if left < 0 or right < 0:
            return max(left, right)
        return right if timestamp_ms - left_time > right_time - timestamp_ms else left

    def _file_of_time(self, timestamp_ms: int, time_at: Callable[[int], int]) -> tuple[int, int]:
        """Return the first and last queue offset of the first file that does not end before that time."""
        for file in self._files:
            first = max(file.begin // UNIT_SIZE, self.min_offset)
            last = min(file.end // UNIT_SIZE, self.max_offset) - 1
            if last >= first and (last == self.max_offset - 1 or time_at(self.unit(last)[0]) >= timestamp_ms):
                return first, last
        return self.min_offset, self.max_offset - 1

    def is_valid_at(self, queue_offset: int, log: MappedFileQueue) -> bool:
        """Tell whether a unit points at a whole record of this queue and queue offset, or before the log's begin."""
        physical_offset, size, _ = self.unit(queue_offset)
        if physical_offset < log.begin:
            return True
        file = log.find(physical_offset)
        if file is None:
            return False
        try:
            record = peek(file.map, physical_offset - file.begin)
        except InvalidMessage:
            return False
        place = (record.size, record.physical_offset, record.topic, record.queue_id, record.queue_offset)
        return place == (size, physical_offset, self.topic, self.queue_id, queue_offset)

    def _count_written(self) -> int:
        """Return the number of units before the zeros; a queue has no other mark.

        Nothing is mapped for that: of thousands of queues most are never asked for more than their last units.
        """
        for file in reversed(self._files.files):
            count = self._count_written_in(file)
            if count:
                return file.begin // UNIT_SIZE + count
        return self._files.begin // UNIT_SIZE

    def _count_written_in(self, file: MappedFile) -> int:
        """Find the end by halving: first among the units before the first hole, which mostly follows them."""
        end = file.size // UNIT_SIZE
        if not end:
            return 0
        with file.opened() as fd:
            hole = os.lseek(fd, 0, os.SEEK_HOLE)
            first = max(hole - PAGE_SIZE, 0) // UNIT_SIZE
            near = os.pread(fd, PAGE_SIZE + 2 * UNIT_SIZE, first * UNIT_SIZE)
            there = min(len(near) // UNIT_SIZE, end - first)
            count = _halve(0, there, lambda number: _UNIT.unpack_from(near, number * UNIT_SIZE)) + first
            if count == first > 0 or count == first + there < end:
                low, high = (0, first) if count == first else (count, end)
                count = _halve(low, high, lambda number: _UNIT.unpack(os.pread(fd, UNIT_SIZE, number * UNIT_SIZE)))
            if count:
                begin = max(count - _TAIL_COUNT, 0)
                tail = os.pread(fd, (count - begin) * UNIT_SIZE, begin * UNIT_SIZE)
                self._tail = file.begin // UNIT_SIZE + begin, tail
        return count

    def _skip_filler(self) -> int:
        begin = self._files.begin // UNIT_SIZE
        if begin < self.max_offset:
            with self._files.files[0].opened() as fd:
                _, size, _ = _UNIT.unpack(os.pread(fd, UNIT_SIZE, 0))
            if size == FILLER_SIZE:
                sizes = self.units(begin, self.end_of_file(begin))["size"]
                begin += int(np.argmax(sizes != FILLER_SIZE)) if (sizes != FILLER_SIZE).any() else len(sizes)
        return begin

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, queue_offset: int, units: bytes) -> None:
        """Write the units from `queue_offset` on, which must be `max_offset` unless the queue is empty.

        Raises OSError where the disk has no room.
        """
        if queue_offset != self.max_offset:
            self._begin_at(queue_offset)
        position, end = 0, len(units)
        while position < end:
            file = self._last
            at = queue_offset * UNIT_SIZE + position
            if file is None or not file.begin <= at < file.end:
                if file is not None:
                    file.seal()
                # Behind the last unit there may be a file already, made before a crash that took the units.
                file = self._last = self._files.find(at) or self._next_file(at)
            at -= file.begin
            size = min(end - position, file.size - at)
            self._write(file, at, units[position : position + size] if size < end else units)
            position += size
        self.max_offset = queue_offset + end // UNIT_SIZE
        if self._aside is None and self._last is not None:
            self._map, self._map_begin = self._last.map, self._last.begin // UNIT_SIZE
            self._room_end = self._map_begin + self._last.reserved // UNIT_SIZE

    def append_one(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Write one unit; otherwise as `append`. What most units need is here, and nothing else."""
        if queue_offset == self.max_offset and queue_offset < self._room_end:
            _pack_into(self._map, (queue_offset - self._map_begin) * UNIT_SIZE, physical_offset, size, tags_code)
            self.max_offset = queue_offset + 1
        else:
            self.append(queue_offset, _UNIT.pack(physical_offset, size, tags_code))

    def _begin_at(self, queue_offset: int) -> None:
        """Let an empty queue begin in the middle: fillers from its file's beginning to the first unit."""
        assert not self._files.files, "a queue has no gaps"
        begin = queue_offset * UNIT_SIZE
        file = self._last = self._next_file(begin - begin % self._files.file_size)
        self._write(file, 0, _FILLER * ((begin - file.begin) // UNIT_SIZE))
        self.min_offset = self.max_offset = queue_offset

    def _next_file(self, begin: int) -> MappedFile:
        """Return the file behind the last one, or the first one, which has `begin` in it: the one that a rewind put
        aside, or a new one."""
        begin -= begin % self._files.file_size
        if self._aside:
            if (file := self._aside.pop(begin, None)) is not None:
                file.reads_ahead = False
                self._files.files.append(file)
                return file
            self._let_go_of_aside()  # or there would be a gap between them and the new one
        return self._files.create_next(begin, reads_ahead=False)

    def _write(self, file: MappedFile, position: int, data: bytes) -> None:
        end = position + len(data)
        if self._aside is None or file.map[position:end] != data:
            file.reserve(end, _RESERVE_WINDOW)
            file.map[position:end] = data

    def rewind(self, queue_offset: int) -> None:
        """Count no unit from `queue_offset` on as written. Without any unit left the queue is as if it was never there.

        The bytes stay: `append` writes where it does not find the same units again, and `finish_rewind` ends that. So a
        recovery of thousands of queues leaves most of their files as they are.
        """
        self._flushed_end = min(self._flushed_end, queue_offset * UNIT_SIZE)
        self._tail = 0, b""
        if self._aside is None:
            self._aside = {}
        files = self._files.files
        end = queue_offset * UNIT_SIZE if queue_offset > self.min_offset else -1
        for file in files:
            if file.begin >= end:  # nothing in it was ever vouched for
                file.mark_name_unsynced()
        while files and files[-1].begin > end:
            file = files.pop()
            self._aside[file.begin] = file
        if end < 0:
            self.min_offset = self.max_offset = 0
        else:
            self.max_offset = min(self.max_offset, queue_offset)
        self._grow_at_the_end()

    def rewind_to_physical_offset(self, physical_offset: int) -> None:
        """Rewind to the first unit whose record lies at a physical offset or behind it, if there is one."""
        if self.max_physical_offset > physical_offset:
            self.rewind(self.first_at_or_behind(physical_offset))

    def finish_rewind(self) -> None:
        """End what `rewind` began: what stands behind the last unit becomes zeros, and files that are not needed go.

        There may be something even where no unit was dropped. After a power cut pages are there or not in any order, so
        units can be there whose predecessors are not.

        The zeros are brought to disk by `flush`, as units are. Until then no checkpoint vouches for more than the one
        by which the queue was rewound, so after another crash the same is done again.
        """
        if self._aside is not None:
            if not self._files.files and 0 in self._aside:  # Removing files takes longer than all else.
                self._files.files.append(self._aside.pop(0))
                self._grow_at_the_end()
            self._let_go_of_aside()
            self._aside = None
            if self._last is not None:
                self._last.erase(max(self.max_offset * UNIT_SIZE - self._last.begin, 0))

    def _let_go_of_aside(self) -> None:
        """Remove the files that were put aside, so that whatever a crash leaves of it has no gap."""
        assert self._aside is not None
        begin = self._files.begin
        before = sorted(number for number in self._aside if number < begin)
        behind = sorted((number for number in self._aside if number >= begin), reverse=True)
        for number in before + behind:
            self._aside.pop(number).delete()
        if before or behind:
            sync_directory(self._files.directory)

    def truncate(self, queue_offset: int) -> None:
        """Drop all units from `queue_offset` on. Without any unit left the queue is as if it was never there."""
        self.rewind(queue_offset)
        self.finish_rewind()

    def _grow_at_the_end(self) -> None:
        """Write to the last file from now on. What follows its units are holes, which nobody shall read ahead."""
        self._room_end = 0
        self._last = self._files.files[-1] if self._files.files else None
        if self._last is not None:
            self._last.reads_ahead = not self._last.writable

    def raise_min_offset(self, min_physical_offset: int) -> None:
        """Let the queue begin with the first unit whose record the log still has."""
        if self._log_begin < min_physical_offset:
            self._log_begin = min_physical_offset
            if self.min_offset < self.max_offset and self.unit(self.min_offset)[0] < min_physical_offset:
                self.min_offset = self.first_at_or_behind(min_physical_offset)

    def detach_expired(self) -> list[MappedFile]:
        """Give up the files that end before `min_offset`, but the last; they are to be deleted."""
        taken = []
        while len(self._files.files) > 1 and self._files.files[0].end <= self.min_offset * UNIT_SIZE:
            taken.append(self._files.detach_first())
        return taken

    def delete(self) -> None:
        """Remove the queue's files and directory, and that of its topic with the last queue. Raises OSError."""
        self._files.truncate(-1)
        self._tail, self.min_offset, self.max_offset = (0, b""), 0, 0
        self._grow_at_the_end()
        for directory in (self._files.directory, self._files.directory.parent):
            try:
                directory.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise

    @property
    def is_changed(self) -> bool:
        """Whether this process may have written units."""
        return any(file.is_changed for file in self._files)

    def flush(self) -> None:
        """Wait until all units that were written before this call are on disk. For any thread, one at a time."""
        end, begin = self.max_offset * UNIT_SIZE, self._flushed_end
        for file in list(self._files.files):
            if (
                file.begin <= end and begin < file.end
            ):  # with the file of the next unit, of which `finish_rewind` made zeros
                file.flush()
        self._flushed_end = end


pack_unit = _UNIT.pack
"""Return the 20 bytes of a unit, given (physical offset, size, tags code)."""


def iter_units(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (physical offset, size, tags code) of every unit in `data`."""
    return _UNIT.iter_unpack(data)


def _halve(low: int, high: int, unit: Callable[[int], tuple[int, int, int]]) -> int:
    """Return the number from `low` to `high` at which units that were written give way to zeros."""
    while low < high:
        middle = (low + high) // 2
        physical_offset, size, _ = unit(middle)
        if physical_offset >= 0 and size > 0:
            low = middle + 1
        else:
            high = middle
    return low


def open_queues(
    directory: Path, *, writable: bool = False, file_size: int = 0, after_crash: bool = False
) -> dict[tuple[str, int], ConsumeQueue]:
    """Return every queue under `consumequeue` by (topic, queue id). The arguments are those of `MappedFileQueue.open`.

    Several are opened at a time, since a disk that has to be asked for each answers many questions as fast as one.
    """

    def of_topic(topic: str) -> list[ConsumeQueue]:
        return [
            ConsumeQueue(
                topic,
                queue_id,
                MappedFileQueue.open(path, writable=writable, file_size=file_size, after_crash=after_crash),
            )
            for queue_id, path in _queues_of(directory / topic)
        ]

    with ThreadPoolExecutor(_AT_A_TIME, "open-queues") as threads:
        topics = threads.map(of_topic, _directories(directory))
        return {(queue.topic, queue.queue_id): queue for queues in topics for queue in queues}


def flush_queues(queues: Sequence[ConsumeQueue], *, beside_others: bool) -> None:
    """Flush all these queues: one after the other beside other work, else, if they are many, several at a time, for
    which the disk makes one write of what each would wait for. Raises OSError."""

    def flush(some: Sequence[ConsumeQueue]) -> None:
        for queue in some:
            queue.flush()

    if beside_others or len(queues) <= _FLUSHED_IN_A_ROW:
        flush(queues)
    else:
        with ThreadPoolExecutor(_AT_A_TIME, "flush-queues") as threads:
            list(threads.map(flush, [queues[number::_AT_A_TIME] for number in range(_AT_A_TIME)]))


def sync_names(directory: Path) -> None:
    """Wait until the names of all queues under `consumequeue` are on disk, but not those of their files."""
    directories = [directory / topic for topic in _directories(directory)]
    with ThreadPoolExecutor(_AT_A_TIME, "sync-names") as threads:
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
    """Return the names of the directories in a directory, in order; none where there is no such one."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []
