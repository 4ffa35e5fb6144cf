"""The lake: archived messages as Parquet, an index of their keys, and the protocol by which both come to be.

    <lake>/topic=<topic>/date=<UTC date of storeTimestamp>/<commit>-<number>.parquet    messages
    <lake>/_rucola/keys/<commit>-<number>.parquet                                       key index (see `key_index`)
    <lake>/_rucola/snapshot.json    which files there are, and how far everything is archived (see `snapshot`)
    <lake>/_rucola/progress.json    the latter alone, for the stores' deleteOnlyArchived
    <lake>/_rucola/pending.json     a commit that is being carried out
    <lake>/_rucola/staging/<run>/   files of a run that is not committed yet
    <lake>/_rucola/aside/<commit>/  files that a repair could not account for, under their old paths
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

**Damage is refused, never read around.** A writer checks that every file of the snapshot is there in its size, and no
commit overwrites a file. The job `repair` restores a damaged lake; its commit is a whole snapshot of its own.

The lake must be on a file system of this machine that renames atomically.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rucola.errors import ConfigError, StoreCorrupt, StoreError
from rucola.files import replace_file, sync_directory
from rucola.spark.lake.snapshot import (
    METADATA_DIRECTORY,
    ArchiveProgress,
    KeyFile,
    PendingCommit,
    RowFile,
    Snapshot,
    check_file,
    check_files,
    furthest_progress,
    lake_damage,
    pending_path,
    progress_path,
    read_json,
    read_snapshot,
    snapshot_path,
)
from rucola.spark.source.schema import COLUMNS, ddl

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


class LakeInUse(StoreError):
    """Another run is writing to the lake."""


class LakeWriter:
    """The lake in one directory, as its writer sees it. Made by `open_lake`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._staging = root / METADATA_DIRECTORY / "staging"
        run = self._staging / uuid.uuid4().hex
        self.staged_rows = run / "rows"
        """Where this run writes messages, partitioned by `PARTITION_COLUMNS`."""
        self.staged_keys = run / "keys"
        """Where this run writes the key index of those messages."""

    def snapshot(self) -> Snapshot:
        """Return what the lake holds."""
        return read_snapshot(self.root)

    def progress(self) -> Mapping[str, ArchiveProgress]:
        """Return how far each store and each live broker is archived, by broker name."""
        return self.snapshot().progress

    def publish(
        self,
        progress: Mapping[str, ArchiveProgress] | None = None,
        replaces: Collection[str] = (),
        *,
        keep_replaced_ms: int = KEEP_REPLACED_MS,
    ) -> PendingCommit:
        """Make the staged files part of the lake, in place of the files `replaces`, and `progress` that of stores.

        Files that were replaced longer ago than `keep_replaced_ms` are removed. Returns the commit.
        """
        before, now_ms = self.snapshot(), time.time_ns() // 1_000_000
        number = before.number + 1
        rows, row_moves = self.staged_row_files(number)
        keys, key_moves = self.staged_key_files(number)
        removes = frozenset(each.path for each in before.replaced if each.at_ms + keep_replaced_ms <= now_ms)
        moves = row_moves | key_moves
        commit = PendingCommit(number, now_ms, moves, rows, keys, progress or {}, frozenset(replaces), removes)
        self.commit(commit)
        return commit

    def staged_row_files(self, number: int) -> tuple[tuple[RowFile, ...], dict[str, str]]:
        """Return the staged files of messages as commit `number` has them, and where each goes."""
        rows, moves = [], {}
        for count, path in enumerate(sorted(self.staged_rows.glob("*/*/*.parquet"))):
            place = f"{path.parent.relative_to(self.staged_rows)}/{number:010d}-{count:05d}.parquet"
            rows.append(row_file(path, place))
            moves[str(path.relative_to(self._staging))] = place
        return tuple(rows), moves

    def staged_key_files(self, number: int) -> tuple[tuple[KeyFile, ...], dict[str, str]]:
        """Return the staged files of the key index as commit `number` has them, and where each goes."""
        keys, moves = [], {}
        for count, path in enumerate(sorted(self.staged_keys.glob("*.parquet"))):
            place = f"{METADATA_DIRECTORY}/keys/{number:010d}-{count:05d}.parquet"
            keys.append(key_file(path, place, number))
            moves[str(path.relative_to(self._staging))] = place
        return tuple(keys), moves

    def commit(self, commit: PendingCommit) -> None:
        """Make a commit of staged files durable and carry it out. Raises StoreCorrupt if it would overwrite a file."""
        for staged, place in commit.moves.items():
            if (self.root / place).exists() and (self._staging / staged).exists():
                raise lake_damage(
                    self.root, self.root / place, 0, "a file that no commit names has the place of a new one"
                )
            _sync(self._staging / staged if (self._staging / staged).exists() else self.root / place)
        replace_file(pending_path(self.root), msgspec.json.encode(commit))
        self.finish()

    def finish(self) -> None:
        """Carry out a pending commit, publish the progress, and leave nothing in staging.

        Raises StoreCorrupt if the pending commit does not follow the snapshot, or its files are damaged.
        """
        path = pending_path(self.root)
        commit = read_json(path, PendingCommit)
        snapshot = Snapshot() if commit is not None and commit.is_repair else self.snapshot()
        if commit is not None and snapshot.number != commit.number:
            if snapshot.number != commit.number - 1 and not commit.is_repair:
                why = f"commit {commit.number} is pending, but the snapshot is that of commit {snapshot.number}"
                raise lake_damage(self.root, path, 0, why)
            self._move(commit)
            self._set_aside(commit.asides)
            snapshot = commit.after(snapshot)
            replace_file(snapshot_path(self.root), msgspec.json.encode(snapshot))
        elif commit is None:
            self._check_published(snapshot)
        if snapshot.number:
            progress = msgspec.json.encode(snapshot.progress)
            replace_file(progress_path(self.root), msgspec.json.format(progress, indent=1))
        if commit is not None:
            for removed in commit.removes:
                (self.root / removed).unlink(missing_ok=True)
            path.unlink()
        shutil.rmtree(self._staging, ignore_errors=True)

    def _check_published(self, snapshot: Snapshot) -> None:
        """Raise StoreCorrupt if more is published than is in the snapshot, which must be an old one then."""
        try:
            published = read_json(progress_path(self.root), dict[str, ArchiveProgress]) or {}
        except StoreCorrupt:
            return  # it is written again, from the snapshot
        for name, progress in published.items():
            known = snapshot.progress.get(name)
            if known is None or furthest_progress(known, progress) != known:
                why = f"the file is an old one: {METADATA_DIRECTORY}/progress.json has more of {name}"
                raise lake_damage(self.root, snapshot_path(self.root), 0, why)

    def _move(self, commit: PendingCommit) -> None:
        """Move staged files to their places, except those that are there already."""
        files: tuple[RowFile | KeyFile, ...] = (*commit.rows, *commit.keys)
        sizes = {file.path: file.size for file in files}
        for source, place in commit.moves.items():
            path, target = self._staging / source, self.root / place
            if path.exists():
                check_file(self.root, path, sizes[place])
                if target.exists():
                    raise lake_damage(self.root, target, 0, f"the file has the place of {path}")
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
            else:
                check_file(self.root, target, sizes[place])
        self._sync_parents(commit.moves.values())

    def _set_aside(self, asides: Mapping[str, str]) -> None:
        """Move files out of the lake's way, except those that were moved already."""
        for source, place in asides.items():
            path, target = self.root / source, self.root / place
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
        self._sync_parents([*asides, *asides.values()])

    def _sync_parents(self, places: Iterable[str]) -> None:
        directories = {parent for place in places for parent in Path(place).parents}
        for directory in sorted(directories, reverse=True):
            if (self.root / directory).is_dir():
                sync_directory(self.root / directory)


@contextmanager
def open_lake(root: str | Path) -> Iterator[LakeWriter]:
    """Open the lake in a directory for writing, make it if it is new, and finish what an earlier run left.

    Raises ConfigError for what cannot hold a lake, LakeInUse when another run is writing to it, StoreCorrupt for a lake
    that is damaged: messages of a missing file must not count as archived.
    """
    if "://" in str(root):
        raise ConfigError(f"{root} is no local path; the lake must lie on a file system of this machine")
    root = Path(root).absolute()
    own = root / METADATA_DIRECTORY
    if root.exists() and not own.exists() and (not root.is_dir() or any(root.iterdir())):
        if next(root.glob("topic=*"), None) is not None:
            raise lake_damage(root, own, 0, "the directory is missing, but there are messages of a lake")
        raise ConfigError(f"{root} holds other things than a lake; give an empty or a new directory")
    own.mkdir(parents=True, exist_ok=True)
    with locked(root):
        lake = LakeWriter(root)
        lake.finish()
        snapshot = lake.snapshot()
        check_files(root, (*snapshot.rows, *snapshot.keys))
        yield lake


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Be the one run that writes to the lake in a directory. Raises LakeInUse when another run is."""
    lock = os.open(root / METADATA_DIRECTORY / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LakeInUse(f"another run is writing to {root}; wait until it has ended") from error
        yield
    finally:
        os.close(lock)


def read_lake(spark: SparkSession, root: str | Path, files: Sequence[RowFile] | None = None) -> DataFrame:
    """Return all archived messages, or those in some of the files, with the columns of `schema.COLUMNS` and `date`.

    What is archived or compacted later changes nothing about the rows of this DataFrame. Topics stay text: reading the
    directory without a schema, Spark would take topics such as `007` for numbers. Raises StoreCorrupt if a file is
    missing or truncated.
    """
    root = Path(root).absolute()
    chosen = read_snapshot(root).rows if files is None else files
    check_files(root, chosen)
    return read_rows(spark, root, [str(root / file.path) for file in chosen])


def read_rows(spark: SparkSession, directory: Path, paths: Sequence[str]) -> DataFrame:
    """Return the rows of files that lie under a directory as those of a lake do."""
    if not paths:
        return spark.createDataFrame([], _DDL)
    reader = spark.read.schema(_DDL).option("basePath", str(directory))
    return reader.parquet(*paths).select(*_COLUMNS)


def row_file(path: Path, place: str) -> RowFile:
    """Return the entry of a file of messages that is, or shall be, at `place`, counted from the lake."""
    topic, date = topic_and_date(Path(place))
    footer = pq.read_metadata(path)
    return RowFile(place, topic, date, footer.num_rows, path.stat().st_size, *bounds(footer, "commitLogOffset"))


def topic_and_date(path: Path) -> tuple[str, str]:
    """Return the topic and the day of the messages in a file, which its directories say."""
    topic, date = (unquote(part.partition("=")[2]) for part in path.parts[-3:-1])
    return topic, date


def key_file(path: Path, place: str, run: int) -> KeyFile:
    """Return the entry of a file of the key index that is, or shall be, at `place`."""
    footer = pq.read_metadata(path)
    return KeyFile(place, run, footer.num_rows, path.stat().st_size, *bounds(footer, "hash"))


@contextmanager
def open_parquet(root: Path, file: RowFile | KeyFile) -> Iterator[pq.ParquetFile]:
    """Open a file of the lake in a directory. What cannot be read of it raises StoreCorrupt."""
    path = root / file.path
    check_file(root, path, file.size)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, coerce_int96_timestamp_unit="us") as opened:
            yield opened
    except (pa.ArrowException, OSError) as error:
        raise lake_damage(root, path, 0, f"the file cannot be read: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def bounds(footer: pq.FileMetaData, column: str) -> tuple[int, int]:
    """Return the least and the greatest number in a column of a file that has rows."""
    ranges = row_group_bounds(footer, column)
    return min(least for least, _ in ranges), max(most for _, most in ranges)


def row_group_bounds(footer: pq.FileMetaData, column: str) -> list[tuple[Any, Any]]:
    """Return the least and the greatest value in a column of each row group, as its statistics have them."""
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
