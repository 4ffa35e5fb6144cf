"""The ConsumeQueue: the location in the CommitLog of each message of a queue, in order.

    consumequeue/<topic>/<queueId>/<20 digits>      a file name is 20 times the queue_offset of its first unit

A file is an array of units of 20 bytes, 300,000 of them by default; unit k is message k of the queue:

    position  bytes  field
           0      8  physicalOffset of the record
           8      4  size of the record
          12      8  tagsCode: String.hashCode of the tag, 0 without one; in SCHEDULE_TOPIC_XXXX the time at which
                     the message is due, in milliseconds; below -2^31 an address in Apache's consumequeue_ext

After the last unit the file holds zeros; there is no other end mark, so opening a queue searches for the first zero.
If a queue begins with a higher queue offset, because its first messages are deleted, the units of its first file
before the first real one are fillers: (0, 0x7fffffff, 0).

Units can be rebuilt from the log at any time; therefore a put is answered before its unit is written.

Apache's broker with enableConsumeQueueExt writes the tags code to a second file with a bit map for SQL92 filters, and
the address of that entry into the unit. Units that are returned never have such an address: the tags code comes from
the record, as at dispatch, and consumequeue_ext is neither read nor written.

Corresponds to org.apache.rocketmq.store.ConsumeQueue.
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
from rucola.store.multi_dispatch import is_dispatched_to

UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
"""The numpy type of a unit. Functions of `store` that return arrays of units return copies of this type."""

UNIT_SIZE: Final = UNIT.itemsize
FILLER_SIZE: Final = 0x7FFFFFFF
"""The size field of a filler; no record is that large."""

MAX_EXT_ADDRESS: Final = -(1 << 31) - 1
"""A tags code up to this one is an address in consumequeue_ext; a hash of a tag is greater."""

TagsCodeReader = Callable[[int, int], int]
"""Returns the tags code of the record at a physical offset; if there is none, its second argument."""

_UNIT: Final = struct.Struct(">qiq")
_pack_into: Final = _UNIT.pack_into
_FILLER: Final = _UNIT.pack(0, FILLER_SIZE, 0)
_NO_MAP: Final = mmap.mmap(-1, UNIT_SIZE)
"""A placeholder for the map of a queue without files; never written, because `_room_end` is 0 then."""
_RESERVE_WINDOW: Final = 16 * PAGE_SIZE
"""Bytes of disk blocks that are requested at a time: 3,276 units, so most appends need no system call.

The first windows of a file are smaller, a page and then as much as there is: most queues have few messages."""
_TAIL_COUNT: Final = 16
"""Units that stay in memory after opening; enough for idle queues, whose files then need no mapping."""
_THREADS: Final = 8
"""Threads that open or flush many queues; a disk serves several requests in the time of one."""
_MAX_SERIAL_FLUSHES: Final = 32
"""Above this number of queues a flush that runs alone uses threads."""


class ConsumeQueue:
    """One queue. It belongs to the store's owner thread.

    `flush` may run in another thread, one at a time. A recovery rewinds a queue (`rewind`), appends the units that the
    log has, and ends with `finish_rewind`. Between the two, units after `max_offset` stay in the files, and an append
    writes only the ones that differ.
    """

    __slots__ = (
        "_aside",
        "_files",
        "_flushed_end",
        "_last",
        "_map",
        "_map_begin",
        "_per_file",
        "_read_tags_code",
        "_room_end",
        "_tail",
        "gap",
        "log_begin",
        "max_offset",
        "min_offset",
        "queue_id",
        "topic",
    )

    def __init__(
        self, topic: str, queue_id: int, files: MappedFileQueue, read_tags_code: TagsCodeReader | None = None
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._files = files
        self._read_tags_code = read_tags_code
        """Reads the tags codes of units that have an address in consumequeue_ext; None if nobody asks for them."""
        self._per_file = files.file_size // UNIT_SIZE
        self._aside: dict[int, MappedFile] | None = None
        """During a rewind: files after the new end, by logical offset. None if the queue is not being rewound."""
        self._last: MappedFile | None = None
        """The file that the next unit is written to, if it exists."""
        self._map = _NO_MAP
        """The bytes of `_last`; kept here because an attribute of this class is read faster than a cached property."""
        self._map_begin = 0
        """The queue offset of the first unit in `_map`."""
        self._room_end = 0
        """Below this queue offset `append_one` may write to `_map`: the file has disk blocks up to there."""
        self._select_last_file()
        self._flushed_end = 0
        """Bytes from the start of the logical file that this process has flushed."""
        self.log_begin = 0
        """The begin of the log, as of the last `raise_min_offset`."""
        self._tail: tuple[int, bytes] = 0, b""
        """(queue offset, the last units when the queue was opened), which `unit` reads without mapping a file."""
        self.gap = files.gap
        """The position at which the first missing file would begin; None if there is none.

        Such a queue is being rewound to its begin: all of its units have to be appended again.
        """
        self.max_offset = self._count_written()
        """The queue offset of the next message."""
        self.min_offset = self._skip_fillers()
        """The queue offset of the first message that the log still has; earlier units may still be in the file."""
        if self.gap is not None:
            self.rewind(0)

    # -- reading ------------------------------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Return a unit between the first file's begin and `max_offset`, as it is in the file.

        (physical offset, size, tags code or address in consumequeue_ext)
        """
        begin, tail = self._tail
        if begin <= queue_offset < begin + len(tail) // UNIT_SIZE:
            return _UNIT.unpack_from(tail, (queue_offset - begin) * UNIT_SIZE)
        file = self._files.find(queue_offset * UNIT_SIZE)
        assert file is not None, "no file has this unit"
        return _UNIT.unpack_from(file.map, queue_offset * UNIT_SIZE - file.begin)

    def units(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return a copy of the existing units from `begin` to `end`: shape (n,), type UNIT."""
        begin, end = max(begin, self._files.begin // UNIT_SIZE), min(end, self.max_offset)
        parts = []
        while begin < end:
            file = self._files.find(begin * UNIT_SIZE)
            assert file is not None
            until = min(end, file.end // UNIT_SIZE)
            parts.append(file.map[begin * UNIT_SIZE - file.begin : until * UNIT_SIZE - file.begin])
            begin = until
        return np.frombuffer(self._resolved(b"".join(parts)), UNIT)

    def units_in_file(self, queue_offset: int, max_count: int) -> bytes:
        """Return the bytes of up to `max_count` units of one file from `queue_offset` on."""
        file = self._files.find(queue_offset * UNIT_SIZE)
        if file is None:
            return b""
        begin = queue_offset * UNIT_SIZE - file.begin
        end = min(begin + max_count * UNIT_SIZE, self.max_offset * UNIT_SIZE - file.begin, file.size)
        return self._resolved(file.map[begin:end])

    def _resolved(self, units: bytes) -> bytes:
        """Return units with their tags codes in place of addresses in consumequeue_ext."""
        # The high bytes of 800 hashes and times are 0x00 or 0xff, which takes a microsecond to see.
        if self._read_tags_code is None or not units[12::UNIT_SIZE].strip(b"\x00\xff"):
            return units
        resolved = np.frombuffer(units, UNIT).copy()
        for at in np.flatnonzero(resolved["tags_code"] <= MAX_EXT_ADDRESS).tolist():
            physical_offset, _, address = resolved[at].tolist()
            resolved["tags_code"][at] = self._read_tags_code(physical_offset, address)
        return resolved.tobytes()

    def end_of_file(self, queue_offset: int) -> int:
        """Return the first queue offset of the file after the one that holds `queue_offset`."""
        return queue_offset + self._per_file - queue_offset % self._per_file

    @property
    def files(self) -> MappedFileQueue:
        """The files behind the queue."""
        return self._files

    @property
    def max_physical_offset(self) -> int:
        """The end of the last unit's record; -1 without units."""
        if self.max_offset <= self.min_offset:
            return -1
        physical_offset, size, _ = self.unit(self.max_offset - 1)
        return physical_offset + size

    def first_at_or_after(self, physical_offset: int, begin: int = 0) -> int:
        """Return the first queue offset whose record is at `physical_offset` or after it.

        Searches from the later of `min_offset` and `begin` on. O(log n).
        """
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
        """Return the queue offset behind the last record that ends at or before `physical_offset`.

        None means no limit. O(1) if it is the queue's last record, else O(log n).
        """
        end = self.max_offset
        if physical_offset is None or end == self.min_offset or self._ends_by(end - 1, physical_offset):
            return end
        end = self.first_at_or_after(physical_offset)
        return end if end == self.min_offset or self._ends_by(end - 1, physical_offset) else end - 1

    def _ends_by(self, queue_offset: int, physical_offset: int) -> bool:
        begin, size, _ = self.unit(queue_offset)
        return begin + size <= physical_offset

    def count_at_or_after(self, physical_offset: int) -> int:
        """Return the number of units from `first_at_or_after` on.

        Searches from the end in doubling steps, so a recovery touches only the last units of each queue. The last unit
        must be valid.
        """
        begin, step = self.max_offset, 1
        # Reads the units at distances 1, 2, 4, 8 … from the end, until one is before; the bisection has the rest.
        while begin > self.min_offset and self.unit(begin - 1)[0] >= physical_offset:
            begin, step = max(begin - step, self.min_offset), 2 * step
        return self.max_offset - self.first_at_or_after(physical_offset, begin)

    def nearest_offset(self, timestamp_ms: int, time_at: Callable[[int], int]) -> int:
        """Return the queue offset of the first message stored at a time.

        The queue must not be empty. If no message was stored at that time, the result is the nearer one of the last
        message before and the first message after it; the one before if both are equally near. `time_at` returns the
        store time of the record at a physical offset, or -1 if the log does not have it. O(log n).

            times of units 0 to 5 are 10 20 20 20 30 40; the result is 1 for 20, 3 for 25, 4 for 26 and 5 for 99

        Difference to Apache's: of several messages stored at the time, its search returns the one that its bisection
        visits first, so that a consumer may begin in the middle of a millisecond.
        """
        low, high = self.min_offset, self.max_offset
        before_ms = after_ms = -1
        while low < high:
            middle = (low + high) // 2
            time_ms = time_at(self.unit(middle)[0])
            # A record that the log does not have counts as later: the search never skips messages because of it.
            if 0 <= time_ms < timestamp_ms:
                low, before_ms = middle + 1, time_ms
            else:
                high, after_ms = middle, time_ms
        # Now `low` is the first message at the time or later, if any, and before_ms the time of the message before it.
        if before_ms < 0:
            return low
        is_before_nearer = low == self.max_offset or timestamp_ms - before_ms <= after_ms - timestamp_ms
        return low - 1 if is_before_nearer else low

    def further_record(self, log: MappedFileQueue) -> tuple[bytes, tuple[str, int]] | None:
        """Return properties and (topic, queue id) of the last unit's record if it is of another queue, else None."""
        if self.max_offset > self.min_offset and self.is_valid_at(self.max_offset - 1, log):
            physical_offset, _, _ = self.unit(self.max_offset - 1)
            if (file := log.find(physical_offset)) is not None:
                record = peek(file.map, physical_offset - file.begin)
                if (own := (record.topic, record.queue_id)) != (self.topic, self.queue_id):
                    return bytes(file.map[record.properties_begin : record.properties_end]), own
        return None

    def is_valid_at(self, queue_offset: int, log: MappedFileQueue) -> bool:
        """Tell whether a unit points at its own record, or before the log's begin."""
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
        if (record.size, record.physical_offset) != (size, physical_offset):
            return False
        if (record.topic, record.queue_id, record.queue_offset) == (self.topic, self.queue_id, queue_offset):
            return True
        return is_dispatched_to(file.map, record, (self.topic, self.queue_id), queue_offset)

    def _count_written(self) -> int:
        """Return the queue offset after the last unit that was written.

        Reads with system calls and maps nothing: of thousands of queues, most are idle and never read further.
        """
        for file in reversed(self._files.files):
            count = self._count_written_in(file)
            if count:
                return file.begin // UNIT_SIZE + count
        return self._files.begin // UNIT_SIZE

    def _count_written_in(self, file: MappedFile) -> int:
        """Return the number of units in a file: those before the first zeros.

        A bisection over the whole file would read a page per step, most of them from disk. The pages after the last
        unit were never written, so the end is nearly always in the page before the file's first hole. For example:

            1,000 units take 20,000 bytes, so the first hole is at 20,480, after 5 pages of 4,096
            one read of a page and two units from unit 819 (byte 16,380), then bisect units 819 to 1,025 in memory
        """
        end = file.size // UNIT_SIZE
        if not end:
            return 0
        with file.opened() as fd:
            # 1. Read the page before the first hole, from unit `first` on, and bisect in it.
            hole = os.lseek(fd, 0, os.SEEK_HOLE)
            first = max(hole - PAGE_SIZE, 0) // UNIT_SIZE
            near = os.pread(fd, PAGE_SIZE + 2 * UNIT_SIZE, first * UNIT_SIZE)
            there = min(len(near) // UNIT_SIZE, end - first)
            count = _bisect_end(0, there, lambda number: _UNIT.unpack_from(near, number * UNIT_SIZE)) + first
            # 2. If it holds no end (only zeros or only units), bisect the rest of the file on that side.
            if count == first > 0 or count == first + there < end:
                low, high = (0, first) if count == first else (count, end)
                count = _bisect_end(low, high, lambda number: _UNIT.unpack(os.pread(fd, UNIT_SIZE, number * UNIT_SIZE)))
            # 3. Keep the last units in memory.
            if count:
                begin = max(count - _TAIL_COUNT, 0)
                tail = os.pread(fd, (count - begin) * UNIT_SIZE, begin * UNIT_SIZE)
                self._tail = file.begin // UNIT_SIZE + begin, tail
        return count

    def _skip_fillers(self) -> int:
        """Return the queue offset of the first unit that is no filler."""
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
        """Write consecutive units, the first at `queue_offset`, which is `max_offset` unless the queue is empty.

        Raises OSError if the disk is full; the queue has none of the units then, and the call may be repeated.
        """
        if queue_offset != self.max_offset:
            self._start_at(queue_offset)
        position, end = 0, len(units)
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
        # During a rewind `_room_end` stays 0: each unit has to be compared with the one in the file (`_write`). For
        # example, 64 KiB of blocks in the file of units 300,000 on: those below 303,276 take the path of `append_one`.
        if self._aside is None and self._last is not None:
            self._map, self._map_begin = self._last.map, self._last.begin // UNIT_SIZE
            self._room_end = self._map_begin + self._last.reserved // UNIT_SIZE

    def append_one(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Write one unit; otherwise like `append`.

        The fast path packs straight into the mapped file: no slice, no bytes object, no lookup of the file. It serves
        all units but the first of each file and of each window of disk blocks.
        """
        if queue_offset == self.max_offset and queue_offset < self._room_end:
            _pack_into(self._map, (queue_offset - self._map_begin) * UNIT_SIZE, physical_offset, size, tags_code)
            self.max_offset = queue_offset + 1
        else:
            self.append(queue_offset, _UNIT.pack(physical_offset, size, tags_code))

    def _start_at(self, queue_offset: int) -> None:
        """Start an empty queue at a queue offset, with fillers before it in the file."""
        assert self.max_offset == self._files.begin // UNIT_SIZE, "a queue has no gaps"
        begin = queue_offset * UNIT_SIZE
        # A call that found no disk space may have created the file.
        file = self._last = self._files.find(begin) or self._next_file(begin - begin % self._files.file_size)
        # A queue that begins with message 7 gets seven fillers.
        self._write(file, 0, _FILLER * ((begin - file.begin) // UNIT_SIZE))
        self.min_offset = self.max_offset = queue_offset

    def _next_file(self, begin: int) -> MappedFile:
        """Return the next or first file, holding `begin`: set aside by a rewind, or new."""
        begin -= begin % self._files.file_size
        if self._aside:
            if (file := self._aside.pop(begin, None)) is not None:
                file.reads_ahead = False
                self._files.files.append(file)
                return file
            self._delete_set_aside()  # otherwise there would be a gap between the new file and them
        return self._files.create_next(begin, reads_ahead=False)

    def _write(self, file: MappedFile, position: int, data: bytes) -> None:
        """Write units, unless a rewind finds the same in the file: no page gets dirty."""
        end = position + len(data)
        if self._aside is None or file.map[position:end] != data:
            file.reserve(end, min(max(position - position % PAGE_SIZE, PAGE_SIZE), _RESERVE_WINDOW))
            file.map[position:end] = data

    def rewind(self, queue_offset: int) -> None:
        """Set `max_offset` back to a queue offset.

        A queue that has no unit left starts at 0 again. The bytes stay until `finish_rewind`, and `append` leaves units
        that it would write again as they are. So a recovery of thousands of queues does not write to most of their
        files.
        """
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
        """Rewind to the first unit, if any, whose record ends after a physical offset."""
        if self.max_physical_offset > physical_offset:
            self.rewind(self.first_at_or_after(physical_offset))

    def finish_rewind(self) -> None:
        """End a rewind: erase everything after the last unit and delete unneeded files.

        There may be bytes to erase even if the rewind dropped no unit: a power cut loses pages in any order, so a unit
        can be on disk although its predecessor is not.

        `flush` makes the zeros durable. Until then the checkpoint does not advance, so another crash rewinds the queue
        to the same unit again.
        """
        if self._aside is not None:
            if not self._files.files and 0 in self._aside:  # Erasing one file is cheaper than deleting it.
                self._files.files.append(self._aside.pop(0))
                self._select_last_file()
            self._delete_set_aside()
            self._aside = None
            if self._last is not None:
                self._last.erase(max(self.max_offset * UNIT_SIZE - self._last.begin, 0))

    def _delete_set_aside(self) -> None:
        """Delete what a rewind set aside, from the outside in: no crash leaves a gap."""
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
        """Select the last file for writing, without read-ahead by the kernel: it ends in holes."""
        self._room_end = 0
        self._last = self._files.files[-1] if self._files.files else None
        if self._last is not None:
            self._last.reads_ahead = not self._last.writable

    def raise_min_offset(self, min_physical_offset: int) -> None:
        """Raise `min_offset` to the first unit whose record is not before the log's begin."""
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
        """Whether this process may have written units."""
        return any(file.is_changed for file in self._files)

    def flush(self) -> None:
        """Flush all units written before this call. For any thread, one at a time."""
        # Read the end first: units that are appended during the flush belong to the next one.
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
    """Return the description of a record that is not the next of its queue."""
    return f"queueOffset is {queue_offset}, but {topic}-{queue_id} continues with {expected}"


def _bisect_end(low: int, high: int, unit: Callable[[int], tuple[int, int, int]]) -> int:
    """Return the number from `low` to `high` of the first unit that was not written."""
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
    *,
    writable: bool = False,
    file_size: int = 0,
    after_crash: bool = False,
) -> dict[tuple[str, int], ConsumeQueue]:
    """Open every queue under `consumequeue`; return them by (topic, queue id).

    The last three arguments are those of `MappedFileQueue.open`. Several topics are opened at a time, because a cold
    disk answers parallel reads faster: ten thousand queues open in a second or two.

    If `writable`, a queue of which a file is missing is opened as well, rewound to its begin (see `gap`).
    """

    def of_topic(topic: str) -> list[ConsumeQueue]:
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
            )
            for queue_id, path in _queues_of(directory / topic)
        ]

    with ThreadPoolExecutor(_THREADS, "open-queues") as threads:
        topics = threads.map(of_topic, _directories(directory))
        return {(queue.topic, queue.queue_id): queue for queues in topics for queue in queues}


def flush_queues(queues: Sequence[ConsumeQueue], *, beside_others: bool) -> None:
    """Flush queues: serially if puts run at the same time (`beside_others`), otherwise with threads.

    Parallel flushes let the disk combine the writes that each of them waits for. Raises OSError.
    """

    def flush(some: Sequence[ConsumeQueue]) -> None:
        for queue in some:
            queue.flush()

    if beside_others or len(queues) <= _MAX_SERIAL_FLUSHES:
        flush(queues)
    else:
        with ThreadPoolExecutor(_THREADS, "flush-queues") as threads:
            list(threads.map(flush, [queues[number::_THREADS] for number in range(_THREADS)]))


def sync_names(directory: Path) -> None:
    """Sync the directory entries of all topics and queues under `consumequeue`, not their files'."""
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
    """Return the sorted names of subdirectories; an empty list if the directory does not exist."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []
