"""Snapshot of a lake: its files, and the archive progress of each store and broker, as its tables have them now.

Readers use the files that the snapshot names, so they see all of a commit or nothing. Data files are immutable. The
entry of a file has what readers need to skip it, and its size, by which a missing or truncated file is detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from rucola.errors import StoreCorrupt, StoreError
from rucola.files import check_inside
from rucola.spark.lake.storage import Directory, Storage, storage_of

METADATA_DIRECTORY: Final = "_rucola"
"""The directory of the catalog, the key index and what a run stages."""

KEYS_DIRECTORY: Final = f"{METADATA_DIRECTORY}/keys"

STAGING_DIRECTORY: Final = f"{KEYS_DIRECTORY}/data/staging"
"""A directory for each run that writes. In the data of a table, where every object store with tables permits files."""

TOPICS_DIRECTORY: Final = "topics"
"""The directory of the tables of single topics."""

OWN_DIRECTORIES: Final = (METADATA_DIRECTORY, "metadata", "data", TOPICS_DIRECTORY)

NO_DAY: Final = "1970-01-01"
"""The date of messages without storeTimestamp."""


@dataclass(frozen=True)
class ArchiveProgress:
    """The archive progress of one store or live broker.

    `queues` has the next queue offset by queue, {topic: {queue id as text: offset}}. All records of a store before
    `physical_offset` (0 if live) are archived; address and msgId of the last one identify the store. Each time a queue
    of a store was deleted and created again, `recreated` gets the physical offset of its first message after that. Of a
    live broker, `messages` has a message of each topic, (queue id, queue offset, store time), which a topic that was
    deleted and created again does not have.
    """

    physical_offset: int
    last_physical_offset: int | None = None
    last_msg_id: str | None = None
    queues: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_live: bool = False
    messages: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    recreated: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class RowFile:
    """A file of one topic and UTC day, None without storeTimestamp.

    `least` and `most` are physical offsets, the next two queue offsets (of several brokers and queues), and `brokers`
    the first and last brokerName in order, inclusive and perhaps shortened; None if unknown.
    """

    path: str
    topic: str
    day: str | None
    rows: int
    size: int
    least: int
    most: int
    least_queue_offset: int
    most_queue_offset: int
    brokers: tuple[str, str] | None = None

    @property
    def date(self) -> str:
        """The date by which messages are selected."""
        return self.day or NO_DAY


@dataclass(frozen=True)
class KeyFile:
    """A file of the key index, with hashes from `least` to `most`, inclusive; ranges of a `run` are disjoint."""

    path: str
    run: str
    entries: int
    size: int
    least: int
    most: int


@dataclass(frozen=True)
class Snapshot:
    """The whole lake after commit `number`; 0 is a lake without commits. `forgotten` are row files that it has lost."""

    number: int = 0
    rows: tuple[RowFile, ...] = ()
    keys: tuple[KeyFile, ...] = ()
    progress: Mapping[str, ArchiveProgress] = field(default_factory=dict)
    storage: Storage = field(default=Directory(Path()), compare=False)
    forgotten: tuple[RowFile, ...] = ()


def is_lake(directory: Path) -> bool:
    """Return whether a directory is a lake."""
    return (directory / METADATA_DIRECTORY).is_dir()


def check_exists(root: Path) -> None:
    """Raise StoreError unless a directory is a lake."""
    if not is_lake(root):
        raise StoreError(
            f"{root} is not a lake; give a directory into which `rucola pipeline archive` has written", subject=root
        )


def check_links(root: Path) -> None:
    """Raise StoreError for a link or a special file among a lake's own files; call it before writing any of them."""
    check_inside(root, lambda name: name in OWN_DIRECTORIES or name.startswith("topic="))


def progress_path(root: Path) -> Path:
    """Return the path of the archive progress that brokers read."""
    return root / METADATA_DIRECTORY / "progress.json"


class _Entry(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...


def check_files(root: Path | Storage, files: Iterable[_Entry]) -> None:
    """Raise StoreCorrupt for the first file missing or with another size than its entry."""
    storage, entries = storage_of(root), list(files)
    found = storage.sizes(file.path for file in entries)
    for file in entries:
        if file.path not in found:
            raise file_damage(storage, file, 0, "the file is missing")
        if (size := found[file.path]) != file.size:
            why = f"the file has {size} bytes instead of {file.size}"
            raise file_damage(storage, file, min(size, file.size), why)


_ANOTHER_LAKE: Final = "archive into another lake"
_REPAIRS: Final = {
    RowFile: "remove it, and so its messages, with `rucola pipeline forget`",
    KeyFile: "write the key index anew with `rucola pipeline compact --reindex`",
}


def file_damage(storage: Storage, file: _Entry, position: int, why: str) -> StoreCorrupt:
    """Return the error for a damaged data file, with advice."""
    return lake_damage(storage.place(file.path), position, why, _REPAIRS.get(type(file), _ANOTHER_LAKE))


def lake_damage(path: Path | str, position: int, why: str, otherwise: str = _ANOTHER_LAKE) -> StoreCorrupt:
    """Return the error for a damaged file of a lake, with advice."""
    return StoreCorrupt(path, position, f"{why}; restore the file from a backup, or {otherwise}")
