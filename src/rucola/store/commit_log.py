"""The CommitLog: every record of a broker, one behind the other, in order of arrival.

    commitlog/<20 digits>       1 GiB each by default; a file name is the physical offset of its first byte

The log runs from the first byte of its first file to `end`, where the next record goes. A record never spans two
files: where it and the 8 bytes of a blank do not fit, a blank takes what is left,

    position  bytes  field
           0      4  size, of the rest of the file
           4      4  0xCBD43194
           8         anything

and the record opens the next file. The layout of a record is told in `rucola.message.record`; that it lies at the
address which it names is checked at every read.

Answers to org.apache.rocketmq.store.CommitLog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from rucola.errors import InvalidMessage
from rucola.message import sysflag
from rucola.message.properties import parse
from rucola.message.record import BLANK_MAGIC, FRAME, HEAD_SIZE, peek
from rucola.store.mapped_file import MappedFile, MappedFileQueue

BLANK_SIZE: Final = FRAME.size
_RESERVE_WINDOW: Final = 8 << 20
_WARM_WINDOW: Final = 4 << 20
_MAX_WARM_WINDOW: Final = 64 << 20
_WRITE_FROM: Final = 4096
"""What has at least so many bytes is written by a call, which costs less than to touch its pages."""


class CommitLog:
    """The log for writing and reading. One thread writes; `flush` and `warm` may run in another."""

    __slots__ = ("_changing", "_cuts", "_file", "_touched", "end", "files", "flushed_end", "safe_end")

    def __init__(self, files: MappedFileQueue, end: int) -> None:
        self.files = files
        self.end = end
        """The physical offset at which the next record will lie, unless it opens a new file."""
        self.flushed_end = end
        """Everything before this physical offset is on disk."""
        self._file: MappedFile | None = files.find(end)
        self._changing = threading.Lock()
        self._cuts = 0
        self._touched = 1
        """How many bytes were put into mapped pages since the last call of `warm`; the first may be about to come."""
        self.safe_end = 0
        """Up to this physical offset records can be appended without `ensure_room`."""

    @property
    def begin(self) -> int:
        """The physical offset of the first record that is still there."""
        return self.files.begin

    def ensure_room(self, size: int) -> int:
        """Return the physical offset for a record of `size` bytes, after seeing to it that there is a place.

        Closes a file that is too full with a blank and opens the next. Raises OSError where the disk has no room;
        then the log is as it was, except that a blank may have closed its file.
        """
        file = self._file
        if self.end + size > self.safe_end:
            if file is not None and self.end + size + BLANK_SIZE > file.end:
                # The next file first: a blank without one behind it would be an end that no put could get over.
                following = self._following(file)
                file.reserve(self.end - file.begin + BLANK_SIZE, BLANK_SIZE)
                FRAME.pack_into(file.map, self.end - file.begin, file.end - self.end, BLANK_MAGIC)
                self.end = file.end
                file.seal()
                file = self._file = following
            elif file is None:
                file = self._file = self.files.create_next(self.end, reads_ahead=False)
                # Queues without a log look like a disk that is missing, so the log has its name before they have units.
                file.sync_name()
            file.reserve(self.end - file.begin + size + BLANK_SIZE, _RESERVE_WINDOW)
            self.safe_end = self.end + size
            reserved_end = file.begin + file.reserved
            if reserved_end - BLANK_SIZE > self.safe_end:
                self.safe_end = reserved_end - BLANK_SIZE
        return self.end

    def append(self, data: bytes | memoryview) -> None:
        """Write what there is room for behind `end` in its file, as `ensure_room` sees to."""
        file = self._file
        assert file is not None
        position = self.end - file.begin
        size = len(data)
        if size < _WRITE_FROM:
            file.map[position : position + size] = data
            self._touched += size
        else:
            file.write(position, data)
        self.end += size

    def copy(self, data: memoryview) -> None:
        """Append bytes of another log that lie there where this one ends; they need be no whole records.

        Raises OSError where the disk has no room, with what fitted appended.
        """
        taken = 0
        while taken < len(data):
            file = self._file
            if file is None:
                file = self._file = self.files.find(self.end) or self.files.create_next(self.end, reads_ahead=False)
                file.sync_name()  # as in `ensure_room`
            elif self.end == file.end:
                file.seal()
                file = self._file = self._following(file)
            position = self.end - file.begin
            size = min(len(data) - taken, file.size - position)
            file.reserve(position + size, _RESERVE_WINDOW)
            self.append(data[taken : taken + size])
            taken += size

    def start_at(self, physical_offset: int) -> None:
        """Let a log without a byte begin there, where a file begins. Raises OSError."""
        self.truncate(-1)
        self.end = self.flushed_end = physical_offset

    def truncate(self, physical_offset: int) -> None:
        """Take everything back from a physical offset on. On disk when this returns; raises OSError."""
        with self._changing:
            self._cuts += 1
            self.files.truncate(physical_offset)
            self._file = self.files.find(physical_offset)
            self.end = physical_offset
            self.flushed_end = min(self.flushed_end, physical_offset)
            self.safe_end = 0

    def hold_bytes(self, physical_offset: int, max_size: int) -> tuple[MappedFile, memoryview] | None:
        """Return up to `max_size` bytes from there on, in place, and their file, which is held: release both.

        They end with the file. None where the log has none.
        """
        file = self.files.find(physical_offset)
        if file is None or physical_offset >= self.end or not file.hold():
            return None
        position = physical_offset - file.begin
        end = min(position + max_size, self.end - file.begin, file.size)
        return file, memoryview(file.map)[position:end]

    def _following(self, file: MappedFile) -> MappedFile:
        """Return the file behind `file`, making it where it is not there. For any thread."""
        with self._changing:
            return self.files.find(file.end) or self.files.create_next(reads_ahead=False)

    def read(self, physical_offset: int, size: int) -> bytes | None:
        """Return `size` bytes of the log, or None where they do not all lie in one file before `end`."""
        file = self.files.find(physical_offset)
        if file is None or size < 0 or physical_offset + size > min(self.end, file.end):
            return None
        position = physical_offset - file.begin
        return file.map[position : position + size]

    def record(self, physical_offset: int) -> bytes | None:
        """Return the whole record that begins there, or None where none does."""
        frame = self.read(physical_offset, HEAD_SIZE)
        if frame is None:
            return None
        data = self.read(physical_offset, FRAME.unpack_from(frame)[0])
        try:
            if data is not None and peek(data).physical_offset == physical_offset:
                return data
        except InvalidMessage:
            pass
        return None

    def matches(self, physical_offset: int, matches: Callable[[Mapping[str, str]], bool]) -> bool:
        """Tell whether the properties of the record that begins there match, without reading its body.

        Where no record begins there, that is for whoever reads it to find out.
        """
        file = self.files.find(physical_offset)
        if file is None or physical_offset >= self.end:
            return True
        try:
            outline = peek(file.map, physical_offset - file.begin)
        except InvalidMessage:
            return True
        return matches(parse(file.map[outline.properties_begin : outline.properties_end]))

    def store_timestamp(self, physical_offset: int) -> int:
        """Return the store time of the record that begins there, or -1 where the log has none."""
        head = self.read(physical_offset, HEAD_SIZE)
        if head is None:
            return -1
        position = 56 + 12 * bool(int.from_bytes(head[36:40], "big") & sysflag.BORN_HOST_V6)
        return int.from_bytes(head[position : position + 8], "big", signed=True)

    def next_file_begin(self, physical_offset: int) -> int:
        """Return where the file after that of `physical_offset` begins."""
        return physical_offset + self.files.file_size - physical_offset % self.files.file_size

    def flush(self) -> None:
        """Wait until everything that was appended before this call is on disk. Raises OSError.

        For any thread; appends may go on meanwhile.
        """
        end, begin, cuts = self.end, self.flushed_end, self._cuts
        for file in list(self.files.files):
            if file.begin < end and begin < file.end:
                file.flush(max(begin - file.begin, 0), min(end - file.begin, file.size))
        with self._changing:
            if cuts == self._cuts:  # else what lies there now need not be what was flushed
                self.flushed_end = max(self.flushed_end, end)

    def warm(self) -> None:
        """Touch the pages that the next records will take: some megabytes, or four times what came since the last call,
        and none where all was written by calls. For a thread beside the writer's.

        In the last quarter of a file the next one is made, and its beginning touched, so that no put waits for that.
        A disk that has no room for it is the writer's to meet.
        """
        file = self._file
        if file is not None:
            position = self.end - file.begin
            touched, self._touched = self._touched, 0
            window = min(max(_WARM_WINDOW, 4 * touched), _MAX_WARM_WINDOW)
            if touched:
                file.warm(position, position + window)
            with suppress(OSError):
                file.sync_name()  # without which no file may follow
                if position > file.size - file.size // 4:
                    self._following(file).warm(0, window)

    def close(self) -> None:
        """Close all files."""
        self.files.close()
