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
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rucola.errors import InvalidMessage
from rucola.message.record import peek
from rucola.store.mapped_file import MappedFile, MappedFileQueue

UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
"""One unit. Arrays of units that this room gives out have this type and own their bytes."""

UNIT_SIZE: Final = UNIT.itemsize
FILLER_SIZE: Final = 0x7FFFFFFF

_UNIT: Final = struct.Struct(">qiq")
_FILLER: Final = _UNIT.pack(0, FILLER_SIZE, 0)
_RESERVE_WINDOW: Final = 16 * 4096


class ConsumeQueue:
    """One queue. Its units run from `min_offset` to `max_offset`, half-open, both queue offsets.

    `min_offset` is the first unit whose record the log still has; units before it may still be in the file.
    """

    __slots__ = (
        "_files",
        "_flushed_end",
        "_last",
        "_log_begin",
        "_per_file",
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
        self._last: MappedFile | None = files.files[-1] if files.files else None
        self._flushed_end = 0
        self._log_begin = 0
        self.max_offset = self._count_written()
        self.min_offset = self._skip_filler()

    # -- reading ------------------------------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code) of a unit between the first file's and `max_offset`."""
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

    def first_at_or_after(self, physical_offset: int) -> int:
        """Return the first queue offset from `min_offset` on whose record lies at `physical_offset` or behind it."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            address, size, _ = self.unit(middle)
            if size > 0 and address < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def is_sound_at(self, queue_offset: int, log: MappedFileQueue) -> bool:
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
        """Return the number of units before the zeros, found by halving, for a queue has no other mark."""
        for file in reversed(self._files.files):
            # Every page that is looked at costs a fault, so not one is in the hole behind the last unit.
            low, high = 0, min(file.size, file.hole + UNIT_SIZE) // UNIT_SIZE
            while low < high:
                middle = (low + high) // 2
                physical_offset, size, _ = _UNIT.unpack_from(file.map, middle * UNIT_SIZE)
                if physical_offset >= 0 and size > 0:
                    low = middle + 1
                else:
                    high = middle
            if low:
                return file.begin // UNIT_SIZE + low
        return self._files.begin // UNIT_SIZE

    def _skip_filler(self) -> int:
        begin = self._files.begin // UNIT_SIZE
        if begin < self.max_offset and self.unit(begin)[1] == FILLER_SIZE:
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
                # Behind the last unit there may be a file already, made before a crash that took the units.
                file = self._last = self._files.find(at) or self._files.create_next(at)
            at -= file.begin
            size = min(end - position, file.size - at)
            file.reserve(at + size, _RESERVE_WINDOW)
            file.map[at : at + size] = units[position : position + size] if size < end else units
            position += size
        self.max_offset = queue_offset + end // UNIT_SIZE

    def _begin_at(self, queue_offset: int) -> None:
        """Let an empty queue begin in the middle: fillers from its file's beginning to the first unit."""
        assert not self._files.files, "a queue has no gaps"
        begin = queue_offset * UNIT_SIZE
        file = self._last = self._files.create_next(begin - begin % self._files.file_size)
        file.reserve(begin - file.begin, _RESERVE_WINDOW)
        file.map[0 : begin - file.begin] = _FILLER * ((begin - file.begin) // UNIT_SIZE)
        self.min_offset = self.max_offset = queue_offset

    def cut(self, queue_offset: int) -> None:
        """Drop all units from `queue_offset` on. Without any unit left the queue is as if it was never there."""
        self._flushed_end = min(self._flushed_end, queue_offset * UNIT_SIZE)
        if queue_offset <= self.min_offset:
            self._files.cut(-1)
            self.min_offset = self.max_offset = 0
        elif queue_offset < self.max_offset:
            self._files.cut(queue_offset * UNIT_SIZE)
            self.max_offset = queue_offset
        self._last = self._files.files[-1] if self._files.files else None

    def raise_min_offset(self, min_physical_offset: int) -> None:
        """Let the queue begin with the first unit whose record the log still has."""
        if self._log_begin < min_physical_offset:
            self._log_begin = min_physical_offset
            if self.min_offset < self.max_offset and self.unit(self.min_offset)[0] < min_physical_offset:
                self.min_offset = self.first_at_or_after(min_physical_offset)

    def take_expired(self) -> list[MappedFile]:
        """Give up the files that end before `min_offset`, but the last; they are to be deleted."""
        taken = []
        while len(self._files.files) > 1 and self._files.files[0].end <= self.min_offset * UNIT_SIZE:
            taken.append(self._files.take_first())
        return taken

    def delete(self) -> None:
        """Remove the queue's files and directory, and that of its topic with the last queue. Raises OSError."""
        self.cut(self.min_offset)
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
            if file.begin < end and begin < file.end:
                file.flush()
        self._flushed_end = end


pack_unit = _UNIT.pack
"""Return the 20 bytes of a unit, given (physical offset, size, tags code)."""


def iter_units(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (physical offset, size, tags code) of every unit in `data`."""
    return _UNIT.iter_unpack(data)


def queue_directories(directory: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield (topic, queue id, path) of every queue under `consumequeue`, ordered by topic and id."""
    if not directory.is_dir():
        return
    for topic in sorted(path for path in directory.iterdir() if path.is_dir()):
        ids = [path for path in topic.iterdir() if path.name.isascii() and path.name.isdigit() and path.is_dir()]
        for path in sorted(ids, key=lambda path: int(path.name)):
            yield topic.name, int(path.name), path
