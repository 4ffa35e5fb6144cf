"""Scan: read a CommitLog from front to back without trusting any byte.

Records follow each other without gaps, so the size of each leads to the next. A file ends with a blank, whose first
8 bytes say how much of the file is unused; then the log continues in the next file. Unwritten bytes are zeros.

A record is valid if its magic and its sizes are consistent (see `rucola.message.record`), its physicalOffset is its
position in the log, and its body matches its CRC. The CRC does not cover the other fields; callers check that the
queueOffsets of each queue are consecutive (`recovery`, `tools.check`).

A megabyte of records is checked at once: by the accelerator or, without it and near damage, by numpy after a walk from
size to size in Python.

Corresponds to `CommitLog.checkMessageAndReturnSize` of Apache RocketMQ 4.9.8. Deliberate difference: Apache allocates
as many bytes as a record claims before it checks them; here the size is first compared with the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rucola import speed
from rucola.errors import InvalidMessage
from rucola.message import sysflag
from rucola.message.properties import MAX_PROPERTIES_SIZE
from rucola.message.record import (
    BLANK_MAGIC,
    FRAME,
    HEAD,
    HEAD_SIZE,
    MESSAGE_MAGIC,
    MIN_RECORD_SIZE,
    body_crcs,
    peek,
)
from rucola.message.topics import MAX_TOPIC_LENGTH
from rucola.store.mapped_file import MappedFile, MappedFileQueue

_RUN_SIZE: Final = 1 << 20
"""Bytes of a run: enough for numpy to pay off, few enough to stay in the processor's cache."""


@dataclass(slots=True)
class RecordRun:
    """Consecutive valid records of one file: positions and fixed fields (`record.HEAD`), shape (n,).

    In heads with IPv6 hosts, fields after born_timestamp are shifted; `store_timestamps` is always right.
    """

    file: MappedFile
    positions: npt.NDArray[np.int64]
    heads: npt.NDArray[Any]
    store_timestamps: npt.NDArray[np.int64]

    @property
    def end(self) -> int:
        return int(self.file.begin + self.positions[-1] + self.heads["size"][-1])


@dataclass(slots=True)
class ScanEnd:
    """The physical offset where a scan ended: the log's end, or an invalid record with its `damage`."""

    physical_offset: int
    damage: str | None


def scan(log: MappedFileQueue, begin: int, *, check_crc: bool = True) -> Iterator[RecordRun | ScanEnd]:
    """Yield the valid records from physical offset `begin`, a record's start, and finally one ScanEnd."""
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
    """Yield the valid records from `position` on, and a ScanEnd: the end of the file if it has a blank."""
    mapped, size = file.map, file.size
    unpack = FRAME.unpack_from
    while True:
        data = mapped[position : min(position + _RUN_SIZE, size)]
        if speed.scan_records is not None and (found := speed.scan_records(data, file.begin + position, check_crc)):
            positions, heads, timestamps, end = found
            at = np.frombuffer(positions, np.int64) + position
            yield RecordRun(file, at, np.frombuffer(heads, HEAD), np.frombuffer(timestamps, np.int64))
            position += end
            continue
        # Walk from size to size through a copy of the next megabyte, and collect the starts of records.
        begins, end, limit = [], 0, len(data) - MIN_RECORD_SIZE
        while end <= limit:
            record_size, magic = unpack(data, end)
            if magic != MESSAGE_MAGIC or record_size < MIN_RECORD_SIZE:
                break
            begins.append(end)
            end += record_size
        # A record that exceeds the copy starts the next run. If it is the only one, copy all of it, but not before its
        # head is checked: a damaged size must not allocate a gigabyte.
        if end > len(data):
            end = begins.pop()
            if not begins and record_size <= size - position and _damage_without_crc(file, position) is None:
                data = mapped[position : position + record_size]
                begins, end = [0], record_size
        if not begins:
            yield _scan_end(file, position)
            return
        # Check all of them at once. The first invalid one ends the scan.
        run, damage = _valid_run(file, position, begins, data, check_crc)
        if len(run.positions):
            yield run
        if damage is not None:
            yield ScanEnd(file.begin + position + begins[len(run.positions)], damage)
            return
        position += end


def _scan_end(file: MappedFile, position: int) -> ScanEnd:
    left = file.size - position
    at = file.begin + position
    if left < FRAME.size:
        damage = "the file ends without a blank" if any(file.map[position : file.size]) else None
        return ScanEnd(at, damage if left else None)
    size, magic = FRAME.unpack_from(file.map, position)
    if magic == BLANK_MAGIC:
        if size != left:
            return ScanEnd(at, f"a blank claims {size} bytes, but the file has {left} left")
        return ScanEnd(file.end, None)
    if magic == 0 and size == 0:
        return ScanEnd(at, None)
    if magic != MESSAGE_MAGIC:
        return ScanEnd(at, f"magic is {magic:#010x}, neither record nor blank")
    return ScanEnd(at, _damage_without_crc(file, position) or f"size is {size}, but the file has {left} bytes left")


def _valid_run(
    file: MappedFile, first: int, begins: list[int], copy: bytes, check_crc: bool
) -> tuple[RecordRun, str | None]:
    """Return the valid records before the first invalid one, and its damage; `copy` starts at position `first`."""
    view = memoryview(copy)
    data = np.frombuffer(view, np.uint8)
    relative = np.array(begins, np.int64)
    at = relative + first
    # Gather the fixed fields: an array of overlapping heads, one from each byte, indexed by the records' starts.
    heads = np.ndarray((len(data) - HEAD_SIZE + 1,), HEAD, view, strides=(1,))[relative]
    sizes = heads["size"].astype(np.int64)
    body_sizes = heads["body_size"].astype(np.int64)
    store_timestamps = heads["store_timestamp"].astype(np.int64)
    crcs = heads["body_crc"]
    v6 = (heads["sys_flag"] & sysflag.HOSTS_V6) != 0
    # Where a size is wrong, its successors are read at position 0 of the copy (np.where), so that no index leaves the
    # array; `valid` is False there already.
    topic_at = relative + HEAD_SIZE + body_sizes
    valid = (body_sizes >= 0) & (topic_at + 3 <= relative + sizes) & ~v6
    safe_topic = np.where(valid, topic_at, 0)
    topic_sizes = data[safe_topic].astype(np.int64)
    properties_at = safe_topic + 1 + topic_sizes
    valid &= (topic_sizes <= MAX_TOPIC_LENGTH) & (properties_at + 2 <= relative + sizes)
    safe_properties = np.where(valid, properties_at, 0)
    properties_sizes = (data[safe_properties].astype(np.int64) << 8) | data[
        np.minimum(safe_properties + 1, len(data) - 1)
    ]
    valid &= (properties_sizes <= MAX_PROPERTIES_SIZE) & (properties_at + 2 + properties_sizes == relative + sizes)
    # Records with IPv6 hosts have longer heads; they are rare and checked one by one.
    body_begins, body_ends = relative + HEAD_SIZE, topic_at
    for k in np.flatnonzero(v6):
        try:
            outline = peek(copy, begins[k])
        except InvalidMessage:
            continue
        valid[k] = True
        store_timestamps[k] = outline.store_timestamp
        body_begins[k], body_ends[k] = outline.body_begin, outline.body_end
    valid &= heads["physical_offset"] == at + file.begin
    count = len(begins) if valid.all() else int(np.argmin(valid))
    damage = None if count == len(begins) else _damage_without_crc(file, first + begins[count])
    if check_crc:
        found = body_crcs(view, body_begins[:count], body_ends[:count])
        wrong = np.flatnonzero(found != crcs[:count])
        if wrong.size:
            count = int(wrong[0])
            damage = f"the body's CRC is {found[count]}, but the record states {crcs[count]}"
    return RecordRun(file, at[:count], heads[:count], store_timestamps[:count]), damage


def _damage_without_crc(file: MappedFile, position: int) -> str | None:
    try:
        outline = peek(file.map, position)
    except InvalidMessage as error:
        return str(error)
    if outline.physical_offset != file.begin + position:
        return f"the record states physical offset {outline.physical_offset}"
    return None
