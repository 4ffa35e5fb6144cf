"""Snapshot of a lake: its files, and the archive progress of each store and broker. Does not need Spark.

    <lake>/_rucola/snapshot.json    {"number": 7, "rows": [...], "keys": [...], "progress": {...}, "replaced": [...]}
    <lake>/_rucola/pending.json     the commit in progress (see `writer`)

Every commit replaces the snapshot as a whole, so a reader sees all of a commit or nothing. Data files are immutable.
The entry of a file has what readers need to skip it, and its size, by which a missing or truncated file is detected.

If a lake without a snapshot contains any committed file, it is damaged, and `read_snapshot` raises.

Commits delete, move and replace the files that the metadata names. Therefore every path is checked when it is read: a
path out of the lake makes the metadata unreadable (StoreCorrupt).
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
"""The directory of everything but rows. Spark and similar tools ignore names with a leading underscore."""

T = TypeVar("T")


@dataclass(frozen=True)
class ArchiveProgress:
    """The archive progress of one store or live broker.

    `queues` has the next queue offset by queue, {topic: {queue id as text: offset}}. All records of a store before
    `physical_offset` (0 if live) are archived; address and msgId of the last one identify the store.
    """

    physical_offset: int
    last_physical_offset: int | None = None
    last_msg_id: str | None = None
    queues: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_live: bool = False


@dataclass(frozen=True)
class RowFile:
    """A file of one topic and UTC date; `least` and `most` are physical offsets (of several brokers), inclusive."""

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
    """A file of the key index, with hashes from `least` to `most`, inclusive; ranges of a `run` are disjoint."""

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
    """A file that was replaced at `at_ms`, and is kept for running queries."""

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

    `moves` has the lake paths of staged files. The files `replaces` leave the snapshot; the files `removes` were
    replaced earlier and are deleted. A repair (`is_repair`) replaces the whole lake, and sets `asides` aside.
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
    """Raise ValueError, for msgspec a validation error, for a path that is not below the lake."""
    for path in paths:
        parts = PurePosixPath(path)
        if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in path:
            raise ValueError(f"path {path!r} leads out of the lake")


def furthest_progress(one: ArchiveProgress, other: ArchiveProgress) -> ArchiveProgress:
    """Merge two progresses of a broker: the larger physical offset, and the maximum offset of each queue."""
    # The copy with the smaller physical offset may have queues that the other one lacks.
    ahead, behind = (one, other) if one.physical_offset >= other.physical_offset else (other, one)
    queues = {topic: dict(offsets) for topic, offsets in ahead.queues.items()}
    for topic, offsets in behind.queues.items():
        of_topic = queues.setdefault(topic, {})
        for queue_id, offset in offsets.items():
            of_topic[queue_id] = max(of_topic.get(queue_id, 0), offset)
    return replace(ahead, queues=queues)


def is_lake(directory: Path) -> bool:
    """Return whether a directory is a lake."""
    return (directory / METADATA_DIRECTORY).is_dir()


def check_links(root: Path) -> None:
    """Raise StoreError for a link or a special file among a lake's own files; call it before writing any of them."""
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
    """Read the current snapshot. Raises StoreError if there is no lake, StoreCorrupt if it is missing or unreadable."""
    root = local_path(root)
    if not is_lake(root):
        raise StoreError(
            f"{root} is not a lake; give a directory into which `rucola pipeline archive` has written", subject=root
        )
    path = snapshot_path(root)
    found = read_json(path, Snapshot)
    if found is None and (traces := committed_files(root)):
        found = read_json(path, Snapshot)  # the first commit may just have been completed
        if found is None:
            named = ", ".join(traces[:3]) + (f" and {len(traces) - 3} more" if len(traces) > 3 else "")
            raise lake_damage(root, path, 0, f"the file is missing, but the lake holds {named}")
    return found or Snapshot()


def committed_files(root: Path) -> list[str]:
    """Return files that only a lake with a commit has, without those of a first commit in progress."""
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
    """Decode a JSON file of the lake; None if it does not exist. Raises StoreCorrupt if it cannot be read."""
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
