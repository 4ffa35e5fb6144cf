"""Writer of a lake, and the steps that make a run's files part of it.

    <lake>/data/topic=<topic>/date=<UTC date of storeTimestamp>/<run>-<number>.parquet    messages
    <lake>/metadata/                Iceberg's metadata of `rucola.messages` (see `tables`)
    <lake>/_rucola/catalog.db       the catalog
    <lake>/_rucola/keys/            the key index, `rucola.keys`, and its metadata (see `key_index`)
    <lake>/_rucola/progress.json    a copy of the progress, read by brokers with deleteOnlyArchived
    <lake>/_rucola/files.json       a copy of the list of row files, also for brokers
    <lake>/_rucola/staging/<run>/   files of a run that is not committed
    <lake>/_rucola/lock             locked by the run that writes

Topics are escaped in paths as Hive does: `%RETRY%g` is `topic=%25RETRY%25g`.

**Commit.** Every step is durable before the next one begins.

    step                                                a crash before it is complete leaves
    1  write row and key files to staging, and compare  the old lake; the next run deletes the staged files and archives
       their footers with what was to be written        the same messages again
    2  fsync the staged files, move them to new names   the same; the next run deletes files that no table names
    3  commit the key files                             the same, and entries without messages, which do no harm
    4  commit the row files with the new progress       the same. **From here on the run counts**
    5  replace version-hint.text, files.json,           brokers see less progress than there is, so they delete less
       progress.json
    6  expire old snapshots, delete their files, and    garbage; the next run deletes it
       the staging directory

**Damage** is an error, never skipped. A writer verifies existence and size of every file in the snapshot.

Only one run writes at a time. Other engines do not know the lock; their commits are seen by step 4 (`Tables.commit`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow.parquet as pq

from rucola.errors import ConfigError
from rucola.files import (
    check_ownership,
    local_path,
    make_directory,
    open_file,
    open_inside,
    replace_file,
    sync_directory,
)
from rucola.spark.lake.adoption import adopt
from rucola.spark.lake.data_files import topic_and_day
from rucola.spark.lake.snapshot import (
    METADATA_DIRECTORY,
    ArchiveProgress,
    Snapshot,
    check_files,
    check_links,
    lake_damage,
    progress_path,
)
from rucola.spark.lake.tables import LakeInUse, Tables, Value, open_tables, partition_of
from rucola.spark.shared_files import SharedPiece, not_shared, share
from rucola.system_calls import sync_all

KEEP_REPLACED_MS: Final = 60 * 60 * 1000
"""How long files that compaction has replaced are kept for running queries."""


class AddedFiles(NamedTuple):
    """Files that a commit added: their count and bytes, and entries and bytes of the key index."""

    file_count: int
    file_size: int
    key_count: int
    key_size: int


class LakeWriter:
    """Writer of the lake in one directory, made by `open_lake`. Its methods require the lock (`locked`)."""

    def __init__(self, root: Path, tables: Tables) -> None:
        self.root = root
        self._tables = tables
        self._staging = root / METADATA_DIRECTORY / "staging"
        self._name = uuid.uuid4().hex
        self._run = run = self._staging / self._name
        self.staged_rows = run / "rows"
        """Directory for this run's row files, by `partition_directory`."""
        self.staged_entries = run / "entries"
        """Directory for entries of the key index that are not yet in the run of the commit, in files sorted by hash."""
        self.staged_keys = run / "keys"

    @contextmanager
    def sharing(self) -> Iterator[SharedPiece]:
        """Yield a token in this run's staging directory, which tasks check before they write there."""
        make_directory(self._run)
        with share(self._run) as token:
            yield token

    def snapshot(self) -> Snapshot:
        """Read the current snapshot."""
        return self._tables.snapshot()

    def progress(self) -> Mapping[str, ArchiveProgress]:
        """Return the archive progress by broker name."""
        return self._tables.progress()

    def publish(
        self,
        progress: Mapping[str, ArchiveProgress] | None = None,
        replaces: Collection[str] = (),
        replaced_keys: Collection[str] = (),
        *,
        rows: int = 0,
        entries: int = 0,
        keep_replaced_ms: int = KEEP_REPLACED_MS,
    ) -> AddedFiles:
        """Commit the staged files, of `rows` messages and `entries` of the key index, and return what was added.

        The row files `replaces` and the key files `replaced_keys` leave the snapshot; those replaced more than
        `keep_replaced_ms` ago are deleted. Raises DirectoryNotShared if the staged files hold less, or more; LakeInUse
        if another run has archived in between.
        """
        # Step 1.
        staged_rows, staged_keys = (
            sorted(each) for each in (self.staged_rows.glob("*/*/*.parquet"), self.staged_keys.glob("*.parquet"))
        )
        if (_count(staged_rows), _count(staged_keys)) != (rows, entries):
            raise not_shared(self.root)
        # Step 2.
        make_directory(self._run)
        added_rows: list[tuple[Path, list[Value]]] = []
        for number, path in enumerate(staged_rows):
            directory = self.root / "data" / path.parent.relative_to(self.staged_rows)
            added_rows.append((self._moved(path, directory, number), partition_of(*topic_and_day(path))))
        added_keys: list[tuple[Path, list[Value]]] = [
            (self._moved(path, self.root / METADATA_DIRECTORY / "keys", number), [])
            for number, path in enumerate(staged_keys)
        ]
        for directory in {path.parent for path, _ in [*added_rows, *added_keys]}:
            sync_directory(directory)
        # Steps 3 and 4.
        if added_keys or replaced_keys:
            self._tables.commit(self._tables.keys, added_keys, replaced_keys)
        if added_rows or replaces or progress:
            self._tables.commit(self._tables.messages, added_rows, replaces, progress)
        # Steps 5 and 6.
        self.finish(self.snapshot())
        self.expire(keep_replaced_ms)
        sizes = [sum(path.stat().st_size for path, _ in added) for added in (added_rows, added_keys)]
        return AddedFiles(len(added_rows), sizes[0], entries, sizes[1])

    def _moved(self, source: Path, directory: Path, number: int) -> Path:
        path = directory / f"{self._name}-{number:05d}.parquet"
        make_directory(directory)
        sync_file(source)
        source.replace(path)
        return path

    def expire(self, keep_replaced_ms: int) -> None:
        """Expire snapshots, and delete files that none needs any longer (see `Tables.expire`)."""
        make_directory(self._run)  # by which the next run knows that a killed one has left files
        self._tables.expire(keep_replaced_ms)
        shutil.rmtree(self._staging, ignore_errors=True)

    def finish(self, snapshot: Snapshot) -> None:
        """Tell brokers and other engines what the tables hold, which a killed run may not have done."""
        if snapshot.number:
            self._tables.write_hint()
            # The files first: a broker deletes only what the progress covers.
            replace_file(self.root / METADATA_DIRECTORY / "files.json", msgspec.json.encode({"rows": snapshot.rows}))
            progress = msgspec.json.encode(snapshot.progress)
            replace_file(progress_path(self.root), msgspec.json.format(progress, indent=1))

    def recover(self) -> None:
        """Delete what a killed run has left."""
        if self._staging.exists():
            self._tables.delete_orphans()
            shutil.rmtree(self._staging, ignore_errors=True)


@contextmanager
def open_lake(root: str | Path, *, checks_keys: bool = True) -> Iterator[LakeWriter]:
    """Open a lake for writing: create it if needed, lock it, delete what a killed run has left.

    Raises ConfigError if the directory cannot hold a lake, LakeInUse if another run is writing, StoreError if other
    users can change it or it contains links, StoreCorrupt if it is damaged: a missing file's messages must not count as
    archived. Without `checks_keys`, files of the key index may be damaged.
    """
    root = local_path(root).resolve()
    own = root / METADATA_DIRECTORY
    if root.exists() and not own.exists() and (not root.is_dir() or any(root.iterdir())):
        if next(root.glob("metadata/*.metadata.json"), None) is not None or any(root.glob("topic=*")):
            raise lake_damage(own, 0, "the directory is missing, but there are messages of a lake")
        raise ConfigError(f"{root} is not empty and not a lake; give an empty or a new directory", subject=root)
    check_ownership(root)
    check_links(root)
    make_directory(own)
    with locked(root), open_tables(root, creates=True) as tables:
        assert tables is not None
        adopt(root, tables)
        lake = LakeWriter(root, tables)
        lake.recover()
        snapshot = lake.snapshot()
        check_files(root, (*snapshot.rows, *(snapshot.keys if checks_keys else ())))
        lake.finish(snapshot)
        yield lake


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


def sync_file(path: Path) -> None:
    """Fsync a file that another process or library has written."""
    descriptor = open_file(path)
    try:
        sync_all(descriptor)
    finally:
        os.close(descriptor)


def _count(paths: Iterable[Path]) -> int:
    return sum(pq.read_metadata(path).num_rows for path in paths)
