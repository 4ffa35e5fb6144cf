"""The snapshot of a lake: which files it holds, and how far each store and broker is archived.

    <lake>/_rucola/snapshot.json    {"number": 7, "rows": [...], "keys": [...], "progress": {...}, "replaced": [...]}

It is replaced as a whole by every commit, so whoever reads it sees all of a commit or nothing. Files never change;
a commit adds some and takes others out. Of each file stands here what tells a reader that it need not be opened: topic,
date, the range of physical offsets, the range of hashes.

Some 250 bytes a file are rewritten by every commit, so a lake of 100,000 files costs 25 MB each time. Compaction keeps
their number near that of topics times days.

Nothing here takes Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rucola.errors import StoreCorrupt, StoreError

OWN: Final = "_rucola"
"""The directory in a lake that is not rows. Spark and its like pass over names that begin so."""

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """How far one store, or one live broker, is archived.

    `queues` has the next queue offset of each queue, {topic: {queue id as text: offset}}. Of a store, every record
    before `physical_offset` is archived, and the last archived record is known by its address and msgId, so that
    another store in the same place is noticed. A live broker is archived by its queues alone (`is_live`): nothing can
    be said of its log then, and `physical_offset` is 0.
    """

    physical_offset: int
    last_physical_offset: int | None = None
    last_msg_id: str | None = None
    queues: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_live: bool = False


@dataclass(frozen=True)
class RowFile:
    """A file of messages, all of one topic and one UTC date, `path` counted from the lake.

    Its messages have physical offsets from `least` to `most`, both included; they may be of several brokers.
    """

    path: str
    topic: str
    date: str
    rows: int
    size: int
    least: int
    most: int


@dataclass(frozen=True)
class KeyFile:
    """A file of the key index, with hashes from `least` to `most`, both included.

    Files with the same `run` were written by one commit and have hashes of their own.
    """

    path: str
    run: int
    entries: int
    size: int
    least: int
    most: int


@dataclass(frozen=True)
class Replaced:
    """A file that was taken out at a time, in milliseconds, and stays a while for those who are reading it."""

    path: str
    at_ms: int


@dataclass(frozen=True)
class Snapshot:
    """All of a lake after commit `number`; 0 is a lake without any."""

    number: int = 0
    rows: tuple[RowFile, ...] = ()
    keys: tuple[KeyFile, ...] = ()
    progress: Mapping[str, Progress] = field(default_factory=dict)
    replaced: tuple[Replaced, ...] = ()


def is_lake(directory: Path) -> bool:
    """Tell whether messages were archived into this directory."""
    return (directory / OWN).is_dir()


def snapshot_path(root: Path) -> Path:
    """Return where the snapshot of the lake in a directory stands."""
    return root / OWN / "snapshot.json"


def read_snapshot(root: str | Path) -> Snapshot:
    """Return what the lake in a directory holds now. Raises StoreError where there is no lake."""
    root = Path(root)
    if not is_lake(root):
        raise StoreError(f"{root} is no lake; give a directory into which `rucola pipeline archive` has written")
    return read_json(snapshot_path(root), Snapshot) or Snapshot()


def read_json(path: Path, kind: type[T]) -> T | None:
    """Return the content of a JSON file of the lake; None where there is no such file. Raises StoreCorrupt."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(path, 0, f"this cannot be read: {error}") from error
