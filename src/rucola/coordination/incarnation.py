"""Incarnation of a log: a number that changes when the log may lack confirmed messages.

A kill leaves the log in the page cache, so the incarnation stays. After a power cut the end of the log may be lost,
unless every confirmed message was flushed; on an empty disk all of it is. The in-sync set in etcd has incarnations, so
that a broker with such a log is no longer eligible.

`config/coordination.json` in the store directory:

    {"incarnation":4503,"bootId":"1f0e…","isFlushed":false,"leastEnd":27353}

`bootId` is the machine's at the last start. `isFlushed` is about the run since then, since flushDiskType may have
changed after a power cut. `leastEnd` is the end of the log at the last orderly stop, since the log may be on another
disk. A file of an earlier version has neither, and counts as not flushed.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from rucola.errors import StoreCorrupt
from rucola.files import make_directory, read_inside, replace_file

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class IncarnationRecord(msgspec.Struct, frozen=True, rename="camel"):
    incarnation: int
    boot_id: str
    is_flushed: bool = False
    """Whether all confirmed messages since `boot_id` are on disk."""
    least_end: int = 0
    """A log with a smaller end has lost something."""


def boot_id() -> str:
    """Return a text that changes at every start of the machine; empty if the system has none."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""


class LogIncarnation:
    """The incarnation of a broker's log. Changes are on disk on return; all methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._record = IncarnationRecord(0, "")

    @property
    def number(self) -> int:
        return self._record.incarnation

    @property
    def least_end(self) -> int:
        """If the opened log is shorter, call `renew`."""
        return self._record.least_end

    def begin_run(self, *, was_closed: bool, is_flushed: bool, boot: str) -> None:
        """Judge the log before it is opened. `is_flushed` is about the new run. StoreCorrupt."""
        before = self._read()
        is_on_disk = before is not None and (was_closed or before.is_flushed)
        is_in_memory = before is not None and bool(boot) and before.boot_id == boot
        if before is None or not (is_on_disk or is_in_memory):
            # This number has confirmed nothing yet.
            before, is_on_disk = IncarnationRecord(_new(), boot, least_end=before.least_end if before else 0), True
        # Unflushed bytes of a killed run are not on disk before this run's first flush.
        self._write(structs.replace(before, boot_id=boot, is_flushed=is_flushed and is_on_disk))

    def renew(self) -> None:
        """Change the incarnation: the opened log is too short, or lacks something otherwise."""
        self._write(structs.replace(self._record, incarnation=_new(), least_end=0))

    def end_run(self, end: int) -> None:
        self._write(structs.replace(self._record, least_end=end))

    def _read(self) -> IncarnationRecord | None:
        if not self._path.exists():
            return None
        try:
            return msgspec.json.decode(read_inside(self._path.parent, self._path), type=IncarnationRecord)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(
                self._path, 0, f"{error}; without this file the broker has to follow before it is elected"
            ) from None

    def _write(self, record: IncarnationRecord) -> None:
        make_directory(self._path.parent)
        replace_file(self._path, msgspec.json.encode(record))
        self._record = record


def _new() -> int:
    return secrets.randbelow(2**53)
