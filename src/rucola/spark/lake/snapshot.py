"""The snapshot of a lake: which files it holds, and how far each store and broker is archived.

    <lake>/_rucola/snapshot.json    {"number": 7, "rows": [...], "keys": [...], "progress": {...}, "replaced": [...]}
    <lake>/_rucola/pending.json     a commit that is being carried out

Every commit replaces the snapshot as a whole, so a reader sees all of a commit or nothing. Files never change; a commit
adds some and takes others out. Each entry has what lets a reader skip the file: topic, date, the range of physical
offsets, the range of hashes; and its size, by which a missing or truncated file is detected without opening it.

A new lake has no snapshot until its first commit. A lake without one in which anything else was ever committed is
damaged: reading it as empty would lose its messages, so `read_snapshot` refuses it.

Each commit rewrites about 250 bytes per file, so a lake of 100,000 files costs 25 MB each time. Compaction keeps the
number of files near that of topics times days.

Nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rucola.errors import StoreCorrupt, StoreError

METADATA_DIRECTORY: Final = "_rucola"
"""The directory in a lake that is not rows. Spark and similar tools skip names that begin with an underscore."""

T = TypeVar("T")


@dataclass(frozen=True)
class ArchiveProgress:
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
class ReplacedFile:
    """A file that was taken out at a time, in milliseconds, and stays a while for those who are reading it."""

    path: str
    at_ms: int


@dataclass(frozen=True)
class Snapshot:
    """All of a lake after commit `number`; 0 is a lake without any."""

    number: int = 0
    rows: tuple[RowFile, ...] = ()
    keys: tuple[KeyFile, ...] = ()
    progress: Mapping[str, ArchiveProgress] = field(default_factory=dict)
    replaced: tuple[ReplacedFile, ...] = ()


@dataclass(frozen=True)
class PendingCommit:
    """A commit: staged files and their places, the entries of the new files, the files replaced and removed.

    The commit of a repair (`is_repair`) follows no snapshot: its rows, keys and progress are all there is. Only such a
    commit sets files aside: `asides` has their new places.
    """

    number: int
    at_ms: int
    moves: Mapping[str, str]
    rows: tuple[RowFile, ...]
    keys: tuple[KeyFile, ...]
    progress: Mapping[str, ArchiveProgress] = field(default_factory=dict)
    replaces: frozenset[str] = frozenset()
    removes: frozenset[str] = frozenset()
    is_repair: bool = False
    asides: Mapping[str, str] = field(default_factory=dict)

    def after(self, before: Snapshot) -> Snapshot:
        """Return the snapshot that this commit makes of the one before."""
        if self.is_repair:
            before = Snapshot()
        taken_out = tuple(ReplacedFile(path, self.at_ms) for path in sorted(self.replaces))
        return Snapshot(
            self.number,
            tuple(file for file in before.rows if file.path not in self.replaces) + self.rows,
            tuple(file for file in before.keys if file.path not in self.replaces) + self.keys,
            {**before.progress, **self.progress},
            tuple(each for each in before.replaced if each.path not in self.removes) + taken_out,
        )


def furthest_progress(one: ArchiveProgress, other: ArchiveProgress) -> ArchiveProgress:
    """Return the progress of a broker that is further, with the furthest offset of each queue."""
    ahead, behind = (one, other) if one.physical_offset >= other.physical_offset else (other, one)
    queues = {topic: dict(offsets) for topic, offsets in ahead.queues.items()}
    for topic, offsets in behind.queues.items():
        of_topic = queues.setdefault(topic, {})
        for queue_id, offset in offsets.items():
            of_topic[queue_id] = max(of_topic.get(queue_id, 0), offset)
    return replace(ahead, queues=queues)


def is_lake(directory: Path) -> bool:
    """Tell whether messages were archived into this directory."""
    return (directory / METADATA_DIRECTORY).is_dir()


def snapshot_path(root: Path) -> Path:
    """Return the path of the snapshot of the lake in a directory."""
    return root / METADATA_DIRECTORY / "snapshot.json"


def pending_path(root: Path) -> Path:
    """Return the path of the commit that is being carried out in the lake in a directory."""
    return root / METADATA_DIRECTORY / "pending.json"


def progress_path(root: Path) -> Path:
    """Return the path of the progress that brokers read from the lake in a directory."""
    return root / METADATA_DIRECTORY / "progress.json"


def read_snapshot(root: str | Path) -> Snapshot:
    """Return what the lake in a directory holds now.

    Raises StoreError if there is no lake, StoreCorrupt if its snapshot is missing or cannot be read.
    """
    root = Path(root)
    if not is_lake(root):
        raise StoreError(f"{root} is not a lake; give a directory into which `rucola pipeline archive` has written")
    path = snapshot_path(root)
    found = read_json(path, Snapshot)
    if found is None and (traces := committed_files(root)):
        found = read_json(path, Snapshot)  # the first commit may have been completed meanwhile
        if found is None:
            named = ", ".join(traces[:3]) + (f" and {len(traces) - 3} more" if len(traces) > 3 else "")
            raise lake_damage(root, path, 0, f"the file is missing, but the lake holds {named}")
    return found or Snapshot()


def committed_files(root: Path) -> list[str]:
    """Return what only a lake with a commit has: files of messages and keys, progress, a copy of an older snapshot.

    The first commit of a lake may be under way; its files do not count.
    """
    own = ("snapshot.json.bak", "progress.json", "progress.json.bak")
    small = [f"{METADATA_DIRECTORY}/{name}" for name in own if (root / METADATA_DIRECTORY / name).exists()]
    files = data_files(root)
    # Read after the files were listed: a commit that has moved one was pending before that.
    pending = read_json(pending_path(root), PendingCommit)
    if pending is None:
        return small + files
    if pending.number > 1 or pending.is_repair:
        return [*small, f"{METADATA_DIRECTORY}/pending.json", *files]
    return small + [path for path in files if path not in pending.moves.values()]


def data_files(root: Path) -> list[str]:
    """Return the files of messages and of the key index that are in their places, counted from the lake, in order."""
    found = [*root.glob("topic=*/date=*/*.parquet"), *root.glob(f"{METADATA_DIRECTORY}/keys/*.parquet")]
    return sorted(str(path.relative_to(root)) for path in found)


def check_files(root: Path, files: Iterable[RowFile | KeyFile]) -> None:
    """Raise StoreCorrupt for the first of these files that is missing, or has not the size that the snapshot says."""
    for file in files:
        check_file(root, root / file.path, file.size)


def check_file(root: Path, path: Path, size: int) -> None:
    """Raise StoreCorrupt if a file of the lake is missing or is not of this size."""
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise lake_damage(root, path, 0, "the file is missing") from None
    if found != size:
        raise lake_damage(root, path, min(found, size), f"the file has {found} bytes instead of {size}")


def read_json(path: Path, kind: type[T]) -> T | None:
    """Return the content of a JSON file of the lake; None if there is no such file. Raises StoreCorrupt."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise lake_damage(path.parent.parent, path, 0, f"this cannot be read: {error}") from error


def lake_damage(root: Path, path: Path, position: int, why: str) -> StoreCorrupt:
    """Return the error for a damaged file of a lake, which says what to do."""
    advice = f"put the file back from a copy, or see what `rucola pipeline repair --lake {root} --dry-run` says"
    return StoreCorrupt(path, position, f"{why}; {advice}")
