"""The lake: archived messages as Parquet, an index of their keys, and the protocol by which both come to be.

    <lake>/topic=<topic>/date=<UTC date of storeTimestamp>/<commit>-<number>.parquet    messages
    <lake>/_rucola/keys/<commit>-<number>.parquet                                       key index (see `key_index`)
    <lake>/_rucola/snapshot.json    which files there are, and how far everything is archived (see `snapshot`)
    <lake>/_rucola/progress.json    the latter alone, for the stores' deleteOnlyArchived
    <lake>/_rucola/pending.json     a commit that is being carried out
    <lake>/_rucola/staging/<run>/   files of a run that is not committed yet
    <lake>/_rucola/lock             held by the one run that writes

Topics are escaped in paths as Hive does: `%RETRY%g` is `topic=%25RETRY%25g`.

**A run counts once, whenever it is killed.** Its files, rows and keys, are written to a staging directory of its own
and made durable. Then `pending.json` names every file, the place where it goes, what it replaces and the progress it
makes; from then on the run counts. The files are moved, the snapshot is replaced, then the progress, and `pending.json`
is removed. The next run begins by doing again what `pending.json` says, where every step that was done before is left
out, and removes what lies in staging. So progress is never ahead of the rows, nor of their keys.

**A reader sees all of a commit or nothing,** since it reads the files that the snapshot names (`read_lake`, `lookup`,
the job `search`). Files that compaction replaced stay for `KEEP_REPLACED_MS`, which is how long a query may take that
began before. Tools that list the directory for themselves see a commit file by file, and after a compaction what was
replaced beside what replaced it, until a later commit has removed it.

The lake must be on a file system of this machine that renames atomically.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as pq

from rucola.errors import ConfigError, StoreError
from rucola.files import replace_file, sync_directory
from rucola.spark.schema import COLUMNS, ddl
from rucola.spark.snapshot import (
    OWN,
    KeyFile,
    Progress,
    Replaced,
    RowFile,
    Snapshot,
    read_json,
    read_snapshot,
    snapshot_path,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_COLUMNS: Final = ("topic", "date")
_COLUMNS: Final = (*COLUMNS, "date")
_DDL: Final = f"{ddl(tuple(COLUMNS))}, date date"

ROW_GROUP_SIZE: Final = 4 << 20
"""Bytes in a row group, about, since a search by key reads one of them for each message it finds."""
ROW_OPTIONS: Final = {"parquet.block.size": str(ROW_GROUP_SIZE)}
"""The options with which Spark writes rows."""

KEEP_REPLACED_MS: Final = 60 * 60 * 1000
"""For how long files stay that compaction has replaced."""


@dataclass(frozen=True)
class Pending:
    """A commit: staged files and their places, the entries of the new files, what they replace, what is removed."""

    number: int
    at_ms: int
    moves: Mapping[str, str]
    rows: tuple[RowFile, ...]
    keys: tuple[KeyFile, ...]
    progress: Mapping[str, Progress] = field(default_factory=dict)
    replaces: frozenset[str] = frozenset()
    removes: frozenset[str] = frozenset()

    def after(self, before: Snapshot) -> Snapshot:
        """Return the snapshot that this commit makes of the one before."""
        taken_out = tuple(Replaced(path, self.at_ms) for path in sorted(self.replaces))
        return Snapshot(
            self.number,
            tuple(file for file in before.rows if file.path not in self.replaces) + self.rows,
            tuple(file for file in before.keys if file.path not in self.replaces) + self.keys,
            {**before.progress, **self.progress},
            tuple(each for each in before.replaced if each.path not in self.removes) + taken_out,
        )


class LakeInUse(StoreError):
    """Another run is writing to the lake."""


class Lake:
    """The lake in one directory, for the one who writes to it. Made by `open_lake`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own = root / OWN
        self._pending_path = self._own / "pending.json"
        self._staging = self._own / "staging"
        run = self._staging / uuid.uuid4().hex
        self.staged_rows = run / "rows"
        """Where this run writes messages, partitioned by `PARTITION_COLUMNS`."""
        self.staged_keys = run / "keys"
        """Where this run writes the key index of those messages."""

    def snapshot(self) -> Snapshot:
        """Return what the lake holds."""
        return read_snapshot(self.root)

    def progress(self) -> Mapping[str, Progress]:
        """Return how far each store and each live broker is archived, by broker name."""
        return self.snapshot().progress

    def publish(
        self,
        progress: Mapping[str, Progress] | None = None,
        replaces: Collection[str] = (),
        *,
        keep_replaced_ms: int = KEEP_REPLACED_MS,
    ) -> Pending:
        """Make the staged files part of the lake, in place of the files `replaces`, and `progress` that of stores.

        Files that were replaced longer ago than `keep_replaced_ms` are removed. Returns the commit.
        """
        before, now_ms = self.snapshot(), time.time_ns() // 1_000_000
        number = before.number + 1
        moves: dict[str, str] = {}
        rows: list[RowFile] = []
        keys: list[KeyFile] = []
        for count, path in enumerate(sorted(self.staged_rows.glob("*/*/*.parquet"))):
            place = f"{path.parent.relative_to(self.staged_rows)}/{number:010d}-{count:05d}.parquet"
            rows.append(_row_file(path, place))
            moves[str(path.relative_to(self._staging))] = place
        for count, path in enumerate(sorted(self.staged_keys.glob("*.parquet"))):
            place = f"{OWN}/keys/{number:010d}-{count:05d}.parquet"
            keys.append(_key_file(path, place, number))
            moves[str(path.relative_to(self._staging))] = place
        for staged in moves:
            _sync(self._staging / staged)
        removes = frozenset(each.path for each in before.replaced if each.at_ms + keep_replaced_ms <= now_ms)
        commit = Pending(number, now_ms, moves, tuple(rows), tuple(keys), progress or {}, frozenset(replaces), removes)
        replace_file(self._pending_path, msgspec.json.encode(commit))
        self.finish()
        return commit

    def finish(self) -> None:
        """Carry out what is pending, and leave nothing in staging."""
        commit = read_json(self._pending_path, Pending)
        if commit is not None:
            snapshot = self.snapshot()
            if snapshot.number < commit.number:
                self._move(commit.moves)
                snapshot = commit.after(snapshot)
                replace_file(snapshot_path(self.root), msgspec.json.encode(snapshot))
            progress = msgspec.json.encode(snapshot.progress)
            replace_file(self._own / "progress.json", msgspec.json.format(progress, indent=1))
            for path in commit.removes:
                (self.root / path).unlink(missing_ok=True)
            self._pending_path.unlink()
        shutil.rmtree(self._staging, ignore_errors=True)

    def _move(self, moves: Mapping[str, str]) -> None:
        """Move staged files to their places, those that are not there yet."""
        for source, place in moves.items():
            path, target = self._staging / source, self.root / place
            if path.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
            elif not target.exists():
                raise StoreError(f"{target} of an interrupted run is gone, and so is {path}; the lake is incomplete")
        directories = {parent for place in moves.values() for parent in Path(place).parents}
        for directory in sorted(directories, reverse=True):
            sync_directory(self.root / directory)


@contextmanager
def open_lake(root: str | Path) -> Iterator[Lake]:
    """Open the lake in a directory for writing, make it if it is new, and finish what an earlier run left.

    Raises ConfigError for what cannot hold a lake, LakeInUse when another run is writing to it.
    """
    if "://" in str(root):
        raise ConfigError(f"{root} is no local path; the lake must lie on a file system of this machine")
    root = Path(root).absolute()
    own = root / OWN
    if root.exists() and not own.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} holds other things than a lake; give an empty or a new directory")
    own.mkdir(parents=True, exist_ok=True)
    lock = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LakeInUse(f"another run is writing to {root}; wait until it has ended") from error
        lake = Lake(root)
        lake.finish()
        yield lake
    finally:
        os.close(lock)


def read_lake(spark: SparkSession, root: str | Path, files: Sequence[RowFile] | None = None) -> DataFrame:
    """Return all archived messages, or those in some of the files, with the columns of `schema.COLUMNS` and `date`.

    What is archived or compacted later changes nothing about the rows of this DataFrame. Topics stay text: reading the
    directory without a schema, Spark would take topics such as `007` for numbers.
    """
    root = Path(root).absolute()
    chosen = read_snapshot(root).rows if files is None else files
    return read_rows(spark, root, [str(root / file.path) for file in chosen])


def read_rows(spark: SparkSession, directory: Path, paths: Sequence[str]) -> DataFrame:
    """Return the rows of files that lie under a directory as those of a lake do."""
    if not paths:
        return spark.createDataFrame([], _DDL)
    reader = spark.read.schema(_DDL).option("basePath", str(directory))
    return reader.parquet(*paths).select(*_COLUMNS)


def _row_file(path: Path, place: str) -> RowFile:
    topic, date = topic_and_date(Path(place))
    footer = pq.read_metadata(path)
    return RowFile(place, topic, date, footer.num_rows, path.stat().st_size, *bounds(footer, "commitLogOffset"))


def topic_and_date(path: Path) -> tuple[str, str]:
    """Return the topic and the day of the messages in a file, which its directories say."""
    topic, date = (unquote(part.partition("=")[2]) for part in path.parts[-3:-1])
    return topic, date


def _key_file(path: Path, place: str, run: int) -> KeyFile:
    footer = pq.read_metadata(path)
    return KeyFile(place, run, footer.num_rows, path.stat().st_size, *bounds(footer, "hash"))


def bounds(footer: pq.FileMetaData, column: str) -> tuple[int, int]:
    """Return the least and the greatest number in a column of a file that has rows."""
    ranges = row_group_bounds(footer, column)
    return min(least for least, _ in ranges), max(most for _, most in ranges)


def row_group_bounds(footer: pq.FileMetaData, column: str) -> list[tuple[int, int]]:
    """Return the least and the greatest number in a column of each row group, as its statistics have them."""
    at = next(number for number, name in enumerate(footer.schema.names) if name == column)
    statistics: list[Any] = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
    return [(each.min, each.max) for each in statistics]


def _sync(path: Path) -> None:
    """Wait until a file's bytes are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
