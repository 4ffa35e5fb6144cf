"""Writer of a lake, and the steps that make a run's files part of it.

    <lake>/data/topic=<topic>/date=<UTC date of storeTimestamp>/<run>-<number>.parquet    messages
    <lake>/metadata/                             Iceberg's metadata of `rucola.messages` (see `tables`)
    <lake>/_rucola/keys/data/                    the key index, `rucola.keys` (see `key_index`)
    <lake>/_rucola/keys/metadata/                its metadata
    <lake>/_rucola/keys/data/staging/<run>/      what a run that has not ended has written

A lake with the embedded catalog is in a local directory, and has more files in `_rucola`:

    catalog.db       the catalog
    lock             locked by the run that writes
    progress.json    a copy of the progress, read by brokers with deleteOnlyArchived
    files.json       a copy of the list of row files, also for brokers

Topics are escaped in paths as Hive does: `%RETRY%g` is `topic=%25RETRY%25g`.

**Commit.** Every step is durable before the next one begins.

    step                                                a crash before it is complete leaves
    1  create the run's staging directory; write row    the old lake; a later run deletes the files, and archives the
       and key files; compare their footers with what   same messages again
       was to be written
    2  fsync the files                                  the same
    3  commit the key files                             the same, and entries without messages, which do no harm
    4  commit the row files with the new progress       the same. **From here on the run counts**
    5  replace version-hint.text, files.json,           brokers see less progress than there is, so they delete less
       progress.json
    6  expire old snapshots, delete their files, and    garbage; a later run deletes it
       the staging directory

Files are never renamed, since object stores cannot. No reader sees a file before a commit names it.

**Several runs at once.** With the embedded catalog only one run writes at a time. Other engines do not know its lock,
and other catalogs have none: of two commits with the progress of one store, the second is refused (`Tables.commit`).

**Damage** is an error, never skipped. A writer verifies existence and size of every file in the snapshot.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow.parquet as pq

from rucola.errors import ConfigError
from rucola.files import check_ownership, local_path, make_directory, open_inside, read_inside, replace_file
from rucola.spark.lake.adoption import adopt
from rucola.spark.lake.data_files import topic_and_day
from rucola.spark.lake.key_index import OpenFile, merge
from rucola.spark.lake.runs import Run
from rucola.spark.lake.snapshot import (
    METADATA_DIRECTORY,
    STAGING_DIRECTORY,
    ArchiveProgress,
    Snapshot,
    check_files,
    check_links,
    lake_damage,
)
from rucola.spark.lake.storage import Directory
from rucola.spark.lake.tables import LakeInUse, Tables, open_tables, partition_of
from rucola.spark.shared_files import SharedPiece, not_shared, share

KEEP_REPLACED_MS: Final = 60 * 60 * 1000
"""How long files that compaction has replaced are kept for running queries."""


class AddedFiles(NamedTuple):
    """Files that a commit added: their count and bytes, and entries and bytes of the key index."""

    file_count: int
    file_size: int
    key_count: int
    key_size: int


@dataclass(frozen=True)
class StagedFiles:
    """Paths of row and key files that are complete but not committed, and the numbers of their rows.

    `has_leftovers` if tasks that failed have left others, which a later run deletes.
    """

    rows: Sequence[str] = ()
    keys: Sequence[str] = ()
    row_count: int = 0
    entry_count: int = 0
    has_leftovers: bool = False


class LakeWriter:
    """Writer of one lake, made by `open_lake`. `progress_directory` is where the copies for brokers are written."""

    def __init__(self, tables: Tables, progress_directory: Path | None) -> None:
        self.storage = tables.storage
        self.location = tables.storage.location
        self._tables = tables
        self._progress_directory = progress_directory
        self._run = Run(self.storage, STAGING_DIRECTORY)
        self.run = self._run.id
        """The prefix of the names of this run's files."""
        self.staging = self._run.directory
        """Directory for entries of the key index that are not yet in the run of the commit, in files sorted by hash."""

    def begin(self) -> None:
        """Create the staging directory, by which later runs know that this one may have left files."""
        self._run.begin()

    @contextmanager
    def sharing(self) -> Iterator[SharedPiece | None]:
        """Yield a token in the staging directory, which tasks check before they write; None in an object store."""
        self.begin()
        directory = self.storage.root / self.staging if isinstance(self.storage, Directory) else None
        with nullcontext() if directory is None else share(directory) as token:
            yield token

    def staged_names(self) -> set[str]:
        """Return the names under which tasks have written, without their numbers."""
        names = (file.path.rpartition("/")[2] for file in self.storage.files(self.staging))
        return {name.rpartition("-")[0] for name in names if name.endswith(".parquet")}

    def merge_entries(self, paths: Sequence[str]) -> tuple[list[str], int]:
        """Merge staged files of entries into one run of key files; return their paths and the number of entries."""
        return self.merge_keys([partial(self._open, path) for path in paths])

    @contextmanager
    def _open(self, path: str) -> Iterator[pq.ParquetFile]:
        try:
            with self.storage.reading(path) as source, pq.ParquetFile(source) as opened:
                yield opened
        except FileNotFoundError as error:
            raise not_shared(self.location) from error

    def merge_keys(self, files: Sequence[OpenFile]) -> tuple[list[str], int]:
        """Merge files of the key index into one run, and return its paths and the number of entries."""
        self.begin()
        return merge(files, self.storage, self.run)

    def snapshot(self) -> Snapshot:
        """Read the current snapshot."""
        return self._tables.snapshot()

    def progress(self) -> Mapping[str, ArchiveProgress]:
        """Return the archive progress by broker name."""
        return self._tables.progress()

    def publish(
        self,
        staged: StagedFiles = StagedFiles(),
        progress: Mapping[str, ArchiveProgress] | None = None,
        replaces: Collection[str] = (),
        replaced_keys: Collection[str] = (),
        *,
        keep_replaced_ms: int = KEEP_REPLACED_MS,
    ) -> AddedFiles:
        """Commit staged files, and return what was added.

        The row files `replaces` and the key files `replaced_keys` leave the snapshot; those replaced more than
        `keep_replaced_ms` ago are deleted. Raises DirectoryNotShared if the staged files hold less, or more; LakeInUse
        if another run has archived in between.
        """
        # Step 1.
        self.begin()
        tables = self._tables
        try:
            rows = [tables.data_file(tables.messages, path, partition_of(*topic_and_day(path))) for path in staged.rows]
            keys = [tables.data_file(tables.keys, path, []) for path in staged.keys]
        except FileNotFoundError as error:
            raise not_shared(self.location) from error
        counts = [sum(file.record_count for file in added) for added in (rows, keys)]
        if counts != [staged.row_count, staged.entry_count]:
            raise not_shared(self.location)
        # Step 2.
        self.storage.sync([*staged.rows, *staged.keys])
        self._run.check_age()
        # Steps 3 and 4.
        if keys or replaced_keys:
            tables.commit(tables.keys, keys, replaced_keys)
        if rows or replaces or progress:
            tables.commit(tables.messages, rows, replaces, progress)
        # Steps 5 and 6.
        self.finish(self.snapshot())
        self.expire(keep_replaced_ms, keeps_staging=staged.has_leftovers)
        sizes = [sum(file.file_size_in_bytes for file in added) for added in (rows, keys)]
        return AddedFiles(len(rows), sizes[0], staged.entry_count, sizes[1])

    def forget(self, paths: Collection[str]) -> None:
        """Remove row files (see `Tables.forget`). Raises StoreCorrupt if one of the others is damaged, too."""
        self._tables.forget(paths)
        snapshot = self.snapshot()
        self.tell_files(snapshot)  # brokers must not believe in what is gone, also if another file is damaged
        check_files(self.storage, snapshot.rows)
        self.finish(snapshot)

    def expire(self, keep_replaced_ms: int, *, keeps_staging: bool = False) -> None:
        """Expire snapshots, and delete files that none needs any longer (see `Tables.expire`)."""
        self.begin()
        self._tables.expire(keep_replaced_ms)
        if not keeps_staging:
            self._run.end()

    def finish(self, snapshot: Snapshot) -> None:
        """Tell brokers and other engines what the tables hold, which a killed run may not have done."""
        if snapshot.number and self._tables.is_embedded:
            self._tables.write_hint()
        self.tell_files(snapshot)  # first: a broker deletes only what the progress covers
        if snapshot.number and self._progress_directory is not None:
            progress = msgspec.json.format(msgspec.json.encode(snapshot.progress), indent=1)
            _replace_if_changed(self._progress_directory / "progress.json", progress)

    def tell_files(self, snapshot: Snapshot) -> None:
        """Tell brokers which files there are, and what was forgotten."""
        if snapshot.number and self._progress_directory is not None:
            files: dict[str, object] = {"rows": snapshot.rows, "forgotten": snapshot.forgotten}
            if self.location != str(self._progress_directory.parent):
                files["location"] = self.location
            _replace_if_changed(self._progress_directory / "files.json", msgspec.json.encode(files))

    def recover(self, *, is_locked: bool) -> None:
        """Delete what dead runs have left (see `Run.recover`)."""
        self._run.recover(self._tables.delete_orphans, is_locked=is_locked)


def _replace_if_changed(path: Path, content: bytes) -> None:
    with suppress(FileNotFoundError):
        if read_inside(path.parent, path) == content:
            return
    replace_file(path, content)


@contextmanager
def open_lake(
    root: str | Path,
    catalog: str | None = None,
    *,
    progress_directory: Path | None = None,
    checks_rows: bool = True,
    checks_keys: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[LakeWriter]:
    """Open a lake for writing: create it if needed, lock it, delete what dead runs have left.

    Without a catalog (see `catalogs`), the lake is in a directory with the embedded one. Raises ConfigError if the
    directory cannot hold a lake or the catalog cannot be used, LakeInUse if another run is writing, StoreError if other
    users can change the directory or it contains links, StoreCorrupt if the lake is damaged: a missing file's messages
    must not count as archived. Without `checks_rows`, row files may be damaged, without `checks_keys` the key index.
    `progress` gets how many files of a lake of an earlier version are adopted, and their number.
    """
    with (
        prepared(root) if catalog is None else nullcontext(root) as place,
        open_tables(place, catalog, creates=True) as tables,
    ):
        assert tables is not None
        if tables.is_embedded and isinstance(tables.storage, Directory):
            adopt(tables.storage.root, tables, progress)
            progress_directory = tables.storage.root
        copies = None if progress_directory is None else progress_directory / METADATA_DIRECTORY
        if copies is not None:
            make_directory(copies)
        lake = LakeWriter(tables, copies)
        lake.recover(is_locked=tables.is_embedded)
        snapshot = lake.snapshot()
        lake.tell_files(snapshot)
        check_files(tables.storage, snapshot.keys if checks_keys else ())
        if checks_rows:
            check_files(tables.storage, snapshot.rows)
            lake.finish(snapshot)
        yield lake


@contextmanager
def prepared(root: str | Path) -> Iterator[Path]:
    """Create and lock the directory of a lake with the embedded catalog. Raises as `open_lake` does."""
    root = local_path(root).resolve()
    own = root / METADATA_DIRECTORY
    if root.exists() and not own.exists() and (not root.is_dir() or any(root.iterdir())):
        if next(root.glob("metadata/*.metadata.json"), None) is not None or any(root.glob("topic=*")):
            raise lake_damage(own, 0, "the directory is missing, but there are messages of a lake")
        raise ConfigError(f"{root} is not empty and not a lake; give an empty or a new directory", subject=root)
    check_ownership(root)
    check_links(root)
    make_directory(own)
    with locked(root):
        yield root


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the exclusive lock of a lake. Raises LakeInUse if another process holds it."""
    lock = open_inside(root, root / METADATA_DIRECTORY / "lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LakeInUse(f"another run is writing to {root}; wait until it has ended") from error
        yield
    finally:
        os.close(lock)
