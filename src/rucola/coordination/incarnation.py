"""Incarnation of a log: a number that changes when the log may lack confirmed messages.

A kill leaves the log in the memory of the machine, so the incarnation stays. After a power cut the end of the log may
be gone, unless every confirmed message was flushed; on an empty disk all of it is. The in-sync set in etcd names
members with their incarnations, so that a broker whose log lost something is no longer entitled to be elected by it.

`config/coordination.json` in the store directory has the number, and what the next start judges the log by:

    {"incarnation":4503,"bootId":"1f0e…","isFlushed":false,"leastEnd":27353}

`bootId` is that of the machine at the last start. `isFlushed` is about the run since then, since flushDiskType may have
been changed after a power cut. The log may be on another disk than this file, so `leastEnd` is its end at the last
orderly stop. A file of an earlier version has neither of the two, and counts as not flushed.
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
    """Content of the file."""

    incarnation: int
    boot_id: str
    is_flushed: bool = False
    """Whether all that the log had confirmed since `boot_id` is on disk, also after a power cut."""
    least_end: int = 0
    """Physical offset that the log must reach at the next start, or it has lost something."""


def boot_id() -> str:
    """Return a text that changes at every machine start; empty if the system has none."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""


class LogIncarnation:
    """Incarnation of the log of one broker.

    Every change is on disk on return; all methods raise OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._record = IncarnationRecord(0, "")

    @property
    def number(self) -> int:
        """The incarnation, after `begin_run`."""
        return self._record.incarnation

    @property
    def least_end(self) -> int:
        """The physical offset that the opened log must reach; otherwise `renew` follows."""
        return self._record.least_end

    def begin_run(self, *, was_closed: bool, is_flushed: bool, boot: str) -> None:
        """Judge the log before it is opened. Raises StoreCorrupt.

        `was_closed` is False if the broker did not stop in order, `is_flushed` tells whether from now on it confirms
        only what is on disk, and `boot` is the boot id of now.
        """
        before = self._read()
        is_on_disk = before is not None and (was_closed or before.is_flushed)
        is_in_memory = before is not None and bool(boot) and before.boot_id == boot
        if before is None or not (is_on_disk or is_in_memory):
            # This number has confirmed nothing yet.
            before, is_on_disk = IncarnationRecord(_new(), boot, least_end=before.least_end if before else 0), True
        # What is in memory only, of a run that was killed, is not on disk before the first flush of this one.
        self._write(structs.replace(before, boot_id=boot, is_flushed=is_flushed and is_on_disk))

    def renew(self) -> None:
        """Change the incarnation: the opened log does not reach `least_end`, or lacks something otherwise."""
        self._write(structs.replace(self._record, incarnation=_new(), least_end=0))

    def end_run(self, end: int) -> None:
        """Keep the end of a log that was closed in order."""
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
