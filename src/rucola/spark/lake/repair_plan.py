"""Plan of a repair: the lake restorable from its own files, and the losses. Needs no Spark and writes nothing.

1. The base is the snapshot or, if it is lost, the copy of the previous one, or else an empty lake.
2. A pending commit with all of its files is added. Any other pending commit is dropped: it was never published, so the
   next run archives the same messages again.
3. Files of commits after the base are added. Progress is published after the files are in place, so a file without any
   published message belongs to a run that was not committed; it is set aside.
4. Files whose messages are all in other files were replaced by a compaction; the older ones are set aside.
5. The progress is the maximum over all copies or, if it is lost, derived from the rows. A store's progress that is
   ahead of the rows is a loss; it is set back, so that the next archive run adds what the store still has.
6. The key index is kept if the base is the snapshot itself, except for runs that lack a file. Otherwise it is built
   again from the rows, after the old entries were used to find lost messages (see `rucola.spark.jobs.lake_repair`).

No file is deleted: files that the plan cannot use are moved to `_rucola/aside/<commit>/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.errors import ConfigError
from rucola.spark.lake.file_inventory import Inventory, addresses, brokers_of, commit_of, queue_offset_bounds
from rucola.spark.lake.snapshot import (
    METADATA_DIRECTORY,
    ArchiveProgress,
    KeyFile,
    PendingCommit,
    RowFile,
    Snapshot,
    furthest_progress,
)
from rucola.spark.source.array_conversions import Array, ints

_SNAPSHOT: Final = f"{METADATA_DIRECTORY}/snapshot.json"
_PROGRESS: Final = f"{METADATA_DIRECTORY}/progress.json"
_PENDING: Final = f"{METADATA_DIRECTORY}/pending.json"
_FILES_IN_MEMORY: Final = 4


@dataclass(frozen=True)
class RepairPlan:
    """The content of the repaired lake, and the treatment of all other files."""

    number: int
    rows: tuple[RowFile, ...]
    keys: tuple[KeyFile, ...]
    progress: Mapping[str, ArchiveProgress]
    moves: Mapping[str, str]
    """Moves of a pending commit that is completed."""
    asides: tuple[str, ...]
    replaced: frozenset[str]
    """Files that are kept for a while for running queries."""
    rebuilds_index: bool
    completes_index: bool
    """Whether index entries are made for the rows that have none."""
    findings: tuple[str, ...]
    missing: tuple[str, ...]
    """Messages that were in missing or damaged files, and are in no other."""


class RepairPlanner:
    """Planner of one repair. `kinds` says whether a broker was archived live, if no file does."""

    def __init__(self, found: Inventory, kinds: Mapping[str, bool]) -> None:
        self._found = found
        self._kinds = kinds
        self._base = found.snapshot or found.older_snapshot or Snapshot()
        self._pending = completable(found, self._base)
        is_new = found.pending is not None and found.pending.number != self._base.number
        self._is_dropped = is_new and self._pending is None
        self._known = self._base if self._pending is None else self._pending.after(self._base)
        self._findings: list[str] = []
        self._missing: list[str] = []
        self._asides: list[str] = []
        # Bounded, so that a lake of any size can be repaired. Files are compared with their neighbours, so most are
        # read once.
        self._addresses = lru_cache(_FILES_IN_MEMORY)(lambda path: addresses(found, found.rows[path]))
        self._brokers = cache(lambda path: brokers_of(found, found.rows[path]))

    def plan(self) -> RepairPlan:
        """Make the plan. Raises ConfigError if it is unknown whether a broker was archived live."""
        self._name_damage()
        rows, added = self._rows()
        keys, replaced, rebuilds, completes = self._keys(rows, added)
        progress = self._progress(added)
        if not rebuilds:  # otherwise the old key index, which the job reads, tells more
            self._set_back(progress, rows)
        if self._is_dropped or _PENDING in self._found.damages:
            staged = (self._found.root / METADATA_DIRECTORY / "staging").glob("*")
            self._asides += [f"{METADATA_DIRECTORY}/staging/{path.name}" for path in staged]
        named = {*(file.path for file in rows), *(file.path for file in keys)}
        moves = {} if self._pending is None else self._pending.moves
        return RepairPlan(
            number=self._found.last_number + 1,
            rows=tuple(rows),
            keys=tuple(keys),
            progress=progress,
            moves={source: place for source, place in moves.items() if place in named},
            asides=tuple(sorted(set(self._asides))),
            replaced=frozenset(replaced),
            rebuilds_index=rebuilds,
            completes_index=completes,
            findings=tuple(self._findings),
            missing=tuple(self._missing),
        )

    def _name_damage(self) -> None:
        found = self._found
        for path in (_SNAPSHOT, f"{_SNAPSHOT}.bak", _PROGRESS, f"{_PROGRESS}.bak"):
            if path in found.damages:
                self._findings.append(f"{path}: {found.damages[path]}")
                self._asides.append(path)
        if _PENDING in found.damages:
            self._findings.append(f"{_PENDING}: {found.damages[_PENDING]}; its commit is dropped")
        is_first = self._pending is not None and self._pending.number == 1
        has_files = found.rows or found.keys or found.progress or found.older_snapshot or found.older_progress
        if found.snapshot is None and _SNAPSHOT not in found.damages and has_files and not is_first:
            self._findings.append(f"{_SNAPSHOT}: the file is missing")
        if found.progress is None and _PROGRESS not in found.damages and has_files and not is_first:
            self._findings.append(f"{_PROGRESS}: the file is missing")
        is_committed = found.snapshot is not None and self._pending is None
        if found.progress is not None and is_committed and dict(found.progress) != dict(self._known.progress):
            self._findings.append(f"{_PROGRESS}: it differs from the progress in the snapshot")
        if self._pending is not None:
            self._findings.append(f"{_PENDING}: commit {self._pending.number} was interrupted; it is completed")
        if self._is_dropped:
            self._findings.append(f"{_PENDING}: the commit does not follow the snapshot, or lacks files; it is dropped")
        self._findings += [f"{path}: not written by Rucola; it is left alone" for path in found.foreign_files]

    # Rows

    def _rows(self) -> tuple[list[RowFile], list[RowFile]]:
        """Return the row files of the repaired lake, and those among them that the base does not have."""
        # 1. Files of the base and of a pending commit, if they exist and equal their entries.
        found, known = self._found, self._known
        whole = {file.path for file in known.rows if self._is_whole(file, found.rows)}
        rows = [file for file in known.rows if file.path in whole]
        missing = [file for file in known.rows if file.path not in whole]
        # 2. Files that a missing file has replaced, and files of later commits.
        spare = self._replaced_by(missing)
        unnamed = [found.rows[path] for path in self._unnamed(found.rows)]
        added = [file for file in unnamed if commit_of(file.path) > self._base.number and self._counts(file)]
        rows += [*spare, *added]
        # 3. A compaction may be among the additions: drop the files whose messages are in others.
        redundant = self._redundant(rows) if spare or added else set()
        rows = [file for file in rows if file not in redundant]
        added = [file for file in added if file not in redundant]
        # 4. Report additions and losses, and set aside the rest.
        if added:
            count = sum(file.rows for file in added)
            self._findings.append(f"{len(added)} files with {count} messages are not in the snapshot; they are added")
        if missing:
            self._name_missing(missing, rows, added)
        unused = {*unnamed, *redundant}.difference(added, spare)
        damaged = {path for path in found.damages if path.startswith("topic=") and found.current_path(path).exists()}
        self._set_aside(damaged.union(file.path for file in unused), "messages")
        return rows, added

    def _replaced_by(self, missing: Sequence[RowFile]) -> list[RowFile]:
        """Return existing replaced files whose replacements by a compaction are missing."""
        places = {(file.topic, file.date) for file in missing}
        entries = [self._found.rows.get(each.path) for each in self._known.replaced]
        return [file for file in entries if file is not None and (file.topic, file.date) in places]

    def _name_missing(self, missing: Sequence[RowFile], rows: Sequence[RowFile], added: Sequence[RowFile]) -> None:
        def count(files: Iterable[RowFile], place: tuple[str, str]) -> int:
            return sum(file.rows for file in files if (file.topic, file.date) == place)

        for place in sorted({(file.topic, file.date) for file in missing}):
            paths = [file.path for file in missing if (file.topic, file.date) == place]
            lost = count((*self._known.rows, *added), place) - count(rows, place)
            if lost > 0:
                self._missing.append(f"{lost} messages of {place[0]} on {place[1]}, which were in {', '.join(paths)}")
            else:
                self._findings.append(f"messages of {', '.join(paths)} are in other files, which take its place")

    def _is_whole(self, file: RowFile | KeyFile, entries: Mapping[str, RowFile] | Mapping[str, KeyFile]) -> bool:
        """Return whether a file exists and equals its snapshot entry; if not, add a finding."""
        entry = entries.get(file.path)
        if entry == file:
            return True
        why = self._found.damages.get(file.path, "the file is missing")
        if entry is not None:
            why = f"the file differs from its entry in the snapshot: {entry.size} bytes instead of {file.size}"
            self._asides.append(file.path)
        self._findings.append(f"{file.path}: {why}")
        return False

    def _unnamed(self, paths: Iterable[str]) -> list[str]:
        known = self._known
        named: set[str] = {*(file.path for file in known.rows), *(file.path for file in known.keys)}
        named |= {each.path for each in known.replaced}
        named |= self._found.staged_paths.keys() | set(self._asides)
        return [path for path in paths if path not in named]

    def _counts(self, file: RowFile) -> bool:
        """Return whether the published progress, unless lost, includes a message of the file."""
        if self._is_dropped and self._found.pending is not None and file in self._found.pending.rows:
            return False
        published = self._found.progress
        if not published:
            return True
        # Usually the footer suffices: one broker, archived from its store.
        names = self._brokers(file.path)
        # One broker, archived from its store: all offsets of the file are of its log, and the smallest decides.
        single = published.get(min(names)) if names is not None and len(names) == 1 else None
        if single is not None and not single.is_live:
            return file.least < single.physical_offset
        # Otherwise compare each message: by physical offset for stores, by queue offset for live brokers.
        for name, table in self._addresses(file.path).items():
            progress = published.get(name)
            if progress is None:
                continue
            if not progress.is_live and pc.min(table["commitLogOffset"]).as_py() < progress.physical_offset:
                return True
            ends = progress.queues.get(file.topic, {})
            if progress.is_live and any(
                row["queueOffset"] < ends.get(str(row["queueId"]), 0)
                for row in table.select(["queueId", "queueOffset"]).to_pylist()
            ):
                return True
        return False

    def _redundant(self, files: Iterable[RowFile]) -> set[RowFile]:
        """Return the files whose messages are all in other files that are kept, oldest first."""
        by_place: dict[tuple[str, str], list[RowFile]] = {}
        for file in files:
            by_place.setdefault((file.topic, file.date), []).append(file)
        redundant: set[RowFile] = set()
        for left in by_place.values():
            # Oldest first: a compaction's output is newer than its input. Only overlapping files are compared.
            for file in sorted(left, key=lambda file: commit_of(file.path)):
                others = [
                    other
                    for other in left
                    if other is not file
                    and other.least <= file.most
                    and file.least <= other.most
                    and self._may_share(file, other)
                ]
                if others and self._are_in(file, others):
                    left.remove(file)
                    redundant.add(file)
        return redundant

    def _may_share(self, file: RowFile, other: RowFile) -> bool:
        one, another = self._brokers(file.path), self._brokers(other.path)
        return one is None or another is None or bool(one & another)

    def _are_in(self, file: RowFile, others: Sequence[RowFile]) -> bool:
        for name, table in self._addresses(file.path).items():
            tables = [self._addresses(other.path).get(name) for other in others]
            elsewhere = [_ints_of(each["commitLogOffset"]) for each in tables if each is not None]
            if not elsewhere or not np.isin(_ints_of(table["commitLogOffset"]), np.concatenate(elsewhere)).all():
                return False
        return True

    # Keys

    def _keys(self, rows: Sequence[RowFile], added: Collection[RowFile]) -> tuple[list[KeyFile], set[str], bool, bool]:
        """Return kept and replaced key files, and whether to rebuild or complete the index."""
        found = self._found
        in_use = {file.path for file in rows}
        replaced = {each.path for each in self._known.replaced if (found.root / each.path).exists()} - in_use
        damaged = [
            path
            for path in found.damages
            if path.startswith(f"{METADATA_DIRECTORY}/keys/") and found.current_path(path).exists()
        ]
        if found.snapshot is None or added:
            self._set_aside(damaged, "keys")
            old = {path for path in found.keys if path not in found.staged_paths}
            return [], (replaced | old) - set(self._asides), bool(rows), False
        # The files of a run have disjoint ranges of hashes: without one of them the run has only a part of its keys, so
        # the others of the run go as well.
        lost = {file.run for file in self._known.keys if not self._is_whole(file, found.keys)}
        self._set_aside([*damaged, *self._unnamed(found.keys)], "keys")
        kept = [file for file in self._known.keys if file.run not in lost]
        incomplete = {file.path for file in self._known.keys if file.run in lost and file.path in found.keys}
        return kept, (replaced | incomplete) - set(self._asides), False, bool(lost and rows)

    # ArchiveProgress

    def _progress(self, added: Sequence[RowFile]) -> dict[str, ArchiveProgress]:
        known = dict(self._known.progress)
        if self._found.snapshot is None or added:
            for copy in (self._found.progress, self._found.older_progress):
                for name, progress in (copy or {}).items():
                    known[name] = furthest_progress(known.get(name, progress), progress)
        stated = dict(known)
        for file in added:
            # Compared with the progress before any addition, so that the order of the files does not matter.
            if self._is_covered(file, stated):
                continue
            for name, table in self._addresses(file.path).items():
                before = known.get(name) or ArchiveProgress(0, is_live=self._is_live(name))
                known[name] = advanced(before, file.topic, table)
        return known

    def _set_back(self, progress: dict[str, ArchiveProgress], rows: Sequence[RowFile]) -> None:
        """Set progress of stores that is ahead of the rows back to these, and name the missing messages."""
        wanted = {
            (name, topic, int(queue_id)): end
            for name, each in progress.items()
            for topic, ends in each.queues.items()
            for queue_id, end in ends.items()
            if not each.is_live and end
        }
        for file in sorted(rows, key=lambda file: commit_of(file.path), reverse=True):
            # The last messages are mostly in the newest files; the footers of others show that they have none.
            ends = [end for (_, topic, _), end in wanted.items() if topic == file.topic]
            if ends and self._may_hold(file, ends):
                for name, table in self._addresses(file.path).items():
                    ids, offsets = _ints_of(table["queueId"]), _ints_of(table["queueOffset"])
                    for key in [key for key in wanted if key[:2] == (name, file.topic)]:
                        if ((ids == key[2]) & (offsets >= wanted[key] - 1)).any():
                            del wanted[key]
        if not self._missing:
            self._missing += [
                f"messages of queue {queue_id} of {topic} from {name}, before offset {end}"
                for (name, topic, queue_id), end in sorted(wanted.items())
            ]
        for name in {name for name, _, _ in wanted}:
            del progress[name]
            for file in rows:
                if name in self._addresses(file.path):
                    before = progress.get(name, ArchiveProgress(0))
                    progress[name] = advanced(before, file.topic, self._addresses(file.path)[name])

    def _may_hold(self, file: RowFile, ends: Sequence[int]) -> bool:
        """Return whether, by its footer, a file can have a message just before or after one of these queue offsets."""
        bounds = queue_offset_bounds(self._found, file)
        return any(most >= end - 1 for _, most in bounds for end in ends)

    def _is_covered(self, file: RowFile, progress: Mapping[str, ArchiveProgress]) -> bool:
        ends = [
            progress[name].physical_offset if name in progress and not progress[name].is_live else 0
            for name in self._brokers(file.path) or ()
        ]
        return bool(ends) and file.most < min(ends)

    def _is_live(self, name: str) -> bool:
        """Return whether a broker was archived live. A name that is a path is the default name of a store."""
        if name in self._kinds or name.startswith("/"):
            return self._kinds.get(name, False)
        raise ConfigError(
            f"it is unknown how {name} was archived; give --store {name} if it was from its store directory, or "
            f"--live {name}"
        )

    def _set_aside(self, paths: Collection[str], what: str) -> None:
        if paths:
            self._asides += paths
            few = ", ".join(sorted(paths)[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
            self._findings.append(f"{len(paths)} files of {what} that no commit accounts for: {few}")


def completable(found: Inventory, base: Snapshot) -> PendingCommit | None:
    """Return the pending commit if it is not in the base and all of its files exist, so that it can be completed."""
    pending = found.pending
    if pending is None or pending.number <= base.number:
        return None
    rows = all(found.rows.get(file.path) == file for file in pending.rows)
    keys = all(found.keys.get(file.path) == file for file in pending.keys)
    return pending if rows and keys else None


def advanced(progress: ArchiveProgress, topic: str, rows: pa.Table) -> ArchiveProgress:
    """Return the progress of a broker advanced by archived messages of a topic."""
    queues = {topic: dict(offsets) for topic, offsets in progress.queues.items()}
    of_topic = queues.setdefault(topic, {})
    queue_ids, offsets = _ints_of(rows["queueId"]), _ints_of(rows["queueOffset"])
    for queue_id in np.unique(queue_ids).tolist():
        end = int(offsets[queue_ids == queue_id].max()) + 1
        of_topic[str(queue_id)] = max(of_topic.get(str(queue_id), 0), end)
    if progress.is_live:
        return replace(progress, queues=queues)
    starts = _ints_of(rows["commitLogOffset"])
    last = int(starts.argmax())
    end = int(starts[last]) + int(_ints_of(rows["storeSize"])[last])
    if end <= progress.physical_offset:
        return replace(progress, queues=queues)
    return ArchiveProgress(end, int(starts[last]), rows["msgId"][last].as_py(), queues)


def _ints_of(column: pa.ChunkedArray) -> Array:
    return np.concatenate([np.empty(0, np.int64), *map(ints, column.chunks)])
