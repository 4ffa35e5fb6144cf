"""Rebuild: write ConsumeQueues and index again, from nothing but the log.

The broker's own `CommitLogDispatcher` derives units and index entries, so a pass over the log writes the same bytes.

In place, the new directories are written to `rebuild.tmp/` and flushed. Then each exchanges its name with the old one
in one system call (RENAME_EXCHANGE), so that no directory is ever missing or incomplete.

No counterpart in Apache RocketMQ: there one deletes the directories and starts a broker, which rebuilds only from the
file of its checkpoint on.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rucola.errors import InvalidMessage, StoreCorrupt, StoreError
from rucola.files import DIRECTORY_MODE, local_path, make_directory, sync_directory
from rucola.message import sysflag
from rucola.message.delay import parse_delay_levels
from rucola.store.checkpoint import Checkpoint
from rucola.store.config import DERIVED_DIRECTORIES, StoreConfig
from rucola.store.consume_queue import queue_directories, queue_offset_mismatch
from rucola.store.directory_entries import REBUILD_DIRECTORY
from rucola.store.directory_lock import DirectoryLock, check_store_directory
from rucola.store.dispatch import CommitLogDispatcher, ConsumeQueues
from rucola.store.dispatch_request import (
    DispatchRequest,
    dispatch_requests,
    read_dispatch_request,
    read_requests,
)
from rucola.store.features import detect_multi_dispatch
from rucola.store.index import Index, IndexFile, index_paths
from rucola.store.mapped_file import MappedFileQueue, file_paths
from rucola.store.multi_dispatch import MultiDispatch
from rucola.store.scan import RecordRun, scan
from rucola.store.tools.progress import ProgressCallback
from rucola.system_calls import exchange_names


@dataclass(slots=True)
class RebuildResult:
    """Counts of a rebuild's input and output; directory `path` holds the new files."""

    path: Path
    messages: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0


Builder = Callable[[Path, Path, StoreConfig, ProgressCallback | None], RebuildResult]
"""A function with the contract of `build`."""


def rebuild(
    store: str | Path,
    out: str | Path | None = None,
    *,
    settings: StoreConfig | None = None,
    progress: ProgressCallback | None = None,
    builder: Builder | None = None,
) -> RebuildResult:
    """Write a store's ConsumeQueues and index: in place, or under `out`, which must be empty.

    Args:
        settings: file sizes and delay levels; by default the sizes of the existing files (see `detect_config`).
        progress: called as the log is read.
        builder: does the work instead of `build`, for example as a Spark job.

    Raises StoreCorrupt if the log is damaged, StoreError if there is none, StoreLocked in place if a broker serves it,
    and OSError; then the old files are unchanged.
    """
    store, builder = local_path(store), builder or build
    check_store_directory(store)
    settings = settings or detect_config(store)
    if not file_paths(log := store / "commitlog"):
        raise StoreError(f"{log} has no log to rebuild from", subject=log)
    if out is not None:
        target = local_path(out)
        if target.exists() and any(target.iterdir()):
            raise StoreError(f"{target} is not empty; give a new directory", subject=target)
        return builder(log, target, settings, progress)
    lock = DirectoryLock(store)
    try:
        staging = store / REBUILD_DIRECTORY
        if staging.exists():
            shutil.rmtree(staging)
        rebuilt = builder(log, staging, settings, progress)
        for name in DERIVED_DIRECTORIES:
            # A crash between the two exchanges leaves new queues and the old index, both complete, and the other files
            # in the staging directory, which the next rebuild deletes.
            _exchange(staging / name, store / name)
        sync_directory(store)
        shutil.rmtree(staging)
        rebuilt.path = store
        return rebuilt
    finally:
        lock.release()


def build(log: Path, target: Path, settings: StoreConfig, progress: ProgressCallback | None = None) -> RebuildResult:
    """Write `target/consumequeue` and `target/index` for the log in the directory `log`; durable on return."""
    make_directory(target)
    for name in DERIVED_DIRECTORIES:
        (target / name).mkdir(DIRECTORY_MODE)
    files = MappedFileQueue.open(log)
    queues = ConsumeQueues(target / "consumequeue", settings.mapped_file_size_consume_queue)
    index = Index(target / "index", settings.max_hash_slot_num, settings.max_index_num, [])
    rebuilt = RebuildResult(target)
    try:
        dispatcher = CommitLogDispatcher(queues, index, parse_delay_levels(settings.message_delay_level))
        feeder = _Feeder(files, dispatcher, settings.multi_dispatch)
        for item in scan(files, files.begin):
            if isinstance(item, RecordRun):
                rebuilt.messages += feeder.feed(item)
                if progress is not None:
                    progress(item.end - files.begin, files.end - files.begin)
            elif item.damage is not None:
                raise damaged_log(files, item.physical_offset, item.damage)
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


def write_checkpoint(store: Path, last_timestamp: int, index_slots: int) -> None:
    """Write a checkpoint that covers the whole store; durable on return."""
    point = Checkpoint(store / "checkpoint")
    point.physic_timestamp = point.logics_timestamp = last_timestamp
    for path in index_paths(store / "index")[:-1]:  # all but the last are full
        file = IndexFile.open(path, index_slots)
        point.index_timestamp = file.end_timestamp
        file.file.close()
    point.write()


class _Feeder:
    def __init__(self, files: MappedFileQueue, dispatcher: CommitLogDispatcher, multi_dispatch: MultiDispatch) -> None:
        self._files = files
        self._dispatcher = dispatcher
        self._multi_dispatch = multi_dispatch
        self._next: dict[tuple[str, int], int] = {}

    def feed(self, run: RecordRun) -> int:
        batch: list[DispatchRequest] = []
        mapped, positions = run.file.map, run.positions.tolist()
        read = iter(read_requests(mapped, positions[0], run.end - run.file.begin))
        for position in positions:
            try:
                request = next(read, None) or read_dispatch_request(mapped, position)
            except InvalidMessage as error:
                raise damaged_log(self._files, run.file.begin + position, str(error)) from error
            for each in dispatch_requests(request, self._multi_dispatch):
                if sysflag.is_dispatched(each.sys_flag):
                    self._continue_queue(each, batch)
                batch.append(each)
        self._dispatcher.dispatch(batch, set())
        return len(run.positions)

    def _continue_queue(self, request: DispatchRequest, batch: list[DispatchRequest]) -> None:
        name, queue_offset = (request.topic, request.queue_id), request.queue_offset
        # A log whose first files are deleted may start in the middle of a queue; a whole one starts with 0.
        expected = self._next.get(name, queue_offset if self._files.begin else 0)
        if queue_offset == 0 and expected:
            # The topic was deleted and created again: its queue starts over.
            self._dispatcher.dispatch(batch, set())
            batch.clear()
            self._dispatcher.queues[name].truncate(0)
        elif queue_offset != expected:
            damage = queue_offset_mismatch(*name, queue_offset, expected)
            raise damaged_log(self._files, request.physical_offset, damage)
        self._next[name] = queue_offset + 1


def detect_config(store: Path, *, index: bool = True) -> StoreConfig:
    """Return the configuration that a store's files show; StoreCorrupt if its `index` lacks the number of slots."""
    settings = StoreConfig(store)
    mode = detect_multi_dispatch(store)
    settings.enable_multi_dispatch, settings.enable_lmq = mode is not MultiDispatch.OFF, mode is MultiDispatch.LMQ
    if paths := file_paths(store / "commitlog"):
        # A crash may have left the last file short.
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


def damaged_log(files: MappedFileQueue, physical_offset: int, damage: str) -> StoreCorrupt:
    """Return the error for log damage at a physical offset, naming the tool to use."""
    file = files.find(physical_offset) or files.files[-1]
    return StoreCorrupt(
        file.path,
        physical_offset - file.begin,
        f"{damage}; queues and index can be built from an intact log only. Run `rucola store repair DIR --out COPY`",
    )


def _exchange(new: Path, old: Path) -> None:
    """Exchange two directories' names in one step; without an old one, rename the new one."""
    if not old.exists():
        new.rename(old)
        return
    try:
        exchange_names(new, old)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
        raise StoreError(f"the file system of {old} cannot exchange directories in one step; use --out") from None


def _sync_directories(top: Path) -> None:
    directories: Iterable[Path] = (path for path in top.rglob("*") if path.is_dir())
    for directory in [*directories, top, top.parent]:
        sync_directory(directory)
