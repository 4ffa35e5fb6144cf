"""Building ConsumeQueues and index anew, from nothing but the log.

What leads to a message can be made from the message, by the same `Dispatcher` that a broker winds; so the files come
out byte by byte as a broker would have written them, in one pass over the log.

In place, they are written to `rebuild.tmp/` first and brought to disk; then each directory changes its name with the
old one in one step of the file system (RENAME_EXCHANGE), so that at no moment there is none, or half of one. What an
interrupted run left in `rebuild.tmp/` the next one throws away.

The log itself is not touched and has to be sound: where it is not, StoreCorrupt says so, and `repair` is what helps.

Answers to nothing in Apache RocketMQ, where one deletes the directories and starts a broker, which rebuilds only from
the file of its checkpoint on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rucola.errors import InvalidMessage, StoreCorrupt, StoreError
from rucola.files import sync_directory
from rucola.message import sysflag
from rucola.message.delay import parse_delay_levels
from rucola.store.config import StoreConfig
from rucola.store.consume_queue import queue_directories
from rucola.store.dispatch import ConsumeQueues, Dispatcher, DispatchRequest, read_dispatch_request
from rucola.store.index import Index, IndexFile, index_paths
from rucola.store.lock import DirectoryLock
from rucola.store.mapped_file import MappedFileQueue, file_paths
from rucola.store.scan import RecordRun, scan

Progress = Callable[[int, int], None]
"""Is told how far a walk through the log has come: (bytes done, bytes in all)."""

_DERIVED: Final = ("consumequeue", "index")
_WORKSHOP: Final = "rebuild.tmp"
_RENAME_EXCHANGE: Final = 2
_AT_FDCWD: Final = -100


@dataclass(slots=True)
class RebuildResult:
    """What was written: how many messages were read, queues, units in them, index files, and where it lies now."""

    path: Path
    messages: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0


Build = Callable[[Path, Path, StoreConfig, Progress | None], RebuildResult]
"""What writes consumequeue and index of a log into a directory: `build`, and whatever does the same."""


def rebuild(
    store: str | Path,
    out: str | Path | None = None,
    *,
    settings: StoreConfig | None = None,
    progress: Progress | None = None,
    by: Build | None = None,
) -> RebuildResult:
    """Write ConsumeQueues and index of a store anew: in place of its own, or under `out`, which must be empty.

    `settings` give file sizes and delay levels; without them sizes are those of the files that are there (see
    `detect_config`). `by` does the work of `build` in its stead. In place, the directory is locked meanwhile:
    StoreLocked where a broker serves it. Raises StoreCorrupt where the log is damaged, StoreError where there is none,
    and OSError; then all is as it was.
    """
    store, by = Path(store), by or build
    settings = settings or detect_config(store)
    if not file_paths(log := store / "commitlog"):
        raise StoreError(f"{log} has no log to rebuild from")
    if out is not None:
        target = Path(out)
        if target.exists() and any(target.iterdir()):
            raise StoreError(f"{target} is not empty; give a new directory")
        return by(log, target, settings, progress)
    lock = DirectoryLock(store)
    try:
        workshop = store / _WORKSHOP
        if workshop.exists():
            shutil.rmtree(workshop)
        rebuilt = by(log, workshop, settings, progress)
        for name in _DERIVED:
            _exchange(workshop / name, store / name)
        sync_directory(store)
        shutil.rmtree(workshop)
        rebuilt.path = store
        return rebuilt
    finally:
        lock.release()


def build(log: Path, target: Path, settings: StoreConfig, progress: Progress | None = None) -> RebuildResult:
    """Write `target/consumequeue` and `target/index` for the log in the directory `log`, down to the disk."""
    for name in _DERIVED:
        (target / name).mkdir(parents=True)
    files = MappedFileQueue.open(log)
    queues = ConsumeQueues(target / "consumequeue", settings.mapped_file_size_consume_queue)
    index = Index(target / "index", settings.max_hash_slot_num, settings.max_index_num, [])
    rebuilt = RebuildResult(target)
    try:
        builder = _Builder(files, Dispatcher(queues, index, parse_delay_levels(settings.message_delay_level)))
        for item in scan(files, files.begin):
            if isinstance(item, RecordRun):
                rebuilt.messages += builder.scan_log_file(item)
                if progress is not None:
                    progress(item.end - files.begin, files.end - files.begin)
            elif item.damage is not None:
                raise damaged(files, item.physical_offset, item.damage)
        if progress is not None:
            progress(files.end - files.begin, files.end - files.begin)
        for queue in queues.values():
            for file in queue.files:
                file.flush()
        index.flush()
        _sync_directories(target)
        rebuilt.queues = sum(1 for queue in queues.values() if queue.max_offset)
        rebuilt.units = sum(queue.max_offset - queue.min_offset for queue in queues.values())
        rebuilt.index_files = len(index.files)
        rebuilt.index_entries = sum(file.count - 1 for file in index.files)
        return rebuilt
    finally:
        for queue in queues.values():
            queue.files.close()
        index.close()
        files.close()


class _Builder:
    """Feeds the records of a log to a Dispatcher, after seeing to it that they go on where their queues stopped."""

    def __init__(self, files: MappedFileQueue, dispatcher: Dispatcher) -> None:
        self._files = files
        self._dispatcher = dispatcher
        self._next: dict[tuple[str, int], int] = {}

    def scan_log_file(self, run: RecordRun) -> int:
        batch: list[DispatchRequest] = []
        for position in run.positions.tolist():
            try:
                item = read_dispatch_request(run.file.map, position)
            except InvalidMessage as error:
                raise damaged(self._files, run.file.begin + position, str(error)) from error
            topic, queue_id, queue_offset, _, _, _, sys_flag, *_ = item
            if sysflag.is_dispatched(sys_flag):
                name = (topic, queue_id)
                expected = self._next.get(name, queue_offset if self._files.begin else 0)
                if queue_offset == 0 and expected:
                    # The topic was deleted and made anew: its queue starts over.
                    self._dispatcher.dispatch(batch)
                    batch.clear()
                    self._dispatcher.queues[name].truncate(0)
                elif queue_offset != expected:
                    why = queue_offset_mismatch(*name, queue_offset, expected)
                    raise damaged(self._files, run.file.begin + position, why)
                self._next[name] = queue_offset + 1
            batch.append(item)
        self._dispatcher.dispatch(batch)
        return len(run.positions)


def detect_config(store: Path, *, index: bool = True) -> StoreConfig:
    """Return settings with the file sizes of a store's own files; Apache's defaults stand for what has no file.

    An index file shows only its size, so it is taken to have four entries per slot, as by default; StoreCorrupt
    where that cannot be. With `index` False the index is not looked at.
    """
    settings = StoreConfig(store)
    if paths := file_paths(store / "commitlog"):
        settings.mapped_file_size_commit_log = max(path.stat().st_size for path in paths)
    for _, _, queue in queue_directories(store / "consumequeue"):
        if (paths := file_paths(queue)) and (size := paths[0].stat().st_size):
            settings.mapped_file_size_consume_queue = size
            break
    for path in index_paths(store / "index")[:1]:
        if index and path.stat().st_size:
            file = IndexFile.open(path)
            settings.max_hash_slot_num, settings.max_index_num = file.slot_count, file.max_count
            file.file.close()
    return settings


def queue_offset_mismatch(topic: str, queue_id: int, queue_offset: int, expected: int) -> str:
    """Say that a message is not the next of its queue."""
    return f"queueOffset is {queue_offset} where {topic}-{queue_id} goes on with {expected}"


def damaged(files: MappedFileQueue, physical_offset: int, what: str) -> StoreCorrupt:
    """Return the error of a log that is damaged there, with what to do."""
    file = files.find(physical_offset) or files.files[-1]
    return StoreCorrupt(
        file.path,
        physical_offset - file.begin,
        f"{what}; queues and index can be built from a sound log only. Run `rucola store repair DIR --out COPY`",
    )


def _exchange(new: Path, old: Path) -> None:
    """Let two directories change names in one step; where there is no old one, the new one takes its name."""
    if not old.exists():
        new.rename(old)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.ENOSYS):
            raise StoreError(f"the file system of {old} cannot exchange directories in one step; use --out")
        raise OSError(code, os.strerror(code), str(old))


def _sync_directories(top: Path) -> None:
    directories: Iterable[Path] = (path for path in top.rglob("*") if path.is_dir())
    for directory in [*directories, top, top.parent]:
        sync_directory(directory)
