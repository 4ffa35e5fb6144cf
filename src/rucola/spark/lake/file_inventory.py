"""Inventory of a lake: every file, whether it is readable, and its snapshot entry. Needs no Spark and writes nothing.

Each file is read by itself, Parquet files by their footers; no file is trusted for the content of another.
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
    list_data_files,
    pending_path,
    progress_path,
    read_json,
    snapshot_path,
)

T = TypeVar("T")

_COMMIT: Final = re.compile(r"(\d{10})-\d{5,}\.parquet")


@dataclass(frozen=True)
class Inventory:
    """The files of a lake, readable or not. Paths are relative to the lake.

    Metadata that does not exist or cannot be read is None; the older ones are copies of previous contents.
    `staged_paths` are the current paths of files that a pending commit has not moved yet. `damages` has the reason why
    a file cannot be read; `foreign_files` were not written by any commit.
    """

    root: Path
    snapshot: Snapshot | None
    older_snapshot: Snapshot | None
    pending: PendingCommit | None
    progress: Mapping[str, ArchiveProgress] | None
    older_progress: Mapping[str, ArchiveProgress] | None
    rows: Mapping[str, RowFile]
    keys: Mapping[str, KeyFile]
    staged_paths: Mapping[str, Path]
    damages: Mapping[str, str]
    foreign_files: tuple[str, ...]

    @property
    def last_number(self) -> int:
        """The greatest commit number in the lake's metadata and file names."""
        numbers = [each.number for each in (self.snapshot, self.older_snapshot, self.pending) if each is not None]
        return max([*numbers, *(commit_of(path) for path in (*self.rows, *self.keys, *self.damages)), 0])

    def current_path(self, path: str) -> Path:
        """Return the current path of a file, which may still be staged."""
        return self.staged_paths.get(path, self.root / path)


def take_inventory(root: Path) -> Inventory:
    """Read all files of a lake."""
    damages: dict[str, str] = {}

    def metadata(path: Path, kind: type[T]) -> T | None:
        try:
            return read_json(path, kind)
        except StoreCorrupt as error:
            damages[str(path.relative_to(root))] = error.why.partition(";")[0]
            return None

    # 1. The pending commit has the names of files that are still staged.
    pending = metadata(pending_path(root), PendingCommit)
    staged_paths = {}
    for staged, target in {} if pending is None else dict(pending.moves).items():
        if not (root / target).exists():
            staged_paths[target] = root / METADATA_DIRECTORY / "staging" / staged
    found = sorted({*list_data_files(root), *staged_paths})
    foreign_files = tuple(path for path in found if not _COMMIT.fullmatch(Path(path).name))
    # 2. Read the footer of every data file that a commit wrote.
    rows: dict[str, RowFile] = {}
    keys: dict[str, KeyFile] = {}
    for path in found:
        if path in foreign_files:
            continue
        current = staged_paths.get(path, root / path)
        if path.startswith(METADATA_DIRECTORY):
            _read(current, path, lambda file, path: key_file_entry(file, path, commit_of(path)), keys, damages)
        else:
            _read(current, path, row_file_entry, rows, damages)
    # 3. Read the other metadata files and their older copies.
    return Inventory(
        root,
        metadata(snapshot_path(root), Snapshot),
        metadata(_copy(snapshot_path(root)), Snapshot),
        pending,
        metadata(progress_path(root), dict[str, ArchiveProgress]),
        metadata(_copy(progress_path(root)), dict[str, ArchiveProgress]),
        rows,
        keys,
        staged_paths,
        damages,
        foreign_files,
    )


def commit_of(path: str) -> int:
    """Return the number of the commit that wrote a data file, 0 for foreign files."""
    match = _COMMIT.fullmatch(Path(path).name)
    return int(match[1]) if match else 0


def _read(
    file: Path, path: str, entry: Callable[[Path, str], T], entries: dict[str, T], damages: dict[str, str]
) -> None:
    """Read the footer of a data file; add its entry to `entries`, or the error to `damages`."""
    try:
        entries[path] = entry(file, path)
    except FileNotFoundError:
        damages[path] = "the file is missing"
    except (pa.ArrowException, OSError, AttributeError, StopIteration, ValueError) as error:
        damages[path] = f"the file cannot be read: {first_line(error)}"


def _copy(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def brokers_of(found: Inventory, file: RowFile) -> frozenset[str] | None:
    """Return the brokers of a file's messages by footer statistics, None if these are inconclusive."""
    footer = pq.read_metadata(found.current_path(file.path))
    names: set[str] = set()
    for least, most in row_group_bounds(footer, "brokerName"):
        if least != most:
            return None
        names.add(str(least))
    return frozenset(names)


def queue_offset_bounds(found: Inventory, file: RowFile) -> list[tuple[int, int]]:
    """Return the minimum and maximum queue offset of each row group of a file."""
    return row_group_bounds(pq.read_metadata(found.current_path(file.path)), "queueOffset")


def addresses(found: Inventory, file: RowFile) -> dict[str, pa.Table]:
    """Read the addresses and ids of a file's messages, by broker name."""
    names = ["brokerName", "queueId", "queueOffset", "commitLogOffset", "storeSize", "msgId"]
    with pq.ParquetFile(found.current_path(file.path)) as opened:
        table = opened.read(names)
    brokers = pc.unique(table["brokerName"]).to_pylist()
    return {name: table.filter(pc.equal(table["brokerName"], name)) for name in sorted(brokers)}
