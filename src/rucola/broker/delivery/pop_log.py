"""The log of POP: every record of every queue and group, in one file, from which the states are rebuilt.

A frame of the file, integers big endian:

    length of the JSON   4 bytes
    its CRC-32           4 bytes
    JSON                 [kind, topic, group, queue id, fields of the record ...]

A snapshot replaces the file with one frame for each queue, and later records follow it. A crash leaves a torn tail,
which is cut off: its messages are delivered again, and none is lost.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final, NamedTuple

from rucola.broker.delivery.pop_state import (
    Ack,
    Candidate,
    Change,
    Dead,
    Outstanding,
    Pop,
    PopRecord,
    PopState,
    Reset,
    Snapshot,
)
from rucola.errors import StoreCorrupt
from rucola.files import make_directory, open_inside, read_inside, replacing, sync_directory
from rucola.system_calls import sync_all

logger = logging.getLogger(__name__)

_HEAD: Final = struct.Struct(">II")
_KINDS: Final = {kind.__name__: kind for kind in (Pop, Ack, Change, Dead, Reset, Snapshot)}


class PopQueue(NamedTuple):
    topic: str
    group: str
    queue_id: int


class PopLog:
    """`append` and `snapshot` are for one thread; `write` is for any, beside them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Of the whole frames in the file; the next write cuts off what is behind them. Guarded by `_writing`."""
        self._snapshot: bytes | None = None
        self._pending: list[bytes] = []
        """Frames for the end of the file, or of the snapshot. Both guarded by `_lock`."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def load(self) -> dict[PopQueue, PopState]:
        """Return the states, without a torn tail. Raises OSError, and StoreCorrupt for records that do not fit."""
        try:
            content = read_inside(self.path.parent, self.path)
        except FileNotFoundError:
            return {}
        states: dict[PopQueue, PopState] = {}
        for begin, end, payload in _frames(content):
            try:
                queue, record = _decode(payload)
                states.setdefault(queue, PopState(queue.queue_id)).apply(record)
            except (ValueError, TypeError, KeyError, IndexError) as error:
                why = f"not a record that follows the ones before: {error!r}; without this file, messages come again"
                raise StoreCorrupt(self.path, begin, why) from None
            self.size = end
        if self.size < len(content):
            logger.warning(
                "%s: ignored the last %d bytes, which a crash left incomplete; their messages are delivered again",
                self.path, len(content) - self.size,
            )  # fmt: skip
        return states

    def append(self, queue: PopQueue, record: PopRecord) -> None:
        """Add a record to the next write."""
        frame = _encode(queue, record)
        with self._lock:
            self._pending.append(frame)

    def snapshot(self, states: Mapping[PopQueue, PopState]) -> None:
        """Let the next write replace the file: the states contain every appended record."""
        content = b"".join(_encode(queue, state.snapshot()) for queue, state in states.items())
        with self._lock:
            self._snapshot = content
            self._pending.clear()

    def write(self) -> None:
        """Write what was added before the call; durable on return. After an OSError, the next call writes it."""
        with self._writing:
            with self._lock:
                snapshot, pending = self._snapshot, self._pending
                self._snapshot, self._pending = None, []
            frames = b"".join(pending)
            try:
                if snapshot is not None:
                    make_directory(self.path.parent)
                    with replacing(self.path) as file:
                        file.write(snapshot + frames)
                    self.size = len(snapshot) + len(frames)
                elif frames:
                    self._append(frames)
            except OSError:
                with self._lock:
                    # A newer snapshot contains them.
                    if self._snapshot is None:
                        self._snapshot, self._pending = snapshot, pending + self._pending
                raise

    def _append(self, frames: bytes) -> None:
        make_directory(self.path.parent)
        fd = open_inside(self.path.parent, self.path, os.O_WRONLY | os.O_CREAT)
        try:
            # What a crash or a failed write left could follow a shorter frame as a whole one.
            os.ftruncate(fd, self.size)
            os.lseek(fd, self.size, os.SEEK_SET)
            view = memoryview(frames)
            while view:
                view = view[os.write(fd, view) :]
            sync_all(fd)
        finally:
            os.close(fd)
        if self.size == 0:
            sync_directory(self.path.parent)
        self.size += len(frames)


def _frames(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield begin, end and JSON of the whole frames before the first torn one."""
    begin = 0
    while begin + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, begin)
        end = begin + _HEAD.size + length
        payload = content[begin + _HEAD.size : end]
        # A hole of zeros has the right checksum of nothing.
        if not length or end > len(content) or zlib.crc32(payload) != checksum:
            return
        yield begin, end, payload
        begin = end


def _encode(queue: PopQueue, record: PopRecord) -> bytes:
    fields: tuple[Any, ...] = record
    if isinstance(record, Snapshot):
        fields = (*record[:2], [(offset, *astuple(message)) for offset, message in record.outstanding])
    payload = json.dumps([type(record).__name__, *queue, *fields], separators=(",", ":")).encode()
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _decode(payload: bytes) -> tuple[PopQueue, PopRecord]:
    kind, topic, group, queue_id, *fields = json.loads(payload)
    if kind == "Pop":
        fields[5] = tuple(Candidate(*each) for each in fields[5])
        fields[6] = tuple(fields[6])
    elif kind in ("Ack", "Dead"):
        fields[0] = tuple(fields[0])
    elif kind == "Snapshot":
        fields[2] = tuple((offset, Outstanding(*rest)) for offset, *rest in fields[2])
    record: PopRecord = _KINDS[kind](*fields)
    return PopQueue(topic, group, queue_id), record
