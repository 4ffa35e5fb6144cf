"""The diverged tail: log records that no other broker has, cut off and kept aside.

A master that returns after a failover may have records that were never replicated. To follow the new master, its log
must end where both are equal. `cut_tail` does that, in steps after each of which a crash leaves a store that opens, and
that the next handshake cuts again:

    1. mark the store as not cleanly closed (`abort`), so that its next opening recovers queues and index
    2. copy the tail to <store>/diverged/<begin>-<end>/, a separate store directory, by way of a temporary name
    3. set back the checkpoint, which must not be ahead of the log
    4. cut the epochs of the tail off the epoch file
    5. truncate the log; if nothing of it is left, remove queues and index before that

Each log file of the tail becomes one directory, for `rucola store grep` and `dump`. Only an operator deletes them.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from rucola.files import DIRECTORY_MODE, FILE_MODE, make_directory, sync_directory, temporary_path
from rucola.store.checkpoint import Checkpoint
from rucola.store.config import DERIVED_DIRECTORIES, StoreConfig
from rucola.store.directory_entries import DIVERGED
from rucola.store.directory_lock import DirectoryLock
from rucola.store.epoch_file import EpochFile
from rucola.store.mapped_file import MappedFile, MappedFileQueue, file_name
from rucola.store.scan import RecordRun, ScanEnd, scan, scan_file
from rucola.system_calls import OPEN_FLAGS, sync_all

_is_name: Final = re.compile(r"\d{20}-\d{20}(-\d+)?", re.ASCII).fullmatch
_CHUNK: Final = 8 << 20


class DivergedTail(NamedTuple):
    """A cut-off tail: messages and bytes from `begin` to `end`, and its store directories."""

    begin: int
    end: int
    messages: int
    directories: list[Path]

    @property
    def size(self) -> int:
        return self.end - self.begin


def cut_tail(config: StoreConfig, physical_offset: int) -> DivergedTail:
    """Cut a closed store's log, all of it if necessary, at a physical offset, and keep the tail.

    A record that begins before the offset and ends after it is cut off as well: if two masters have had one epoch, the
    other log may have a record's end there.

    Durable on return. Raises StoreError, StoreLocked and OSError; then nothing is lost, and the call may be repeated.
    """
    root = Path(config.store_path_root_dir)
    lock = DirectoryLock(root, config.commit_log_directory)
    try:
        # From here on the next opening recovers queues and index from the log.
        (root / "abort").touch(FILE_MODE)
        sync_directory(root)
        files = MappedFileQueue.open(
            config.commit_log_directory,
            writable=True,
            file_size=config.mapped_file_size_commit_log,
            after_crash=True,
        )
        try:
            physical_offset = _record_begin(files, max(physical_offset, files.begin))
            # The only copy of these messages, so it is durable before anything is removed.
            tail = _keep_tail(root, files, physical_offset)
            # Before the truncation: a checkpoint ahead of the log would cover messages that the master sends next.
            _limit_checkpoint(Checkpoint(root / "checkpoint"), _last_timestamp(files, physical_offset))
            epochs = EpochFile(root)
            epochs.replace([epoch for epoch in epochs.epochs if epoch.begin < physical_offset])
            if physical_offset == files.begin:
                _clear(root, files)
            else:
                files.truncate(physical_offset)
        finally:
            files.close()
    finally:
        lock.release()
    return tail


def is_diverged_tail(store: Path) -> bool:
    """Return whether a directory is one that `cut_tail` writes, with a part of a log and nothing else."""
    return _is_name(store.name) is not None and [path.name for path in store.iterdir()] == ["commitlog"]


def _clear(root: Path, files: MappedFileQueue) -> None:
    for directory in DERIVED_DIRECTORIES:  # before the log: without it, they would be an error
        if (root / directory).exists():
            shutil.rmtree(root / directory)
    sync_directory(root)
    files.truncate(-1)


def _keep_tail(root: Path, files: MappedFileQueue, begin: int) -> DivergedTail:
    messages, end = 0, begin
    for item in scan(files, begin):
        if isinstance(item, ScanEnd):
            end = item.physical_offset
        else:
            messages += len(item.positions)
    directory = root / DIVERGED
    make_directory(directory)
    for unfinished in directory.glob("*.tmp"):
        shutil.rmtree(unfinished)
    kept = []
    for file in files:
        first, last = max(begin, file.begin), min(end, file.end)
        if first < last:
            kept.append(_keep(directory, file, first, last))
    return DivergedTail(begin, end, messages, kept)


def _record_begin(files: MappedFileQueue, physical_offset: int) -> int:
    """Return where the record begins that has the byte at a physical offset; the offset itself without one."""
    file = files.find(physical_offset)
    for item in () if file is None else scan_file(file, 0, check_crc=False):
        if isinstance(item, RecordRun) and physical_offset < item.end:
            begins = item.file.begin + item.positions
            return int(begins[begins <= physical_offset][-1])
    return physical_offset


def _last_timestamp(files: MappedFileQueue, end: int) -> int:
    """Return the store time of the last record before `end` in its file; 0 without one."""
    file = files.find(end - 1)
    last = 0
    for item in () if file is None else scan_file(file, 0, check_crc=False):
        if isinstance(item, RecordRun):
            times = item.store_timestamps[item.positions < end - item.file.begin]
            last = int(times.max()) if len(times) else last
    return last


def _limit_checkpoint(checkpoint: Checkpoint, last_ms: int) -> None:
    checkpoint.physic_timestamp = min(checkpoint.physic_timestamp, last_ms)
    checkpoint.logics_timestamp = min(checkpoint.logics_timestamp, last_ms)
    checkpoint.index_timestamp = min(checkpoint.index_timestamp, last_ms)
    checkpoint.write()


def _keep(directory: Path, file: MappedFile, begin: int, end: int) -> Path:
    """Copy a part of one log file into a store directory, unless an interrupted cut has done so."""
    tail = memoryview(file.map)[begin - file.begin : end - file.begin]
    try:
        for other in sorted(directory.glob(f"{file_name(begin)}-*")):
            if _begins_with(other / "commitlog" / file_name(begin), tail):
                return other
        target = directory / f"{file_name(begin)}-{file_name(end)}"
        number = 1
        while target.exists():  # another tail of the same length, of an earlier divergence
            number += 1
            target = directory / f"{file_name(begin)}-{file_name(end)}-{number}"
        temporary = temporary_path(target)
        (temporary / "commitlog").mkdir(DIRECTORY_MODE, parents=True)
        _write(temporary / "commitlog" / file_name(begin), tail)
    finally:
        tail.release()
    for path in (temporary / "commitlog", temporary):
        sync_directory(path)
    temporary.rename(target)
    sync_directory(directory)
    return target


def _begins_with(path: Path, data: memoryview) -> bool:
    if not path.exists() or path.stat().st_size < len(data):
        return False
    with path.open("rb") as file:
        return all(file.read(_CHUNK) == data[at : at + _CHUNK] for at in range(0, len(data) - _CHUNK + 1, _CHUNK)) and (
            file.read(len(data) % _CHUNK) == data[len(data) - len(data) % _CHUNK :]
        )


def _write(path: Path, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, FILE_MODE)
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written : written + _CHUNK])
        sync_all(descriptor)
    finally:
        os.close(descriptor)
