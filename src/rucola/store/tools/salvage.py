"""Salvage: find every intact record of a damaged log, and the holes between them.

From an invalid record on, the bytes are searched for the magic number of a record; the scan continues at the first
valid one: it states its own physical offset, its sizes are consistent, and its body matches its CRC. The bytes in
between are a hole. For example, with 100-byte records:

    0         100       200            300       400
    valid     valid     CRC differs    valid     valid         hole: 200 to 300

After the end of a log there may be records that a recovery cut off, since Apache's broker leaves them on disk.
Therefore, in the last file that is not empty, records after a hole are skipped if they are older than those before it
(by the smaller store time of the last two, as one of them could be damaged, too).

Queues are not checked here; see `placeholders`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from rucola.errors import InvalidMessage, StoreError
from rucola.message import MessageExt, sysflag
from rucola.message.record import MESSAGE_MAGIC, MIN_RECORD_SIZE, decode
from rucola.store.commit_log import BLANK_SIZE
from rucola.store.consume_queue import check_queue_name
from rucola.store.mapped_file import MappedFile, file_paths
from rucola.store.scan import ScanEnd, scan_file
from rucola.store.tools.progress import ProgressCallback

QueueName = tuple[str, int]

_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big")
ZEROS: Final = "zeros"
"""Begin of the reason of a hole that is not written to."""


class Hole(NamedTuple):
    """A range of one file without an intact record, and why; `timestamp` is the previous record's, or 0."""

    begin: int
    end: int
    why: str
    timestamp: int


@dataclass(slots=True)
class QueueRecords:
    """Columns of the records of one queue, in log order: 20 bytes per record."""

    physical_offsets: array[int] = field(default_factory=lambda: array("q"))
    queue_offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("i"))


@dataclass(slots=True)
class SalvagedLog:
    """The valid records and holes of a log from physical offset `begin` to `end`."""

    begin: int
    end: int
    file_size: int
    messages: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    store_host: bytes = b""
    holes: list[Hole] = field(default_factory=list)
    queues: dict[QueueName, QueueRecords] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)
    """Physical offsets of records that an earlier recovery had cut off."""
    tail: Hole | None = None
    """Bytes after the end of the log that are not zeros."""


def salvage(
    directory: Path, file_size: int = 0, progress: ProgressCallback | None = None, *, skips_older: bool = True
) -> SalvagedLog:
    """Read the log in `directory`, with about 20 bytes of memory per message.

    `file_size` 0 detects it by file names or the only file. Without `skips_older`, no recovery has cut off anything.
    Raises StoreError if there is no log.
    """
    paths = {int(path.name): path for path in file_paths(directory)}
    if not paths:
        raise StoreError(f"{directory} has no CommitLog files; there is nothing to repair", subject=directory)
    begins = sorted(paths)
    if not file_size:
        sizes = [paths[begin].stat().st_size for begin in begins]
        steps = [after - before for before, after in pairwise(begins)]
        file_size = min(steps, default=max(sizes))
    if file_size < BLANK_SIZE or any((begin - begins[0]) % file_size for begin in begins):
        raise StoreError(
            f"the names in {directory} do not fit files of {file_size} bytes; give a broker.conf with "
            "mappedFileSizeCommitLog, or move away the file with the wrong name",
            subject=directory,
        )
    return _Salvager(paths, SalvagedLog(begins[0], begins[0], file_size), progress, skips_older).run()


class _Salvager:
    def __init__(
        self, paths: dict[int, Path], found: SalvagedLog, progress: ProgressCallback | None, skips_older: bool
    ) -> None:
        self._paths = paths
        self._found = found
        self._progress = progress
        self._skips_older = skips_older
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
        tail = [hole for hole in holes if hole.begin >= found.end and hole.why != ZEROS]
        if tail:
            found.tail = Hole(tail[0].begin, tail[-1].end, tail[0].why, 0)
        return found

    def _last_used(self) -> int:
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
        position: int | None = 0
        while position is not None and position < size:
            stop = self._add_run(file, position)
            at = stop.physical_offset - file.begin
            if at >= size:
                if stop.damage is None and size == self._found.file_size:
                    self._found.end = file_end
                    return
                break
            if stop.damage is None and file.is_zero_from(at):
                yield Hole(file.begin + at, file_end, ZEROS, self._times[1])
                return
            why = stop.damage or f"{ZEROS}, followed by other bytes"
            position = self._next_valid(file, at)
            hole_end = file_end if position is None else file.begin + position
            yield Hole(file.begin + at, hole_end, why, self._times[1])
        if position is not None and size < self._found.file_size:
            why = f"the file ends after {size} of {self._found.file_size} bytes"
            yield Hole(file.begin + size, file_end, why, self._times[1])

    def _add_run(self, file: MappedFile, position: int) -> ScanEnd:
        for item in scan_file(file, position):
            if isinstance(item, ScanEnd):
                return item
            for at in item.positions.tolist():
                try:
                    self._add(_intact_record(file, at, self._found.file_size, check_crc=False))
                except InvalidMessage as error:
                    return ScanEnd(file.begin + at, str(error))
        raise AssertionError("a scan ends with a ScanEnd")

    def _add(self, message: MessageExt) -> None:
        found = self._found
        found.end = message.physical_offset + message.store_size
        found.messages += 1
        found.first_timestamp = found.first_timestamp or message.store_timestamp
        found.last_timestamp = message.store_timestamp
        found.store_host = message.store_host_bytes
        self._times = [self._times[1], message.store_timestamp]
        if sysflag.is_dispatched(message.sys_flag):
            queue = found.queues.setdefault((message.topic, message.queue_id), QueueRecords())
            queue.physical_offsets.append(message.physical_offset)
            queue.queue_offsets.append(message.queue_offset)
            queue.sizes.append(message.store_size)

    def _next_valid(self, file: MappedFile, position: int) -> int | None:
        # In the last file, an older record than those before is from a tail that an earlier recovery had cut off.
        floor = min(self._times) if self._skips_older and file.begin == self._last_begin else -(1 << 63)
        # No hole is smaller than the smallest record with a topic, since it held one.
        at = file.map.find(_MAGIC, position + MIN_RECORD_SIZE + 1 + 4)
        while at >= 0:
            try:
                message = _intact_record(file, at - 4, self._found.file_size)
            except InvalidMessage:
                pass
            else:
                if message.store_timestamp >= floor:
                    return at - 4
                self._found.skipped.append(message.physical_offset)
            at = file.map.find(_MAGIC, at + 1)
        return None


def _intact_record(file: MappedFile, position: int, file_size: int, *, check_crc: bool = True) -> MessageExt:
    """Return the record at `position`, its body as stored. Raises InvalidMessage for unstorable ones."""
    message = decode(file.map, position, decompress=False, check_crc=check_crc)
    if message.physical_offset != file.begin + position:
        raise InvalidMessage(f"the record states physical offset {message.physical_offset}")
    check_queue_name(message.topic, message.queue_id)
    if message.queue_offset < 0 or (message.queue_offset and not sysflag.is_dispatched(message.sys_flag)):
        raise InvalidMessage(f"queueOffset is {message.queue_offset}")
    if 0 < file_size - position - message.store_size < BLANK_SIZE:
        raise InvalidMessage("the record leaves no room for the blank that ends a file")
    return message
