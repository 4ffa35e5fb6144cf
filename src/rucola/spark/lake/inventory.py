"""Inventory of a lake: every file, whether it can be read, and its entry for a snapshot.

Each file is read by itself, Parquet files by their footers; no file is trusted for the content of another. The
inventory therefore shows the damage of any lake, and the material for a new snapshot if that file is lost.

Nothing here needs Spark, and nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rucola.errors import StoreCorrupt
from rucola.spark.lake.data_files import first_line, key_file_entry, row_file_entry, row_group_bounds
from rucola.spark.lake.snapshot import (
    METADATA_DIRECTORY,
    ArchiveProgress,
    KeyFile,
    PendingCommit,
    RowFile,
    Snapshot,
    data_files,
    pending_path,
    progress_path,
    read_json,
    snapshot_path,
)

T = TypeVar("T")

_COMMIT: Final = re.compile(r"(\d{10})-\d{5,}\.parquet")


@dataclass(frozen=True)
class Inventory:
    """The files of a lake. Paths are counted from the lake.

    `snapshot`, `pending` and `progress` are the files of that name, `older_snapshot` and `older_progress` the copies
    of their previous content; None if there is no such file, or it cannot be read. `rows` and `keys` are the files of
    messages and of the key index whose footers can be read, `places` the paths of those of a pending commit that are
    still staged. `damages` has the reason why a file cannot be read, `strangers` are files that no commit wrote.
    """

    root: Path
    snapshot: Snapshot | None
    older_snapshot: Snapshot | None
    pending: PendingCommit | None
    progress: Mapping[str, ArchiveProgress] | None
    older_progress: Mapping[str, ArchiveProgress] | None
    rows: Mapping[str, RowFile]
    keys: Mapping[str, KeyFile]
    places: Mapping[str, Path]
    damages: Mapping[str, str]
    strangers: tuple[str, ...]

    @property
    def last_number(self) -> int:
        """The greatest commit number that anything of the lake names."""
        numbers = [each.number for each in (self.snapshot, self.older_snapshot, self.pending) if each is not None]
        return max([*numbers, *(commit_of(path) for path in (*self.rows, *self.keys, *self.damages)), 0])

    def place(self, path: str) -> Path:
        """Return where a file is now."""
        return self.places.get(path, self.root / path)


def take_inventory(root: Path) -> Inventory:
    """Return the inventory of the lake in a directory."""
    damages: dict[str, str] = {}

    def own(path: Path, kind: type[T]) -> T | None:
        try:
            return read_json(path, kind)
        except StoreCorrupt as error:
            damages[str(path.relative_to(root))] = error.why.partition(";")[0]
            return None

    pending = own(pending_path(root), PendingCommit)
    places = {}
    for source, place in {} if pending is None else dict(pending.moves).items():
        if not (root / place).exists():
            places[place] = root / METADATA_DIRECTORY / "staging" / source
    found = sorted({*data_files(root), *places})
    strangers = tuple(path for path in found if not _COMMIT.fullmatch(Path(path).name))
    rows: dict[str, RowFile] = {}
    keys: dict[str, KeyFile] = {}
    for path in found:
        if path in strangers:
            continue
        where = places.get(path, root / path)
        if path.startswith(METADATA_DIRECTORY):
            _read(where, path, lambda where, path: key_file_entry(where, path, commit_of(path)), keys, damages)
        else:
            _read(where, path, row_file_entry, rows, damages)
    return Inventory(
        root,
        own(snapshot_path(root), Snapshot),
        own(_copy(snapshot_path(root)), Snapshot),
        pending,
        own(progress_path(root), dict[str, ArchiveProgress]),
        own(_copy(progress_path(root)), dict[str, ArchiveProgress]),
        rows,
        keys,
        places,
        damages,
        strangers,
    )


def commit_of(path: str) -> int:
    """Return the number of the commit that wrote a file of messages or keys; 0 for any other file."""
    match = _COMMIT.fullmatch(Path(path).name)
    return int(match[1]) if match else 0


def _read(
    where: Path, path: str, entry: Callable[[Path, str], T], entries: dict[str, T], damages: dict[str, str]
) -> None:
    """Put the entry of a file among the entries or, if its footer cannot be read, the reason among the damages."""
    try:
        entries[path] = entry(where, path)
    except FileNotFoundError:
        damages[path] = "the file is missing"
    except (pa.ArrowException, OSError, AttributeError, StopIteration, ValueError) as error:
        damages[path] = f"the file cannot be read: {first_line(error)}"


def _copy(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def brokers_of(found: Inventory, file: RowFile) -> frozenset[str] | None:
    """Return from which brokers the messages of a file are, if its footer tells; None if that takes reading it."""
    footer = pq.read_metadata(found.place(file.path))
    names: set[str] = set()
    for least, most in row_group_bounds(footer, "brokerName"):
        if least != most:
            return None
        names.add(str(least))
    return frozenset(names)


def addresses(found: Inventory, file: RowFile) -> dict[str, pa.Table]:
    """Return the addresses and ids of a file's messages by broker name, without the message itself."""
    names = ["brokerName", "queueId", "queueOffset", "commitLogOffset", "storeSize", "msgId"]
    with pq.ParquetFile(found.place(file.path)) as opened:
        table = opened.read(names)
    brokers = pc.unique(table["brokerName"]).to_pylist()
    return {name: table.filter(pc.equal(table["brokerName"], name)) for name in sorted(brokers)}
