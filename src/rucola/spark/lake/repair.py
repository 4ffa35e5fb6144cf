"""Repair: restores a lake whose own files are missing or damaged, or says what is lost.

1. An interrupted commit is completed if all of its files exist. Otherwise it is dropped: it was never published, so the
   next run archives the same messages again.
2. The base is the snapshot or, if it is lost, the copy of the previous one; without both there is nothing to go by.
3. If the base is not the newest snapshot, files of later commits are added, and the progress is the furthest of its
   copies. The key index and the progress show whether messages of these commits are lost.
4. Missing files are replaced by those from which a compaction made them, if these still exist. Files whose messages
   are all in other files are left out.
5. The key index is made again from the rows if any of its files is damaged, or if the rows are others than the base's.
6. One commit publishes a self-contained snapshot (see `rucola.spark.lake.writer`).

No file is deleted: files that belong to no commit are moved to `_rucola/aside/<commit>/`. A repair can be killed at any
time and started again. Needs no Spark.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rucola.errors import StoreCorrupt, StoreError
from rucola.files import local_path, make_directory
from rucola.spark.lake.data_files import first_line, key_file_entry, open_parquet, row_file_entry
from rucola.spark.lake.key_index import ENTRY, ENTRY_COLUMNS, entries_of, merge, write_entries
from rucola.spark.lake.parquet_files import read_file
from rucola.spark.lake.snapshot import (
    METADATA_DIRECTORY,
    ArchiveProgress,
    KeyFile,
    PendingCommit,
    RowFile,
    Snapshot,
    check_links,
    furthest_progress,
    list_data_files,
    pending_path,
    progress_path,
    read_json,
    snapshot_path,
)
from rucola.spark.lake.writer import LakeWriter, locked
from rucola.spark.source.array_conversions import Array, ints
from rucola.spark.source.grouping import Groups

T = TypeVar("T")

_COMMIT: Final = re.compile(r"(\d{10})-\d{5,}\.parquet")
_PENDING: Final = f"{METADATA_DIRECTORY}/pending.json"
_MAX_SENTENCES: Final = 10


@dataclass(frozen=True)
class LakeRepairResult:
    """Result of a repair, or (`is_dry`) its plan: sentences about damage and lost messages, and files to set aside."""

    lake: str
    findings: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    rows: int = 0
    row_files: int = 0
    key_files: int = 0
    asides: tuple[str, ...] = ()
    is_dry: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether the lake was undamaged."""
        return not self.findings and not self.losses

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dict."""
        return {
            "lake": self.lake,
            "dryRun": self.is_dry,
            "sound": self.is_sound,
            "findings": list(self.findings),
            "losses": list(self.losses),
            "rows": self.rows,
            "rowFiles": self.row_files,
            "keyFiles": self.key_files,
            "setAside": list(self.asides),
        }


def run(lake: str | Path, *, dry_run: bool = False, allow_loss: bool = False) -> LakeRepairResult:
    """Restore a damaged lake, or on an error nothing.

    Raises StoreError if there is no lake, if both copies of its snapshot are lost, or if messages are lost and
    `allow_loss` is false; LakeInUse if another run is writing.
    """
    root = local_path(lake).absolute()
    own = root / METADATA_DIRECTORY
    if not own.is_dir() and next(root.glob("topic=*/date=*/*.parquet"), None) is None:
        raise StoreError(
            f"{root} is not a lake; give a directory into which `rucola pipeline archive` has written", subject=root
        )
    check_links(root)
    if not dry_run:
        make_directory(own)
    # A dry run of a lake without `_rucola` does not lock, because the lock file would have to be created.
    with locked(root) if own.is_dir() else nullcontext():
        return _Repair(LakeWriter(root)).run(dry_run=dry_run, allow_loss=allow_loss)


@dataclass
class _Repair:
    lake: LakeWriter
    findings: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    asides: list[str] = field(default_factory=list)
    damages: dict[str, str] = field(default_factory=dict)
    """The reason why a file cannot be read, by its path in the lake."""

    def run(self, *, dry_run: bool, allow_loss: bool) -> LakeRepairResult:
        root = self.lake.root
        if self._has_interrupted_commit(dry_run=dry_run):
            return _Repair(self.lake, self.findings).run(dry_run=dry_run, allow_loss=allow_loss)
        # 1. What is there.
        snapshot, older = (self._json(path, Snapshot) for path in _copies(snapshot_path(root)))
        pending = self._json(pending_path(root), PendingCommit)
        published = [self._json(path, dict[str, ArchiveProgress]) for path in _copies(progress_path(root))]
        paths = list_data_files(root)
        foreign = [path for path in paths if not _commit_of(path)]
        rows = self._entries(paths, "topic=", row_file_entry)
        keys = self._entries(paths, METADATA_DIRECTORY, lambda file, path: key_file_entry(file, path, _commit_of(path)))
        base = snapshot or older or Snapshot()
        if snapshot is None and older is None and (paths or any(published)):
            raise StoreError(
                f"{root} has lost both copies of its snapshot, {snapshot_path(root)}, so that its commits are unknown; "
                "restore _rucola from a backup, or archive into a new directory",
                subject=root,
            )
        self._name_metadata(base, snapshot, pending, published, foreign)

        # 2. The row files of the lake, and those of commits after the base; these were complete before a pending one.
        limit = base.number + 1 if pending_path(root).exists() else 1 << 63
        limit = pending.number if pending is not None else limit
        missing = [file for file in base.rows if not self._is_whole(file, rows)]
        added = [file for path, file in rows.items() if base.number < _commit_of(path) < limit]
        places = {(file.topic, file.date) for file in missing}
        spare = [rows[each.path] for each in base.replaced if each.path in rows]
        spare = [file for file in spare if (file.topic, file.date) in places]
        kept = [file for file in base.rows if file not in missing] + spare + added
        if spare or added:
            kept = self._without_redundant(kept)
        self._name_missing(missing, base, kept, added)
        if added:
            count = sum(file.rows for file in added)
            self.findings.append(f"{len(added)} files with {count} messages are not in the snapshot; they are added")

        # 3. The progress, and the messages that it says are archived.
        progress = dict(base.progress)
        if added:
            for name, copy in ((name, copy) for each in published for name, copy in (each or {}).items()):
                progress[name] = furthest_progress(progress.get(name, copy), copy)
            self._name_lost_messages(base, progress, added, keys, limit)

        # 4. The key index, which is kept if it is that of these rows.
        lost_keys = [file for file in base.keys if not self._is_whole(file, keys)]
        is_indexed = not added and not spare and not lost_keys
        replaced = {each.path for each in base.replaced} & {*rows, *keys} - {file.path for file in kept}
        if not is_indexed:
            replaced |= keys.keys()
        named = {*replaced, *(file.path for file in kept), *(file.path for file in base.keys if is_indexed), *foreign}
        self._set_aside([path for path in paths if path not in named])

        result = LakeRepairResult(
            str(root),
            tuple(self.findings),
            tuple(_first_few(self.losses)),
            sum(file.rows for file in kept),
            len(kept),
            len(base.keys),
            tuple(sorted(set(self.asides))),
            dry_run,
        )
        if dry_run:
            return result
        if self.losses and not allow_loss:
            raise StoreError(
                f"{root} has lost {'; '.join(result.losses)}. Restore the files from a backup, or allow the loss "
                f"(--allow-loss) to repair the lake without these messages"
            )
        if result.is_sound:
            self.lake.finish()
            return result
        number = max([base.number, *map(_commit_of, paths), 0 if pending is None else pending.number]) + 1
        index, moves = self._index(kept, number) if not is_indexed else (base.keys, {})
        self.lake.commit(
            PendingCommit(
                number=number,
                at_ms=time.time_ns() // 1_000_000,
                moves=moves,
                rows=tuple(kept),
                keys=index,
                progress=progress,
                replaces=frozenset(replaced),
                is_repair=True,
                asides={path: f"{METADATA_DIRECTORY}/aside/{number:010d}/{path}" for path in result.asides},
            )
        )
        return replace(result, key_files=len(index))

    def _has_interrupted_commit(self, *, dry_run: bool) -> bool:
        """Complete a pending commit, and return whether there was one that could be completed."""
        root = self.lake.root
        try:
            pending = read_json(pending_path(root), PendingCommit)
            snapshot = Snapshot() if pending is not None and pending.is_repair else self.lake.snapshot()
        except StoreCorrupt:
            return False
        if dry_run or pending is None or (snapshot.number + 1 != pending.number and not pending.is_repair):
            return False
        try:
            self.lake.finish()
        except StoreCorrupt:
            return False
        self.findings.append(f"{_PENDING}: commit {pending.number} was interrupted; it is completed")
        return True

    def _json(self, path: Path, kind: type[T]) -> T | None:
        try:
            return read_json(path, kind)
        except StoreCorrupt as error:
            self.damages[str(path.relative_to(self.lake.root))] = error.why.partition(";")[0]
            return None

    def _entries(self, paths: Iterable[str], prefix: str, entry: Callable[[Path, str], T]) -> dict[str, T]:
        """Return the snapshot entries of the readable files below a directory that a commit wrote."""
        entries = {}
        for path in paths:
            if path.startswith(prefix) and _commit_of(path):
                try:
                    entries[path] = entry(self.lake.root / path, path)
                except (pa.ArrowException, OSError, AttributeError, StopIteration, ValueError) as error:
                    self.damages[path] = f"the file cannot be read: {first_line(error)}"
        return entries

    def _name_metadata(
        self,
        base: Snapshot,
        snapshot: Snapshot | None,
        pending: PendingCommit | None,
        published: Sequence[Mapping[str, ArchiveProgress] | None],
        foreign: Iterable[str],
    ) -> None:
        root = self.lake.root
        for path in (*_copies(snapshot_path(root)), *_copies(progress_path(root))):
            name = str(path.relative_to(root))
            if name in self.damages:
                self.findings.append(f"{name}: {self.damages[name]}")
                self.asides.append(name)
            elif not path.exists() and path.suffix == ".json" and base.number:
                self.findings.append(f"{name}: the file is missing")
        if snapshot is not None and published[0] is not None and dict(published[0]) != dict(snapshot.progress):
            self.findings.append(f"{METADATA_DIRECTORY}/progress.json: it differs from the progress in the snapshot")
        if pending_path(root).exists() and (pending is None or snapshot is None or pending.number != snapshot.number):
            self.findings.append(f"{_PENDING}: the commit was interrupted, and is completed or dropped")
            staged = (root / METADATA_DIRECTORY / "staging").glob("*")
            self.asides += [str(path.relative_to(root)) for path in staged]
        self.findings += [f"{path}: not written by Rucola; it is left alone" for path in foreign]

    def _is_whole(self, file: RowFile | KeyFile, entries: Mapping[str, RowFile] | Mapping[str, KeyFile]) -> bool:
        """Return whether a file exists and equals its snapshot entry; if not, add a finding."""
        found = entries.get(file.path)
        if found == file:
            return True
        why = self.damages.get(file.path, "the file is missing")
        if found is not None:
            why = f"the file differs from its entry in the snapshot: {found.size} bytes instead of {file.size}"
        self.findings.append(f"{file.path}: {why}")
        return False

    def _without_redundant(self, files: Iterable[RowFile]) -> list[RowFile]:
        """Return the files without those whose messages are all in others, oldest first."""
        kept = sorted(files, key=lambda file: (file.topic, file.date, _commit_of(file.path)))
        for file in [*kept]:
            place = [other for other in kept if other != file and (other.topic, other.date) == (file.topic, file.date)]
            others = [other for other in place if other.least <= file.most and file.least <= other.most]
            if others and _is_within(self._addresses([file]), self._addresses(others)):
                kept.remove(file)
        return kept

    def _addresses(self, files: Iterable[RowFile]) -> dict[str, Array]:
        """Return the physical offsets of the messages in these files, by broker name."""
        found: dict[str, list[Array]] = {}
        for file in files:
            for batch in read_file(self.lake.root, file, ("brokerName", "commitLogOffset")):
                for name, offsets in _by(batch, ("brokerName",), "commitLogOffset"):
                    found.setdefault(name["brokerName"], []).append(offsets)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def _name_missing(
        self, missing: Iterable[RowFile], base: Snapshot, kept: Iterable[RowFile], added: Iterable[RowFile]
    ) -> None:
        def count(files: Iterable[RowFile], place: tuple[str, str]) -> int:
            return sum(file.rows for file in files if (file.topic, file.date) == place)

        missing = [*missing]
        for place in sorted({(file.topic, file.date) for file in missing}):
            paths = ", ".join(file.path for file in missing if (file.topic, file.date) == place)
            lost = count([*base.rows, *added], place) - count(kept, place)
            if lost > 0:
                self.losses.append(f"{lost} messages of {place[0]} on {place[1]}, which were in {paths}")
            else:
                self.findings.append(f"messages of {paths} are in other files, which take its place")

    def _name_lost_messages(
        self,
        base: Snapshot,
        progress: Mapping[str, ArchiveProgress],
        added: Iterable[RowFile],
        keys: Mapping[str, KeyFile],
        limit: int,
    ) -> None:
        """Name messages of commits after the base that the key index or the progress has, and no file."""
        root = self.lake.root
        held: dict[tuple[str, str], list[RowFile]] = {}
        ends: dict[tuple[str, str, str], int] = {}
        for file in added:
            held.setdefault((file.topic, file.date), []).append(file)
            for batch in read_file(root, file, ("brokerName", "queueId", "queueOffset")):
                for queue, offsets in _by(batch, ("brokerName", "queueId"), "queueOffset"):
                    key = queue["brokerName"], file.topic, str(queue["queueId"])
                    ends[key] = max(ends.get(key, 0), int(offsets.max()) + 1)
        indexed: dict[tuple[str, str], dict[str, list[Array]]] = {}
        for path, key_file in keys.items():
            if base.number < _commit_of(path) < limit:
                with open_parquet(root, key_file) as opened:
                    entries = opened.read().select(ENTRY.names).cast(ENTRY)
                for place, offsets in _by(entries, ("topic", "date", "brokerName"), "commitLogOffset"):
                    of_place = indexed.setdefault((place["topic"], str(place["date"])), {})
                    of_place.setdefault(place["brokerName"], []).append(offsets)
        for (topic, day), brokers in sorted(indexed.items()):
            there = self._addresses(held.get((topic, day), ()))
            for name, parts in sorted(brokers.items()):
                gone = np.setdiff1d(np.concatenate(parts), there.get(name, ()))
                if len(gone):
                    self.losses.append(f"{len(gone)} messages of {topic} on {day} from {name}, which the key index has")
        for name, each in sorted(progress.items()):
            before = base.progress.get(name, ArchiveProgress(0)).queues
            for topic, queues in sorted(each.queues.items()):
                for queue_id, end in sorted(queues.items()):
                    if max(ends.get((name, topic, queue_id), 0), before.get(topic, {}).get(queue_id, 0)) < end:
                        self.losses.append(f"messages of queue {queue_id} of {topic} from {name}, before offset {end}")

    def _set_aside(self, paths: Sequence[str]) -> None:
        if paths:
            self.asides += paths
            self.findings.append(f"{len(paths)} files that no commit accounts for: {', '.join(_first_few(paths))}")

    def _index(self, rows: Iterable[RowFile], number: int) -> tuple[tuple[KeyFile, ...], dict[str, str]]:
        """Make the key index of these rows in staging; return its files and their moves."""
        entries = []
        for count, file in enumerate(rows):
            batches = read_file(self.lake.root, file, ENTRY_COLUMNS)
            tables = [entries_of(batch, file.topic, file.date) for batch in batches]
            entries.append(self.lake.staged_entries / f"part-{count:05d}.parquet")
            write_entries(pa.concat_tables(tables), entries[-1])
        written = merge([partial(pq.ParquetFile, path) for path in entries], self.lake.staged_keys)
        return self.lake.staged_key_files(number, written)


def _by(
    rows: pa.Table | pa.RecordBatch, names: Sequence[str], column: str
) -> Iterator[tuple[Mapping[str, Any], Array]]:
    """Yield the distinct values of the columns `names`, each with the numbers of another column."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    groups, numbers = Groups(table, names), ints(table[column])
    for code, each in enumerate(groups.keys.to_pylist()):
        yield each, numbers[groups.codes == code]


def _is_within(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return all(name in other and bool(np.isin(offsets, other[name]).all()) for name, offsets in one.items())


def _copies(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(f"{path.name}.bak")


def _commit_of(path: str) -> int:
    """Return the number of the commit that wrote a data file, 0 for other files."""
    match = _COMMIT.fullmatch(Path(path).name)
    return int(match[1]) if match else 0


def _first_few(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - _MAX_SENTENCES
    return [*sentences[:_MAX_SENTENCES], *([f"and {more} more"] if more > 0 else [])]
