"""Snapshot of a lake: its files, and the archive progress of each store and broker.

    <lake>/_rucola/snapshot.json    {"number": 7, "rows": [...], "keys": [...], "progress": {...}, "replaced": [...]}
    <lake>/_rucola/pending.json     the commit in progress (see `writer`)

Every commit replaces the snapshot as a whole, so a reader sees all of a commit or nothing. Data files are immutable; a
commit adds some and removes others. The entry of a file has what readers need to skip it (topic, date, range of
physical offsets or hashes), and its size, by which a missing or truncated file is detected without opening it.

A new lake has no snapshot until its first commit. If a lake without one contains any committed file, it is damaged:
reading it as empty would hide its messages, so `read_snapshot` raises.

A commit rewrites about 250 bytes per file, so a lake of 100,000 files costs 25 MB per commit. Compaction keeps the
number of files near that of topics times days.

Commits delete, move and replace the files that the metadata names. Therefore every path is checked when it is read: one
that leads out of the lake makes the file of metadata unreadable (StoreCorrupt).

This module does not need Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import msgspec

from rucola.errors import StoreCorrupt, StoreError
from rucola.files import check_inside, local_path, read_inside, size_inside

METADATA_DIRECTORY: Final = "_rucola"
"""The directory of everything but rows. Spark and similar tools ignore names that begin with an underscore."""

T = TypeVar("T")


@dataclass(frozen=True)
class ArchiveProgress:
    """The archive progress of one store or live broker.

    `queues` has the next queue offset by queue, {topic: {queue id as text: offset}}. All records of a store before
    `physical_offset` are archived. Address and msgId of the last archived record identify the store, so that another
    store in the same directory is noticed. A live broker (`is_live`) is archived by queues only, and its
    `physical_offset` is 0.
    """

    physical_offset: int
    last_physical_offset: int | None = None
    last_msg_id: str | None = None
    queues: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_live: bool = False


@dataclass(frozen=True)
class RowFile:
    """A file of messages of one topic and one UTC date.

    `path` is relative to the lake. `least` and `most` are the minimum and maximum physical offset, inclusive; messages
    may be from several brokers.
    """

    path: str
    topic: str
    date: str
    rows: int
    size: int
    least: int
    most: int

    def __post_init__(self) -> None:
        _check_inside(self.path)


@dataclass(frozen=True)
class KeyFile:
    """A file of the key index, with hashes from `least` to `most`, inclusive.

    Files with the same `run` were written by one commit and have disjoint ranges of hashes.
    """

    path: str
    run: int
    entries: int
    size: int
    least: int
    most: int

    def __post_init__(self) -> None:
        _check_inside(self.path)


@dataclass(frozen=True)
class ReplacedFile:
    """A file that was replaced, and is kept for running queries.

    `at_ms` is the time of the replacement.
    """

    path: str
    at_ms: int

    def __post_init__(self) -> None:
        _check_inside(self.path)


@dataclass(frozen=True)
class Snapshot:
    """The whole lake after commit `number`; 0 is a lake without commits."""

    number: int = 0
    rows: tuple[RowFile, ...] = ()
    keys: tuple[KeyFile, ...] = ()
    progress: Mapping[str, ArchiveProgress] = field(default_factory=dict)
    replaced: tuple[ReplacedFile, ...] = ()


@dataclass(frozen=True)
class PendingCommit:
    """A commit in progress: everything that is needed to complete it after a crash.

    `moves` has the lake paths of staged files, `rows` and `keys` their entries. The files `replaces` leave the
    snapshot; the files `removes` were replaced earlier and are deleted. The commit of a repair (`is_repair`) does not
    build on a snapshot: its rows, keys and progress are the whole lake. Only such a commit has `asides`, new paths of
    rejected files.
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

    def __post_init__(self) -> None:
        _check_inside(*self.moves, *self.moves.values(), *self.replaces, *self.removes)
        _check_inside(*self.asides, *self.asides.values())

    def after(self, before: Snapshot) -> Snapshot:
        """Return the snapshot after this commit, given the one before."""
        if self.is_repair:
            before = Snapshot()
        replaced = tuple(ReplacedFile(path, self.at_ms) for path in sorted(self.replaces))
        return Snapshot(
            self.number,
            tuple(file for file in before.rows if file.path not in self.replaces) + self.rows,
            tuple(file for file in before.keys if file.path not in self.replaces) + self.keys,
            {**before.progress, **self.progress},
            tuple(each for each in before.replaced if each.path not in self.removes) + replaced,
        )


def _check_inside(*paths: str) -> None:
    """Raise ValueError for a path that is not below the lake.

    msgspec reports it as a validation error.
    """
    for path in paths:
        parts = PurePosixPath(path)
        if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in path:
            raise ValueError(f"path {path!r} leads out of the lake")


def furthest_progress(one: ArchiveProgress, other: ArchiveProgress) -> ArchiveProgress:
    """Merge two progresses of a broker.

    The result has the larger physical offset, and the maximum offset of each queue.
    """
    # The copy with the smaller physical offset may know queues that the other one does not.
    ahead, behind = (one, other) if one.physical_offset >= other.physical_offset else (other, one)
    queues = {topic: dict(offsets) for topic, offsets in ahead.queues.items()}
    for topic, offsets in behind.queues.items():
        of_topic = queues.setdefault(topic, {})
        for queue_id, offset in offsets.items():
            of_topic[queue_id] = max(of_topic.get(queue_id, 0), offset)
    return replace(ahead, queues=queues)


def is_lake(directory: Path) -> bool:
    """Tell whether a directory is a lake."""
    return (directory / METADATA_DIRECTORY).is_dir()


def check_links(root: Path) -> None:
    """Raise StoreError for a link or a special file among a lake's own files, before any of them is written."""
    check_inside(root, lambda name: name == METADATA_DIRECTORY or name.startswith("topic="))


def snapshot_path(root: Path) -> Path:
    """Return the path of a lake's snapshot."""
    return root / METADATA_DIRECTORY / "snapshot.json"


def pending_path(root: Path) -> Path:
    """Return the path of a lake's pending commit."""
    return root / METADATA_DIRECTORY / "pending.json"


def progress_path(root: Path) -> Path:
    """Return the path of the archive progress that brokers read."""
    return root / METADATA_DIRECTORY / "progress.json"


def read_snapshot(root: str | Path) -> Snapshot:
    """Read the current snapshot of a lake.

    Raises StoreError if there is no lake, StoreCorrupt if the snapshot is missing or cannot be read.
    """
    root = local_path(root)
    if not is_lake(root):
        raise StoreError(f"{root} is not a lake; give a directory into which `rucola pipeline archive` has written")
    path = snapshot_path(root)
    found = read_json(path, Snapshot)
    if found is None and (traces := committed_files(root)):
        found = read_json(path, Snapshot)  # the first commit may just have been completed
        if found is None:
            named = ", ".join(traces[:3]) + (f" and {len(traces) - 3} more" if len(traces) > 3 else "")
            raise lake_damage(root, path, 0, f"the file is missing, but the lake holds {named}")
    return found or Snapshot()


def committed_files(root: Path) -> list[str]:
    """Return the files that only a lake with a commit has.

    These are data files, the progress, and copies of an older snapshot. Files of a first commit that is in progress do
    not count.
    """
    own = ("snapshot.json.bak", "progress.json", "progress.json.bak")
    small = [f"{METADATA_DIRECTORY}/{name}" for name in own if (root / METADATA_DIRECTORY / name).exists()]
    files = list_data_files(root)
    # Read pending.json after listing the files: a commit that has moved one of them is still pending, or is complete.
    pending = read_json(pending_path(root), PendingCommit)
    if pending is None:
        return small + files
    if pending.number > 1 or pending.is_repair:
        return [*small, f"{METADATA_DIRECTORY}/pending.json", *files]
    return small + [path for path in files if path not in pending.moves.values()]


def list_data_files(root: Path) -> list[str]:
    """Return the paths of all row and key files, relative to the lake, sorted."""
    found = [*root.glob("topic=*/date=*/*.parquet"), *root.glob(f"{METADATA_DIRECTORY}/keys/*.parquet")]
    return sorted(str(path.relative_to(root)) for path in found)


def check_files(root: Path, files: Iterable[RowFile | KeyFile]) -> None:
    """Raise StoreCorrupt for the first file missing or with another size than its entry."""
    for file in files:
        check_file(root, root / file.path, file.size)


def check_file(root: Path, path: Path, size: int) -> None:
    """Raise StoreCorrupt if a file of the lake is missing or has another size."""
    try:
        found = size_inside(root, path)
    except FileNotFoundError:
        raise lake_damage(root, path, 0, "the file is missing") from None
    if found != size:
        raise lake_damage(root, path, min(found, size), f"the file has {found} bytes instead of {size}")


def read_json(path: Path, kind: type[T]) -> T | None:
    """Decode a JSON file of the lake; return None if it does not exist.

    Raises StoreCorrupt if it cannot be read.
    """
    try:
        return msgspec.json.decode(read_inside(path.parent.parent, path), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise lake_damage(path.parent.parent, path, 0, f"the file cannot be read: {error}") from error


def lake_damage(root: Path, path: Path, position: int, why: str) -> StoreCorrupt:
    """Return the error for a damaged file of a lake, with advice."""
    advice = (
        f"restore the file from a backup, or run `rucola pipeline repair --lake {root} --dry-run` to see what is lost"
    )
    return StoreCorrupt(path, position, f"{why}; {advice}")
