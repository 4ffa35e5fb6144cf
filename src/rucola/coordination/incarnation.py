"""Incarnation of a log: a number that changes when the log may lack confirmed messages.

A kill leaves the log in the memory of the machine, so the incarnation stays. After a power cut the end of the log may
be gone, unless every confirmed message was flushed; on an empty disk all of it is. The in-sync set in etcd names
members with their incarnations, so that a broker whose log lost something is no longer entitled to be elected by it.

`config/coordination.json` in the store directory has the number, and the boot id of the machine at the last start.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import msgspec

from rucola.errors import StoreCorrupt
from rucola.files import make_directory, replace_file

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
FILE: Final = "coordination.json"


class IncarnationRecord(msgspec.Struct, frozen=True, rename="camel"):
    """Content of the file."""

    incarnation: int
    boot_id: str


def boot_id() -> str:
    """Return a text that changes at every machine start; empty if the system has none."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""


def incarnation_of(directory: Path, *, was_closed: bool, is_flushed: bool, boot: str) -> int:
    """Return the incarnation of a store directory's log before it is opened. StoreCorrupt, OSError.

    `was_closed` is False if the broker did not stop in order, `is_flushed` tells whether it confirms only what is on
    disk, and `boot` is the boot id of now.
    """
    path = directory / "config" / FILE
    record: IncarnationRecord | None = None
    if path.exists():
        try:
            record = msgspec.json.decode(path.read_bytes(), type=IncarnationRecord)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(
                path, 0, f"{error}; without this file the broker has to follow before it is elected"
            ) from None
    is_same_machine = record is not None and bool(boot) and record.boot_id == boot
    if record is None or not (was_closed or is_flushed or is_same_machine):
        record = IncarnationRecord(secrets.randbelow(2**53), boot)
    make_directory(path.parent)
    replace_file(path, msgspec.json.encode(IncarnationRecord(record.incarnation, boot)))
    return record.incarnation
