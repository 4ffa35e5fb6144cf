"""Reading a CommitLog from front to back, believing nothing.

Records follow each other without gap, so the only way through a log is from size to size. A file ends with a blank
that says how much of it is unused (its first 8 bytes count, the rest may be anything), and the log goes on in the
next file. Zeros stand where nothing was written yet.

A record is sound when its magic and its sizes agree (see `rucola.message.record`), its physicalOffset is the address
at which it lies, and its body has its CRC. The CRC says nothing about the other fields; that queueOffset counts
without gap in every queue is for the caller to compare (see `recovery` and `check`).

The walk from size to size is Python, all else is done for a megabyte of records at once: their fixed fields are
gathered into one numpy array and compared as columns. Whoever needs columns finds them in `RecordRun`.

Answers to org.apache.rocketmq.store.CommitLog.checkMessageAndReturnSize. Apache allocates as many bytes as a record
claims before it looks at them, and dies of a size of 0x7fffffff; here a size is first held against the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from rucola.errors import InvalidMessage
from rucola.message import sysflag
from rucola.message.properties import MAX_PROPERTIES_SIZE
from rucola.message.record import BLANK_MAGIC, FRAME, HEAD, HEAD_SIZE, MESSAGE_MAGIC, MIN_RECORD_SIZE, peek
from rucola.message.topics import MAX_TOPIC_LENGTH
from rucola.store.mapped_file import MappedFile, MappedFileQueue

_RUN_SIZE: Final = 1 << 20


@dataclass(slots=True)
class RecordRun:
    """Sound records that follow each other in one file.

    `positions` are those of the records in `file`, shape (n,). `heads` are their fixed fields (`record.HEAD`), shape
    (n,), a copy; for records with IPv6 hosts only the fields up to born_timestamp are what they are called, which
    `store_timestamps` makes up for.
    """

    file: MappedFile
    positions: npt.NDArray[np.int64]
    heads: npt.NDArray[Any]
    store_timestamps: npt.NDArray[np.int64]

    @property
    def end(self) -> int:
        """The physical offset behind the last record."""
        return int(self.file.begin + self.positions[-1] + self.heads["size"][-1])


@dataclass(slots=True)
class ScanEnd:
    """Where a scan ended: the logical end of the log, or the first thing that is no sound record.

    `damage` says what is wrong there; it is None where the log simply ends, in zeros or behind its last file.
    """

    physical_offset: int
    damage: str | None


def scan(log: MappedFileQueue, begin: int, *, check_crc: bool = True) -> Iterator[RecordRun | ScanEnd]:
    """Yield the sound records from physical offset `begin`, where one must begin, and at last one ScanEnd.

    An offset at which no file lies is the end of the log.
    """
    offset = begin
    while (file := log.find(offset)) is not None:
        stop = None
        for item in scan_file(file, offset - file.begin, check_crc=check_crc):
            if isinstance(item, RecordRun):
                yield item
            else:
                stop = item
        assert stop is not None
        if stop.damage is not None or stop.physical_offset < file.begin + log.file_size:
            yield stop
            return
        offset = file.end
    yield ScanEnd(offset, None)


def scan_file(file: MappedFile, position: int, *, check_crc: bool = True) -> Iterator[RecordRun | ScanEnd]:
    """Yield the sound records of one file from `position` on, and at last one ScanEnd.

    The ScanEnd is the file's end where a blank takes the rest of it.
    """
    mapped, size = file.map, file.size
    unpack = FRAME.unpack_from
    while True:
        data = mapped[position : min(position + _RUN_SIZE, size)]
        begins, end, limit = [], 0, len(data) - MIN_RECORD_SIZE
        while end <= limit:
            record_size, magic = unpack(data, end)
            if magic != MESSAGE_MAGIC or record_size < MIN_RECORD_SIZE:
                break
            begins.append(end)
            end += record_size
        if end > len(data):  # the last goes on behind what is there of it, and begins the next run
            end = begins.pop()
            # So many bytes for one record are not copied before it looks like one.
            if not begins and record_size <= size - position and _what_is_wrong(file, position) is None:
                data = mapped[position : position + record_size]
                begins, end = [0], record_size
        if not begins:
            yield _stop(file, position)
            return
        run, damage = _sound(file, position, begins, data, check_crc)
        if len(run.positions):
            yield run
        if damage is not None:
            yield ScanEnd(file.begin + position + begins[len(run.positions)], damage)
            return
        position += end


def _stop(file: MappedFile, position: int) -> ScanEnd:
    """Say why there is no record at `position`."""
    left = file.size - position
    at = file.begin + position
    if left < FRAME.size:
        damage = "the file ends without a blank" if any(file.map[position : file.size]) else None
        return ScanEnd(at, damage if left else None)
    size, magic = FRAME.unpack_from(file.map, position)
    if magic == BLANK_MAGIC:
        if size != left:
            return ScanEnd(at, f"a blank claims {size} bytes where {left} are left in the file")
        return ScanEnd(file.end, None)
    if magic == 0 and size == 0:
        return ScanEnd(at, None)
    if magic != MESSAGE_MAGIC:
        return ScanEnd(at, f"magic is {magic:#010x}, neither record nor blank")
    return ScanEnd(at, _what_is_wrong(file, position) or f"size is {size} where {left} bytes are left in the file")


def _sound(
    file: MappedFile, first: int, begins: list[int], copy: bytes, check_crc: bool
) -> tuple[RecordRun, str | None]:
    """Return the run of sound records that these begin with, and what is wrong with the first that is not.

    `copy` has the bytes of the file from position `first` on, and the records begin in it at `begins`.
    """
    view = memoryview(copy)
    data = np.frombuffer(view, np.uint8)
    relative = np.array(begins, np.int64)
    at = relative + first
    # Every byte of the data begins a head here, and those are taken that begin a record.
    heads = np.ndarray((len(data) - HEAD_SIZE + 1,), HEAD, view, strides=(1,))[relative]
    sizes = heads["size"].astype(np.int64)
    body_sizes = heads["body_size"].astype(np.int64)
    store_timestamps = heads["store_timestamp"].astype(np.int64)
    crcs = heads["body_crc"]
    v6 = (heads["sys_flag"] & sysflag.HOSTS_V6) != 0
    # A topic and properties of one byte each must at least be found where the body ends.
    topic_at = relative + HEAD_SIZE + body_sizes
    sound = (body_sizes >= 0) & (topic_at + 3 <= relative + sizes) & ~v6
    safe_topic = np.where(sound, topic_at, 0)
    topic_sizes = data[safe_topic].astype(np.int64)
    properties_at = safe_topic + 1 + topic_sizes
    sound &= (topic_sizes <= MAX_TOPIC_LENGTH) & (properties_at + 2 <= relative + sizes)
    safe_properties = np.where(sound, properties_at, 0)
    properties_sizes = (data[safe_properties].astype(np.int64) << 8) | data[
        np.minimum(safe_properties + 1, len(data) - 1)
    ]
    sound &= (properties_sizes <= MAX_PROPERTIES_SIZE) & (properties_at + 2 + properties_sizes == relative + sizes)
    body_begins, body_ends = relative + HEAD_SIZE, topic_at
    for k in np.flatnonzero(v6):
        try:
            outline = peek(copy, begins[k])
        except InvalidMessage:
            continue
        sound[k] = True
        store_timestamps[k] = outline.store_timestamp
        body_begins[k], body_ends[k] = outline.body_begin, outline.body_end
    sound &= heads["physical_offset"] == at + file.begin
    count = len(begins) if sound.all() else int(np.argmin(sound))
    why = None if count == len(begins) else _what_is_wrong(file, first + begins[count])
    if check_crc:
        bodies = map(view.__getitem__, map(slice, body_begins[:count].tolist(), body_ends[:count].tolist()))
        found = np.fromiter(map(crc32, bodies), np.int64, count) & 0x7FFFFFFF
        wrong = np.flatnonzero(found != crcs[:count])
        if wrong.size:
            count = int(wrong[0])
            why = f"the body's CRC is {found[count]}, but the record says {crcs[count]}"
    return RecordRun(file, at[:count], heads[:count], store_timestamps[:count]), why


def _what_is_wrong(file: MappedFile, position: int) -> str | None:
    """Say why there is no record at `position`, as far as that shows without its body; None where it does not."""
    try:
        outline = peek(file.map, position)
    except InvalidMessage as error:
        return str(error)
    if outline.physical_offset != file.begin + position:
        return f"the record says that it lies at {outline.physical_offset}"
    return None
