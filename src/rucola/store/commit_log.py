"""The CommitLog: the records of all messages of a broker, in order of arrival.

    commitlog/<20 digits>       1 GiB each by default; a file name is the physical offset of its first byte

A record never spans two files: if a record and the 8 bytes of a blank do not fit, a blank fills the file,

    position  bytes  field
           0      4  size, of the rest of the file
           4      4  0xCBD43194
           8         anything

and the record starts the next file. For example, with files of 1,000 bytes and records of 300:

    0        300      600      900          1000     1300
    record   record   record   blank(100)   record   ...

The layout of a record is described in `rucola.message.record`. Every read checks that a record is at the physical
offset that it states.

Corresponds to `CommitLog` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from rucola import speed
from rucola.errors import InvalidMessage
from rucola.message import sysflag
from rucola.message.properties import parse
from rucola.message.record import BLANK_MAGIC, FRAME, HEAD_SIZE, MESSAGE_MAGIC, RecordParts, peek
from rucola.store.held_bytes import HeldBytes
from rucola.store.mapped_file import PAGE_SIZE, MappedFile, MappedFileQueue
from rucola.system_calls import is_cached, will_read

BLANK_SIZE: Final = FRAME.size
"""The bytes of a blank that are written. Each file keeps this much free after its last record."""
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big")
_RESERVE_WINDOW: Final = 8 << 20
_WARM_WINDOW: Final = 4 << 20
_MAX_WARM_WINDOW: Final = 64 << 20
_WRITE_FROM: Final = 4096
"""From this size on, and always with SYNC_FLUSH, records are written with pwrite, which costs less than page faults."""


class Unflushed(NamedTuple):
    """The physical offsets not on disk, and the number of truncations before."""

    begin: int
    end: int
    truncations: int


class CommitLog:
    """The log, for writing and reading by the store's owner thread.

    `flush`, `warm` and `close` may run in other threads, as may `truncate` while nothing is appended.
    """

    __slots__ = (
        "_file",
        "_files_lock",
        "_touched",
        "_truncations",
        "_write_from",
        "end",
        "files",
        "flushed_end",
        "safe_end",
    )

    def __init__(self, files: MappedFileQueue, end: int, *, is_flushed_by_puts: bool = False) -> None:
        self.files = files
        self.end = end
        """The physical offset of the next record, unless it starts a new file."""
        self.flushed_end = end
        """The physical offset up to which everything is on disk. Guarded by `_files_lock` in other threads."""
        self._file: MappedFile | None = files.find(end)
        self._files_lock = threading.Lock()
        """Guards the creation and truncation of files: `_following` by owner or warming thread, `truncate`, `flush`."""
        self._truncations = 0
        """A flush that a `truncate` overtakes must not raise `flushed_end`."""
        self._write_from = 0 if is_flushed_by_puts else _WRITE_FROM
        self._touched = self._write_from
        self.safe_end = 0
        """The physical offset up to which records can be appended without `ensure_room`."""

    @property
    def begin(self) -> int:
        return self.files.begin

    def ensure_room(self, size: int) -> int:
        """Make room for a record and return its physical offset; an OSError changes nothing but for a blank."""
        file = self._file
        if self.end + size > self.safe_end:
            if file is not None and self.end + size + BLANK_SIZE > file.end:
                # Create it before the blank is written: after a blank without a next file no put could succeed.
                following = self._following(file)
                file.reserve(self.end - file.begin + BLANK_SIZE, BLANK_SIZE)
                FRAME.pack_into(file.map, self.end - file.begin, file.end - self.end, BLANK_MAGIC)
                self.end = file.end
                file.seal()
                file = self._file = following
            elif file is None:
                file = self._file = self.files.create_next(self.end, reads_ahead=False)
                # Its directory entry must be on disk before the queues have units: queues without a log look like a
                # lost disk.
                file.sync_name()
            # Without blocks a mapped write could fail (SIGBUS).
            file.reserve(self.end - file.begin + size + BLANK_SIZE, _RESERVE_WINDOW)
            self.safe_end = self.end + size
            reserved_end = file.begin + file.reserved
            if reserved_end - BLANK_SIZE > self.safe_end:
                self.safe_end = reserved_end - BLANK_SIZE
        return self.end

    def append(self, data: bytes | bytearray | memoryview | RecordParts) -> None:
        """Write bytes at `end`; `ensure_room` must have made room for them."""
        file = self._file
        assert file is not None
        size = len(data)
        position = self.end - file.begin
        if isinstance(data, RecordParts):
            # The head last: until then the log ends here for other processes that read it.
            position += size
            for part in reversed(data.parts):
                position -= len(part)
                file.write(position, part)
        elif size < self._write_from:
            file.map[position : position + size] = data
            self._touched += size
        else:
            file.write(position, data)
        self.end += size

    def copy(self, data: memoryview) -> None:
        """Append the bytes that a master's log has here, whole records or not. Raises OSError after a part."""
        copied = 0
        while copied < len(data):
            file = self._file
            if file is None:
                file = self._file = self.files.find(self.end) or self.files.create_next(self.end, reads_ahead=False)
                file.sync_name()  # as in `ensure_room`
            elif self.end == file.end:
                file.seal()
                file = self._file = self._following(file)
            position = self.end - file.begin
            size = min(len(data) - copied, file.size - position)
            file.reserve(position + size, _RESERVE_WINDOW)
            self.append(data[copied : copied + size])
            copied += size

    def start_at(self, physical_offset: int) -> None:
        """Start an empty log at a physical offset, a multiple of the file size. Raises OSError."""
        self.truncate(-1)
        self.end = self.flushed_end = physical_offset

    def truncate(self, physical_offset: int) -> None:
        """Cut off the log at a physical offset; durable on return. Raises OSError."""
        with self._files_lock:
            self._truncations += 1
            self.files.truncate(physical_offset)
            self._file = self.files.find(physical_offset)
            self.end = physical_offset
            self.flushed_end = min(self.flushed_end, physical_offset)
            self.safe_end = 0

    def hold_bytes(self, physical_offset: int, max_size: int) -> HeldBytes | None:
        """Return up to `max_size` bytes of one file, which the caller releases; None outside the log."""
        file = self.files.find(physical_offset)
        if file is None or physical_offset >= self.end or not file.hold():
            return None
        position = physical_offset - file.begin
        end = min(position + max_size, self.end - file.begin, file.size)
        return HeldBytes(file, memoryview(file.map)[position:end])

    def _following(self, file: MappedFile) -> MappedFile:
        """Return the file after `file`, created if it does not exist. For any thread."""
        with self._files_lock:
            return self.files.find(file.end) or self.files.create_next(reads_ahead=False)

    def read(self, physical_offset: int, size: int) -> bytes | None:
        """Return `size` bytes of the log; None unless all are in one file, before `end`."""
        file = self.files.find(physical_offset)
        if file is None or size < 0 or physical_offset + size > min(self.end, file.end):
            return None
        position = physical_offset - file.begin
        return file.map[position : position + size]

    def record(self, physical_offset: int) -> bytes | None:
        """Return the record that starts at a physical offset, or None if none does."""
        return self.records([physical_offset], 0)[0]

    def records(self, physical_offsets: list[int], max_bytes: int) -> list[bytes | None]:
        """Return the record that starts at each of the first physical offsets, at least one; None if none does.

        Ends before an offset in another file, or after the record with which there are more than `max_bytes`.
        """
        physical_offset = physical_offsets[0]
        file = self.files.find(physical_offset)
        if file is None or physical_offset >= self.end:
            return [None]
        source = file.map if file is self._file else file.source()
        written = min(self.end, file.end) - file.begin
        if speed.read_records is not None:
            found = speed.read_records(source, file.begin, written, physical_offsets, max_bytes)
            if found is not None:
                return found
        begin = physical_offset - file.begin
        head = _read(source, begin, min(begin + HEAD_SIZE, written))
        if len(head) == HEAD_SIZE and begin < (end := begin + FRAME.unpack_from(head)[0]) <= written:
            record = _read(source, begin, end)
            with suppress(InvalidMessage):
                if peek(record).physical_offset == physical_offset:
                    return [record]
        return [None]

    def read_ahead(self, physical_offsets: list[int]) -> None:
        """Have the disk read records at the same time, unless the first, and so likely all, are in the page cache."""
        with suppress(OSError):  # the process may be out of descriptors
            for number, physical_offset in enumerate(physical_offsets):
                if (file := self.files.find(physical_offset)) is not None:
                    position = physical_offset - file.begin
                    if not number and is_cached(file.descriptor(), position):
                        return
                    will_read(file.descriptor(), position, PAGE_SIZE)

    def next_record(self, physical_offset: int) -> int:
        """Return where the first record at or after a physical offset begins; the end of the log if none does.

        Searches the rest of a record, which slaves may have in part.
        """
        while (file := self.files.find(physical_offset)) is not None and physical_offset < self.end:
            position, end = physical_offset - file.begin, min(file.size, self.end - file.begin)
            while self.record(file.begin + position) is None:
                found = file.map.find(_MAGIC, position + 5, end)
                if found < 0:
                    break
                position = found - 4
            else:
                return file.begin + position
            physical_offset = file.end
        return self.end

    def matches(self, physical_offset: int, matches: Callable[[Mapping[str, str]], bool]) -> bool:
        """Return whether a record's properties match, without reading the body; True if there is no record."""
        file = self.files.find(physical_offset)
        if file is None or physical_offset >= self.end:
            return True
        try:
            outline = peek(file.map, physical_offset - file.begin)
        except InvalidMessage:
            return True
        return matches(parse(file.map[outline.properties_begin : outline.properties_end]))

    def store_timestamp(self, physical_offset: int) -> int:
        """Return a record's store time, read in place; -1 if the log lacks it."""
        head = self.read(physical_offset, HEAD_SIZE)
        if head is None:
            return -1
        # sysFlag is at 36, bornTimestamp at 40, bornHost at 48 with 8 bytes, or 20 for IPv6; the store time follows.
        position = 56 + 12 * bool(int.from_bytes(head[36:40], "big") & sysflag.BORN_HOST_V6)
        return int.from_bytes(head[position : position + 8], "big", signed=True)

    def next_file_begin(self, physical_offset: int) -> int:
        return physical_offset + self.files.file_size - physical_offset % self.files.file_size

    def flush(self) -> None:
        """Make earlier appends durable. For one thread at a time, while the owner may append. Raises OSError."""
        unflushed = self.unflushed()
        begin, end, _ = unflushed
        for file in list(self.files.files):
            if file.begin < end and begin < file.end:
                file.flush(max(begin - file.begin, 0), min(end - file.begin, file.size))
        self.mark_flushed(unflushed)

    def unflushed(self) -> Unflushed:
        return Unflushed(self.flushed_end, self.end, self._truncations)

    def mark_flushed(self, flushed: Unflushed) -> None:
        with self._files_lock:
            if flushed.truncations == self._truncations:  # otherwise others may have replaced those that were flushed
                self.flushed_end = max(self.flushed_end, flushed.end)

    def descriptor_of(self, unflushed: Unflushed) -> int | None:
        """Return the descriptor whose fdatasync makes these bytes durable, or None if that is not enough."""
        file = self._file
        if file is None or not file.is_name_durable or not file.begin <= unflushed.begin < unflushed.end <= file.end:
            return None
        try:
            return file.descriptor()
        except OSError:
            return None

    def warm(self, pause: Callable[[], None] | None = None) -> None:
        """Prefault the next 4 MiB, or four times the bytes since the last call, in a thread other than the owner's.

        `pause` is called every 256 KiB. In the last quarter of a file the next one is created, so that no put waits for
        that. Ignores a full disk, which the next put reports.
        """
        file = self._file
        if file is not None:
            position = self.end - file.begin
            touched, self._touched = self._touched, 0
            # At 100 MB/s and a call every 100 ms, 10 MB were touched, and the window is 40.
            window = min(max(_WARM_WINDOW, 4 * touched), _MAX_WARM_WINDOW)
            if touched:
                file.warm(position, position + window, pause)
            with suppress(OSError):
                file.sync_name()  # creating the next file requires it
                if position > file.size - file.size // 4:
                    self._following(file).warm(0, window, pause)

    def close_idle(self) -> None:
        """Close the descriptors that `record` opened."""
        for file in self.files:
            if file.end <= self.end:
                file.seal()

    def close(self) -> None:
        self.files.close()


def _read(source: mmap.mmap | int, begin: int, end: int) -> bytes:
    return os.pread(source, end - begin, begin) if isinstance(source, int) else source[begin:end]
