"""What of a damaged log can be kept: every sound record, wherever it lies, and the holes between them.

A log is read as `scan` reads it until something is no sound record. Then the bytes behind it are searched for the
magic number of a record, and the first place where a whole record stands that says it lies there, whose sizes add
up and whose body has its CRC, is where reading goes on. What lies between is a hole.

Three fields of a record say what is known without it: its size, its magic number and its physical offset. A hole that
becomes one sound record by putting right one of the three is no hole: the record is mended. So is one whose store time
cannot be.

Behind the end of a log there may be records that a recovery cut off long ago, as Apache's broker leaves them on disk.
Therefore, in the last file that holds anything, records behind a hole that are older than those before it are
passed over. (The smaller store time of the last two before the hole counts, as one of them could be damaged itself.)

Queues are not looked at here; that is what `places` does with the outcome.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from rucola.errors import InvalidMessage, StoreError
from rucola.message import MessageExt, sysflag
from rucola.message.record import BLANK_MAGIC, FRAME, HEAD_SIZE, MESSAGE_MAGIC, MIN_RECORD_SIZE, Buffer, decode
from rucola.store.commit_log import BLANK_SIZE
from rucola.store.dispatch import check_queue_name
from rucola.store.mapped_file import MappedFile, file_paths
from rucola.store.scan import ScanEnd, scan_file

QueueName = tuple[str, int]
Walked = Callable[[int, int], None]

_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big")
_SMALLEST: Final = MIN_RECORD_SIZE + 1
"""A record whose topic has one letter. No hole is smaller, since there was a record."""
_PHYSICAL_OFFSET_AT: Final = 28
_STORE_TIMESTAMP_AT: Final = 56
LATEST_MS: Final = 253_402_214_400_000
"""The last day of the year 9999; whatever claims to be stored later is damaged."""
_NOTHING: Final = "zeros"


class Hole(NamedTuple):
    """Bytes from physical offset `begin` to `end`, in one file, that are no sound record, and why.

    `timestamp` is the store time of the last record before, 0 where there is none.
    """

    begin: int
    end: int
    why: str
    timestamp: int


@dataclass(slots=True)
class Sequence:
    """The records of one queue in the order of the log: physical offset, queue offset and size of each."""

    physical_offsets: array[int] = field(default_factory=lambda: array("q"))
    queue_offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("i"))


@dataclass(slots=True)
class SalvagedLog:
    """The outcome: physical offsets of the log's begin and end, holes between, queues, and how records are mended.

    `file_size` is that of every file. `mended` has the fields to be written over, {physical offset: (bytes, what)},
    and `without_place` are the records that take no place in a queue: {physical offset: (the queue that they name,
    queue offset, size)}. `passed_over` are records that were cut off before.
    """

    begin: int
    end: int
    file_size: int
    messages: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    store_host: bytes = b""
    holes: list[Hole] = field(default_factory=list)
    queues: dict[QueueName, Sequence] = field(default_factory=dict)
    mended: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    without_place: dict[int, tuple[QueueName, int, int]] = field(default_factory=dict)
    passed_over: list[int] = field(default_factory=list)
    tail: Hole | None = None
    """What was not zeros behind the end of the log."""


def salvage(directory: Path, file_size: int = 0, progress: Walked | None = None) -> SalvagedLog:
    """Read the log in `directory` from front to back. Memory: about 24 bytes a message.

    With `file_size` 0 it is the distance of two file names, or the size of the only file. Raises StoreError where
    there is no log.
    """
    paths = {int(path.name): path for path in file_paths(directory)}
    if not paths:
        raise StoreError(f"{directory} has no CommitLog files; there is nothing to repair")
    begins = sorted(paths)
    if not file_size:
        sizes = [paths[begin].stat().st_size for begin in begins]
        steps = [after - before for before, after in pairwise(begins)]
        file_size = min(steps, default=max(sizes))
    if file_size < BLANK_SIZE or any((begin - begins[0]) % file_size for begin in begins):
        raise StoreError(
            f"the names in {directory} do not fit files of {file_size} bytes; say with a broker.conf what "
            "mappedFileSizeCommitLog is, or put aside the file whose name is wrong"
        )
    return _Walk(paths, SalvagedLog(begins[0], begins[0], file_size), progress).run()


class _Walk:
    def __init__(self, paths: dict[int, Path], found: SalvagedLog, progress: Walked | None) -> None:
        self._paths = paths
        self._found = found
        self._progress = progress
        self._times = [0, 0]
        self._last_begin = 0

    def run(self) -> SalvagedLog:
        found = self._found
        self._last_begin = self._last_used()
        last_name = max(self._paths)
        holes: list[Hole] = []
        for begin in range(found.begin, self._last_begin + 1, found.file_size):
            holes += self._file(begin)
            if self._progress is not None:
                self._progress(begin + found.file_size - found.begin, last_name + found.file_size - found.begin)
        found.holes = [hole for hole in holes if hole.begin < found.end]
        behind = [hole for hole in holes if hole.begin >= found.end and hole.why != _NOTHING]
        if behind:
            found.tail = Hole(behind[0].begin, behind[-1].end, behind[0].why, 0)
        return found

    def _last_used(self) -> int:
        """Return where the last file begins that is not all zeros."""
        for begin in sorted(self._paths, reverse=True):
            file = MappedFile.open(self._paths[begin])
            try:
                if not file.is_zero_from(0):
                    return begin
            finally:
                file.close()
        return self._found.begin

    def _file(self, begin: int) -> Iterator[Hole]:
        file_end = begin + self._found.file_size
        path = self._paths.get(begin)
        if path is None:
            yield Hole(begin, file_end, "the file is missing", self._times[1])
            return
        file = MappedFile.open(path, begin=begin)
        try:
            yield from self._walk(file, min(file.size, self._found.file_size), file_end)
        finally:
            file.close()

    def _walk(self, file: MappedFile, size: int, file_end: int) -> Iterator[Hole]:
        position = 0
        while position < size:
            stop = self._take_in(file, position)
            at = stop.physical_offset - file.begin
            if at >= size:
                if stop.damage is None and size == self._found.file_size:
                    self._found.end = file_end
                    return
                break
            if stop.damage is None and file.is_zero_from(at):
                yield Hole(file.begin + at, file_end, _NOTHING, self._times[1])
                return
            why = stop.damage or "zeros, behind which there is something"
            following = self._next_sound(file, at)
            mended = self._mend(file, at, following if following is not None else size)
            if mended:
                position = at + mended
                continue
            if following is None:
                yield Hole(file.begin + at, file_end, why, self._times[1])
                return
            yield Hole(file.begin + at, file.begin + following, why, self._times[1])
            position = following
        if size < self._found.file_size:
            why = f"the file ends after {size} of {self._found.file_size} bytes"
            yield Hole(file.begin + size, file_end, why, self._times[1])

    def _take_in(self, file: MappedFile, position: int) -> ScanEnd:
        """Enter the records from `position` on, and return where and why they end."""
        for item in scan_file(file, position):
            if isinstance(item, ScanEnd):
                return item
            for at in item.positions.tolist():
                try:
                    message = _sound(file, at)
                    if 0 < self._found.file_size - at - message.store_size < BLANK_SIZE:
                        raise InvalidMessage("the record leaves no room for the blank that ends a file")
                except InvalidMessage as error:
                    return ScanEnd(file.begin + at, str(error))
                self._enter(message)
        raise AssertionError("a scan ends with a ScanEnd")

    def _enter(self, message: MessageExt) -> None:
        found = self._found
        found.end = message.physical_offset + message.store_size
        found.messages += 1
        found.first_timestamp = found.first_timestamp or message.store_timestamp
        found.last_timestamp = message.store_timestamp
        found.store_host = message.store_host_bytes
        self._times = [self._times[1], message.store_timestamp]
        if not sysflag.is_dispatched(message.sys_flag):
            name = message.topic, message.queue_id
            found.without_place[message.physical_offset] = (name, message.queue_offset, message.store_size)
            return
        queue = found.queues.setdefault((message.topic, message.queue_id), Sequence())
        queue.physical_offsets.append(message.physical_offset)
        queue.queue_offsets.append(message.queue_offset)
        queue.sizes.append(message.store_size)

    def _next_sound(self, file: MappedFile, position: int) -> int | None:
        """Return where the next sound record begins behind the broken one at `position`, or None for nowhere."""
        floor = min(self._times) if file.begin == self._last_begin else 0
        at = file.map.find(_MAGIC, position + _SMALLEST + 4)
        while at >= 0:
            try:
                message = _sound(file, at - 4)
            except InvalidMessage:
                pass
            else:
                if message.store_timestamp >= floor:
                    return at - 4
                self._found.passed_over.append(message.physical_offset)
            at = file.map.find(_MAGIC, at + 1)
        return None

    def _mend(self, file: MappedFile, position: int, following: int) -> int:
        """Return the size of the record at `position` after putting right one of three fields, or 0."""
        if following - position < _SMALLEST:
            return 0
        claimed, magic = FRAME.unpack_from(file.map, position)
        at = file.begin + position
        address = at.to_bytes(8, "big")
        own = file.map[position + _PHYSICAL_OFFSET_AT : position + _PHYSICAL_OFFSET_AT + 8]
        trials: list[tuple[int, int, bytes, str]] = []
        timestamp = int.from_bytes(file.map[position + _STORE_TIMESTAMP_AT : position + _STORE_TIMESTAMP_AT + 8], "big")
        if timestamp > LATEST_MS and self._times[1]:
            value = self._times[1].to_bytes(8, "big")
            why = "its store time lay beyond the year 9999; it has that of the record before"
            trials.append((claimed, _STORE_TIMESTAMP_AT, value, why))
        if magic != MESSAGE_MAGIC and magic != BLANK_MAGIC:
            trials.append((claimed, 4, _MAGIC, f"its magic number was {magic:#010x}"))
        if own != address:
            why = f"it said that it lies at {int.from_bytes(own, 'big', signed=True)}"
            trials.append((claimed, _PHYSICAL_OFFSET_AT, address, why))
        for size in {following - position, self._size_inside(file, position)} - {claimed}:
            if 0 < size <= following - position:
                trials.append((size, 0, size.to_bytes(4, "big"), f"it claimed to have {claimed} bytes"))
        for size, field_at, value, why in trials:
            if not _SMALLEST <= size <= following - position or not self._goes_on(file, position + size, following):
                continue
            data = bytearray(file.map[position : position + size])
            data[field_at : field_at + len(value)] = value
            try:
                message = sound_record(bytes(data), 0, at)
            except InvalidMessage:
                continue
            self._enter(message)
            self._found.mended[at + field_at] = (value, why)
            return size
        return 0

    def _goes_on(self, file: MappedFile, position: int, following: int) -> bool:
        """Tell whether a record can have ended at `position`: with another, a blank or nothing behind it."""
        if position in (following, file.size):
            return True
        magic = FRAME.unpack_from(file.map, position)[1] if position + FRAME.size <= file.size else -1
        return magic in (MESSAGE_MAGIC, BLANK_MAGIC) or file.is_zero_from(position)

    def _size_inside(self, file: MappedFile, position: int) -> int:
        """Return the size of a record with IPv4 hosts as the sizes of its parts give it."""
        mapped = file.map
        try:
            topic_at = position + HEAD_SIZE + int.from_bytes(mapped[position + 84 : position + HEAD_SIZE], "big")
            properties_at = topic_at + 1 + int(mapped[topic_at])
        except IndexError:
            return 0
        properties_size = int.from_bytes(mapped[properties_at : properties_at + 2], "big")
        return int(properties_at + 2 + properties_size - position)


def _sound(file: MappedFile, position: int) -> MessageExt:
    return sound_record(file.map, position, file.begin + position)


def sound_record(buffer: Buffer, position: int, physical_offset: int) -> MessageExt:
    """Return the record at `position`, which has to be sound in every respect. Raises InvalidMessage."""
    message = decode(buffer, position)
    if message.physical_offset != physical_offset:
        raise InvalidMessage(f"the record says that it lies at {message.physical_offset}")
    check_queue_name(message.topic, message.queue_id)
    if not 0 <= message.store_timestamp < LATEST_MS:
        raise InvalidMessage(f"storeTimestamp is {message.store_timestamp}")
    if message.queue_offset < 0:
        raise InvalidMessage(f"queueOffset is {message.queue_offset}")
    return message
