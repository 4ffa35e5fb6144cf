"""Writer of a lake, and the protocol that makes a run's files part of it.

    <lake>/topic=<topic>/date=<UTC date of storeTimestamp>/<commit>-<number>.parquet    messages
    <lake>/_rucola/keys/<commit>-<number>.parquet    key index (see `key_index`)
    <lake>/_rucola/snapshot.json    the live files and the archive progress (see `snapshot`)
    <lake>/_rucola/progress.json    a copy of the progress, read by brokers with deleteOnlyArchived
    <lake>/_rucola/pending.json     the commit in progress, a redo record
    <lake>/_rucola/staging/<run>/   files of a run that is not committed
    <lake>/_rucola/aside/<commit>/  files that a repair could not account for, under their former paths
    <lake>/_rucola/lock             locked by the run that writes

Topics are escaped in paths as Hive does: `%RETRY%g` is `topic=%25RETRY%25g`.

**Commit protocol.** Every step is durable before the next one begins.

    step                                                a crash before it is complete leaves
    1  write row and key files to staging, and compare  the old lake; the next run deletes the staged files and archives
       their footers with what was to be written        the same messages again
    2  fsync the staged files                           the same
    3  write pending.json: staged files, their paths,   the same; the file appears atomically by a rename. **This rename
       the files they replace, the new progress         commits the run**: from here on the commit is always completed
    4  move the staged files to their paths             some files moved; readers still use the old snapshot. The next
                                                        run moves the remaining ones
    5  replace snapshot.json                            all files moved, old snapshot; repeated. After it, readers see
                                                        the whole commit
    6  replace progress.json                            brokers see less progress than there is, so they delete less
    7  delete files replaced long ago, pending.json     garbage; the next run deletes it
       and the staging directory

`finish` performs steps 4 to 7. Each of them is idempotent, so the next run completes an interrupted commit by calling
`finish` first. Progress never exceeds the rows, nor the rows the keys: all three change with one snapshot.

**Readers** use the files that the snapshot names, so they see all of a commit or nothing. Files replaced by compaction
are kept for `KEEP_REPLACED_MS`, for running queries. Tools that list the directory themselves see a commit file by
file, and replaced files next to their replacements until these are deleted.

**Damage** is an error, never skipped. A writer verifies existence and size of every file in the snapshot, and no commit
overwrites a file. The job `repair` restores a damaged lake.

The lake must be on a file system that renames atomically, mounted by driver and workers at the same path.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from rucola.errors import ConfigError, StoreCorrupt, StoreError
from rucola.files import (
    check_ownership,
    local_path,
    make_directory,
    open_file,
    open_inside,
    replace_file,
    sync_directory,
)
from rucola.spark.lake.data_files import key_file_entry, row_file_entry
from rucola.spark.lake.snapshot import (
    METADATA_DIRECTORY,
    ArchiveProgress,
    KeyFile,
    PendingCommit,
    RowFile,
    Snapshot,
    check_file,
    check_files,
    check_links,
    furthest_progress,
    lake_damage,
    pending_path,
    progress_path,
    read_json,
    read_snapshot,
    snapshot_path,
)
from rucola.spark.shared_files import SharedPiece, not_shared, share
from rucola.system_calls import sync_all

KEEP_REPLACED_MS: Final = 60 * 60 * 1000
"""How long files that compaction has replaced are kept for running queries."""


class LakeInUse(StoreError):
    """Another run holds the lock of the lake."""


class LakeWriter:
    """Writer of the lake in one directory, made by `open_lake`. Its methods require the lock (`locked`)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._staging = root / METADATA_DIRECTORY / "staging"
        self._run = run = self._staging / uuid.uuid4().hex
        self.staged_rows = run / "rows"
        """Directory for this run's row files, partitioned by `PARTITION_COLUMNS`."""
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
        return read_snapshot(self.root)

    def progress(self) -> Mapping[str, ArchiveProgress]:
        """Return the archive progress by broker name."""
        return self.snapshot().progress

    def publish(
        self,
        progress: Mapping[str, ArchiveProgress] | None = None,
        replaces: Collection[str] = (),
        *,
        rows: int = 0,
        entries: int = 0,
        keep_replaced_ms: int = KEEP_REPLACED_MS,
    ) -> PendingCommit:
        """Commit the staged files, of `rows` messages and `entries` of the key index, and return the commit.

        The files `replaces` leave the snapshot; those replaced more than `keep_replaced_ms` ago are deleted. Raises
        DirectoryNotShared if the staged files hold less, or more.
        """
        before, now_ms = self.snapshot(), time.time_ns() // 1_000_000
        number = before.number + 1
        row_files, row_moves = self._staged_row_files(number, rows)
        key_files, key_moves = self.staged_key_files(number, entries)
        removes = frozenset(each.path for each in before.replaced if each.at_ms + keep_replaced_ms <= now_ms)
        moves = row_moves | key_moves
        replaced = frozenset(replaces)
        commit = PendingCommit(number, now_ms, moves, row_files, key_files, progress or {}, replaced, removes)
        self.commit(commit)
        return commit

    def _staged_row_files(self, number: int, expected: int) -> tuple[tuple[RowFile, ...], dict[str, str]]:
        """Return entries and moves {path below staging: path in the lake} of the staged row files of a commit."""
        rows, moves = [], {}
        for count, path in enumerate(sorted(self.staged_rows.glob("*/*/*.parquet"))):
            # The second file of commit 12 becomes topic=T/date=2024-05-01/0000000012-00001.parquet.
            target = f"{path.parent.relative_to(self.staged_rows)}/{number:010d}-{count:05d}.parquet"
            rows.append(row_file_entry(path, target))
            moves[str(path.relative_to(self._staging))] = target
        if sum(file.rows for file in rows) != expected:
            raise not_shared(self.root)
        return tuple(rows), moves

    def staged_key_files(self, number: int, expected: int) -> tuple[tuple[KeyFile, ...], dict[str, str]]:
        """Return entries and moves of the staged key files; DirectoryNotShared unless they have `expected` entries."""
        keys, moves = [], {}
        for count, path in enumerate(sorted(self.staged_keys.glob("*.parquet"))):
            target = f"{METADATA_DIRECTORY}/keys/{number:010d}-{count:05d}.parquet"
            keys.append(key_file_entry(path, target, number))
            moves[str(path.relative_to(self._staging))] = target
        if sum(file.entries for file in keys) != expected:
            raise not_shared(self.root)
        return tuple(keys), moves

    def commit(self, commit: PendingCommit) -> None:
        """Carry out steps 2 to 7 of the protocol. Raises StoreCorrupt if the commit would overwrite a file."""
        # Step 2. A file that is not in staging is at its path already.
        for staged, target in commit.moves.items():
            source, path = self._staging / staged, self.root / target
            if path.exists() and source.exists():
                raise lake_damage(self.root, path, 0, "the file belongs to no commit and has the path of a new file")
            sync_file(source if source.exists() else path)
        # Step 3. From the rename within on, the commit is completed by this run or the next.
        replace_file(pending_path(self.root), msgspec.json.encode(commit))
        self.finish()

    def finish(self) -> None:
        """Complete any pending commit (steps 4 to 7); StoreCorrupt if it does not follow the snapshot or is damaged."""
        path = pending_path(self.root)
        commit = read_json(path, PendingCommit)
        # The commit of a repair is complete in itself; the snapshot that it replaces may be unreadable.
        snapshot = Snapshot() if commit is not None and commit.is_repair else self.snapshot()
        # With the commit's own number the snapshot is replaced already: the crash came after step 5.
        if commit is not None and snapshot.number != commit.number:
            if snapshot.number != commit.number - 1 and not commit.is_repair:
                why = f"commit {commit.number} is pending, but the snapshot is that of commit {snapshot.number}"
                raise lake_damage(self.root, path, 0, why)
            # Step 4.
            self.move_staged(commit)
            self._set_aside(commit.asides)
            # Step 5.
            snapshot = commit.after(snapshot)
            replace_file(snapshot_path(self.root), msgspec.json.encode(snapshot))
        elif commit is None:
            self._check_published(snapshot)
        # Step 6. Without a pending commit this restores a lost progress.json.
        if snapshot.number:
            progress = msgspec.json.encode(snapshot.progress)
            replace_file(progress_path(self.root), msgspec.json.format(progress, indent=1))
        # Step 7.
        if commit is not None:
            for removed in commit.removes:
                (self.root / removed).unlink(missing_ok=True)
            path.unlink()
        shutil.rmtree(self._staging, ignore_errors=True)

    def _check_published(self, snapshot: Snapshot) -> None:
        """Raise StoreCorrupt if progress.json exceeds the snapshot, which then is an outdated copy."""
        try:
            published = read_json(progress_path(self.root), dict[str, ArchiveProgress]) or {}
        except StoreCorrupt:
            return  # `finish` rewrites it from the snapshot
        for name, progress in published.items():
            known = snapshot.progress.get(name)
            if known is None or furthest_progress(known, progress) != known:
                why = f"the file is outdated: {METADATA_DIRECTORY}/progress.json has more progress of {name}"
                raise lake_damage(self.root, snapshot_path(self.root), 0, why)

    def move_staged(self, commit: PendingCommit) -> None:
        """Move staged files to their paths, unless moved before a crash, and fsync the directories."""
        files: tuple[RowFile | KeyFile, ...] = (*commit.rows, *commit.keys)
        sizes = {file.path: file.size for file in files}
        for staged, target in commit.moves.items():
            source, path = self._staging / staged, self.root / target
            if source.exists():
                check_file(self.root, source, sizes[target])
                if path.exists():
                    raise lake_damage(self.root, path, 0, f"the file has the path to which {source} must be moved")
                path.parent.mkdir(parents=True, exist_ok=True)
                source.replace(path)
            else:
                check_file(self.root, path, sizes[target])
        self.sync_parents(commit.moves.values())

    def _set_aside(self, asides: Mapping[str, str]) -> None:
        """Move files that a repair rejects, unless moved before a crash, and fsync the directories."""
        for source, target in asides.items():
            path, aside = self.root / source, self.root / target
            if not aside.exists():
                aside.parent.mkdir(parents=True, exist_ok=True)
                path.replace(aside)
        self.sync_parents([*asides, *asides.values()])

    def sync_parents(self, paths: Iterable[str]) -> None:
        """Fsync all directories of these paths, innermost first, so that renames in them are durable."""
        directories = {parent for path in paths for parent in Path(path).parents}
        for directory in sorted(directories, reverse=True):
            if (self.root / directory).is_dir():
                sync_directory(self.root / directory)


@contextmanager
def open_lake(root: str | Path) -> Iterator[LakeWriter]:
    """Open a lake for writing: create it if needed, lock it, complete an interrupted commit.

    Raises ConfigError if the directory cannot hold a lake, LakeInUse if another run is writing, StoreError if other
    users can change it or it contains links, StoreCorrupt if it is damaged: a missing file's messages must not count as
    archived.
    """
    root = local_path(root).absolute()
    own = root / METADATA_DIRECTORY
    if root.exists() and not own.exists() and (not root.is_dir() or any(root.iterdir())):
        if next(root.glob("topic=*"), None) is not None:
            raise lake_damage(root, own, 0, "the directory is missing, but there are messages of a lake")
        raise ConfigError(f"{root} is not empty and not a lake; give an empty or a new directory", subject=root)
    check_ownership(root)
    check_links(root)
    make_directory(own)
    with locked(root):
        lake = LakeWriter(root)
        lake.finish()
        snapshot = lake.snapshot()
        check_files(root, (*snapshot.rows, *snapshot.keys))
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
