"""Check: verify every invariant of a store directory.

    log           files are contiguous; every record is valid (sizes, magic, CRC, own offset); every file but the last
                  ends with a blank or exactly with a record; after the end there are only zeros. The walk continues
                  after a changed body, and ends if the way to the next record is lost
    queues        unit k points at a record of that topic and queue whose queueOffset is k, or one that names the queue
                  as a further one; every record that belongs to a queue has its unit; after the last unit there are
                  only zeros
    index         slots and chains lead to earlier entries of the same slot; every entry points at a record; the counts
                  in the header are right
    epochs        the epoch file has its checksum; its epochs ascend, and start in the log, at a record
    other files   the checkpoint is not ahead of the log; there are no temporary or unknown files; the store was closed
                  cleanly

Of a diverged tail (see `diverged_tail`) only the log is checked. Nothing is written, and no lock is taken.

If a broker serves the store, the check ends at the last dispatched message; the index file that is being filled, the
checkpoint and temporary files are not checked. A finding counts only if it is found three times, as ranges move.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from rucola.errors import InvalidMessage, StoreCorrupt, StoreError
from rucola.files import local_path
from rucola.message import sysflag
from rucola.message.record import BLANK_MAGIC, FRAME, MESSAGE_MAGIC, peek
from rucola.store.checkpoint import CHECKPOINT_SIZE, Checkpoint
from rucola.store.config_files import temporary_files
from rucola.store.consume_queue import FILLER_SIZE, UNIT_SIZE, ConsumeQueue, opened_queue, queue_directories
from rucola.store.directory_entries import STORE_ENTRIES
from rucola.store.directory_lock import check_store_directory, is_served
from rucola.store.diverged_tail import is_diverged_tail
from rucola.store.epoch_file import EPOCH_FILE, read_epochs
from rucola.store.features import Support, detect_multi_dispatch, find_features
from rucola.store.index import IndexFile, index_paths, is_index_name
from rucola.store.mapped_file import MappedFile, MappedFileQueue, is_file_name
from rucola.store.multi_dispatch import further_units
from rucola.store.scan import RecordRun, ScanEnd, scan_file
from rucola.store.tools.check_index import CheckFinding, IndexFileCheck

MAX_FINDINGS: Final = 1000

_SERVED_ROUNDS: Final = 3
_BLOCK_COUNT: Final = 1 << 20
"""Records whose units are compared together."""
_UNITS_PER_STEP: Final = 1 << 16


class _QueueState:
    """The log's view of one queue, since the topic was last created."""

    __slots__ = ("begin", "count", "end", "matched", "missing")

    def __init__(self) -> None:
        self.count = 0
        self.begin = -1
        """The physical offset of the first record."""
        self.end = 0
        """The queue offset after the last record."""
        self.matched = 0
        """The number of records whose unit points at them."""
        self.missing: dict[int, int] = {}
        """{queue offset: physical offset} of records whose unit does not, up to MAX_FINDINGS."""


class _Log:
    """The walk through the log, and what it leads to. Memory does not grow with the number of records."""

    def __init__(self, store: Path, files: MappedFileQueue, served_end: int | None) -> None:
        self.files = files
        self.multi_dispatch = detect_multi_dispatch(store)
        self.served_end = served_end
        """The end of the last dispatched record if a broker serves the store; later bytes are not checked."""
        self.end = files.begin
        self.last_timestamp = 0
        self.directories = {
            (topic, queue_id): path for topic, queue_id, path in queue_directories(store / "consumequeue")
        }
        self.queues: dict[tuple[str, int], _QueueState] = {}
        self.index_files: list[IndexFileCheck] = []
        self._clear(files.begin)

    def _clear(self, begin: int) -> None:
        self._begin = begin
        self._offsets: list[npt.NDArray[np.int64]] = []
        self._timestamps: list[npt.NDArray[np.int64]] = []
        self._count = 0
        self._units: dict[tuple[str, int], array[int]] = {}
        """Triples (queue offset, physical offset, size)."""

    def add_records(self, offsets: npt.NDArray[np.int64], timestamps: npt.NDArray[np.int64]) -> None:
        self._offsets.append(offsets)
        self._timestamps.append(timestamps)
        self._count += len(offsets)

    def add_unit(self, queue: tuple[str, int], queue_offset: int, physical_offset: int, size: int) -> str | None:
        """Note the unit that a record should have; return what is wrong with its queue offset."""
        state = self.queues.get(queue)
        if state is None or (queue_offset == 0 and state.count):  # the topic was deleted and created again
            state = self.queues[queue] = _QueueState()
            self._units[queue] = array("q")
        what = None
        if state.count and queue_offset != state.end:
            what = (
                f"queueOffset is {queue_offset}, but the record before it in {queue[0]}-{queue[1]} has {state.end - 1}"
            )
        if not state.count:
            state.begin = physical_offset
        state.count += 1
        state.end = queue_offset + 1
        units = self._units.get(queue)
        if units is None:
            units = self._units[queue] = array("q")
        units.extend((queue_offset, physical_offset, size))
        return what

    def is_block(self) -> bool:
        return self._count >= _BLOCK_COUNT

    def check_block(self) -> Iterator[CheckFinding]:
        """Compare the records since the last call with queues and index files."""
        for queue, units in self._units.items():
            if queue in self.directories and units:
                _match_units(self.queues[queue], self.directories[queue], queue, np.array(units).reshape(-1, 3))
        if self._count:
            offsets, timestamps = np.concatenate(self._offsets), np.concatenate(self._timestamps)
            for file in self.index_files:
                yield from file.check_records(self._begin, self.end, offsets, timestamps)
        self._clear(self.end)


def _match_units(state: _QueueState, directory: Path, queue: tuple[str, int], expected: npt.NDArray[np.int64]) -> None:
    with suppress(StoreCorrupt), opened_queue(*queue, directory) as actual:  # reported by the check of the queue
        ends = np.flatnonzero(np.diff(expected[:, 0]) != 1) + 1
        for records in np.split(expected, ends):
            first = int(records[0, 0])
            begin = min(max(first, actual.min_offset), actual.max_offset)
            end = max(begin, min(first + len(records), actual.max_offset))
            units = actual.units(begin, end)
            is_matched = np.zeros(len(records), np.bool_)
            there = slice(begin - first, end - first) if begin < end else slice(0)
            is_matched[there] = (units["physical_offset"] == records[there, 1]) & (units["size"] == records[there, 2])
            state.matched += int(is_matched.sum())
            for queue_offset, physical_offset, _ in records[~is_matched][:MAX_FINDINGS].tolist():
                if len(state.missing) < MAX_FINDINGS:
                    state.missing[queue_offset] = physical_offset


def check(
    path: str | Path, *, index_slots: int = 0, progress: Callable[[int, int], None] | None = None
) -> list[CheckFinding]:
    """Return everything wrong with the store at `path`; raises StoreError if that is no directory.

    `index_slots` is as for `StoreReader`. `progress` gets (bytes done, bytes in total) of the log.
    """
    store = local_path(path)
    if not store.is_dir():
        raise StoreError(f"{store} is no directory; give the directory that holds commitlog/", subject=store)
    check_store_directory(store)
    if not is_served(store):
        return _collect(store, index_slots, progress, served=False)
    lasting: list[CheckFinding] | None = None
    for _ in range(_SERVED_ROUNDS):
        try:
            found = _collect(store, index_slots, progress, served=True)
        except FileNotFoundError:  # retention has deleted a file in the meantime
            found = _collect(store, index_slots, progress, served=True)
        lasting = found if lasting is None else [finding for finding in lasting if finding in found]
        if not lasting:
            return []
    return lasting or []


def _collect(
    store: Path, index_slots: int, progress: Callable[[int, int], None] | None, *, served: bool
) -> list[CheckFinding]:
    findings: list[CheckFinding] = []
    for finding in _check(store, index_slots, progress, served):
        findings.append(finding)
        if len(findings) == MAX_FINDINGS:
            findings.append(CheckFinding(store, 0, f"the check ended after {MAX_FINDINGS} findings; there are more"))
            break
    return findings


def _dispatched_end(store: Path) -> int:
    end = 0
    for topic, queue_id, directory in queue_directories(store / "consumequeue"):
        with suppress(StoreCorrupt), opened_queue(topic, queue_id, directory) as queue:
            end = max(end, queue.max_physical_offset)
    return end


def _check(
    store: Path, index_slots: int, progress: Callable[[int, int], None] | None, served: bool
) -> Iterator[CheckFinding]:
    yield from _check_names(store, served)
    served_end = _dispatched_end(store) if served else None
    try:
        files = MappedFileQueue.open(store / "commitlog")
    except StoreCorrupt as error:
        yield CheckFinding(Path(error.path), error.position, error.why)
        return
    log = _Log(store, files, served_end)
    try:
        yield from _open_index(log, store / "index", index_slots)
        yield from _check_log(log, progress)
        for queue, directory in log.directories.items():
            yield from _check_queue(log, *queue, directory)
        if is_diverged_tail(store):
            return
        for (topic, queue_id), state in sorted(log.queues.items()):
            yield _at(files, state.begin, f"{state.count} records of {topic}-{queue_id} have no unit, this one first")
        for file in log.index_files:
            yield from file.check_end(log.end)
        yield from _check_epochs(log, store)
        if not served:
            yield from _check_checkpoint(log, store / "checkpoint")
        if progress is not None:
            progress(files.end - files.begin, files.end - files.begin)
    finally:
        for file in log.index_files:
            file.close()
        files.close()


def _open_index(log: _Log, directory: Path, slot_count: int) -> Iterator[CheckFinding]:
    if is_diverged_tail(directory.parent):
        return
    paths = list(index_paths(directory))
    for path in paths if log.served_end is None else paths[:-1]:
        try:
            file = IndexFileCheck(IndexFile.open(path, slot_count))
        except StoreCorrupt as error:
            yield CheckFinding(path, error.position, error.why)
            continue
        log.index_files.append(file)
        yield from file.check_structure()


def _at(files: MappedFileQueue, physical_offset: int, what: str) -> CheckFinding:
    file = files.find(physical_offset)
    return (
        CheckFinding(file.path, physical_offset - file.begin, what) if file else CheckFinding(files.directory, 0, what)
    )


def _check_names(store: Path, served: bool) -> Iterator[CheckFinding]:
    features = {feature.path: feature for feature in find_features(store)}
    for feature in features.values():
        if feature.support is Support.REFUSED:
            yield CheckFinding(feature.path, 0, f"{feature.name}: {feature.note}")
    unfinished = temporary_files(store)
    for path in sorted(store.iterdir()):
        if path.name not in STORE_ENTRIES and path not in features and path not in unfinished:
            yield CheckFinding(path, 0, "no file of this name belongs in a store")
    if (store / "abort").exists() and not served:
        yield CheckFinding(
            store / "abort", 0, "the store is open, or was not closed cleanly; opening it will recover it"
        )
    for directory, belongs in (("commitlog", is_file_name), ("index", is_index_name)):
        if (store / directory).is_dir():
            for path in sorted((store / directory).iterdir()):
                if not belongs(path.name):
                    yield CheckFinding(path, 0, f"no file of this name belongs in {directory}/")
    for path in unfinished if not served else ():
        yield CheckFinding(path, 0, "a temporary file, left by a crash; opening the store removes it")
    for _, _, directory_path in queue_directories(store / "consumequeue"):
        for path in sorted(directory_path.iterdir()):
            if not is_file_name(path.name):
                yield CheckFinding(path, 0, "no file of this name belongs in a ConsumeQueue")


def _check_log(log: _Log, progress: Callable[[int, int], None] | None) -> Iterator[CheckFinding]:
    ended = False
    for file in log.files:
        if log.served_end is not None and (ended or file.begin >= log.served_end):
            break
        if ended:
            if not file.is_zero_from(0):
                yield CheckFinding(file.path, 0, "the log ends before this file, but the file is not empty")
            continue
        for item in _scan_past_changed_bodies(file):
            if isinstance(item, CheckFinding):
                yield item
            elif isinstance(item, RecordRun):
                yield from _add_run(log, item)
                if progress is not None:
                    progress(item.end - log.files.begin, log.files.end - log.files.begin)
            elif log.served_end is not None and item.physical_offset >= log.served_end:
                ended = True
            elif item.damage is not None:
                yield CheckFinding(file.path, item.physical_offset - file.begin, item.damage)
                ended = True
            elif item.physical_offset < file.end:
                ended = True
                position = item.physical_offset - file.begin
                if log.served_end is not None:
                    yield CheckFinding(file.path, position, "the log ends before messages that have a unit")
                elif not file.is_zero_from(position):
                    yield CheckFinding(file.path, position, "after the end of the log there are bytes other than zeros")
            else:
                log.end = file.end
    yield from log.check_block()


def _scan_past_changed_bodies(file: MappedFile) -> Iterator[RecordRun | ScanEnd | CheckFinding]:
    position = 0
    while True:
        for item in scan_file(file, position):
            if isinstance(item, RecordRun):
                yield item
        assert isinstance(item, ScanEnd)
        run = next(scan_file(file, item.physical_offset - file.begin, check_crc=False))
        if item.damage is None or isinstance(run, ScanEnd):
            yield item
            return
        yield CheckFinding(file.path, item.physical_offset - file.begin, item.damage)
        one = RecordRun(file, run.positions[:1], run.heads[:1], run.store_timestamps[:1])
        yield one
        position = one.end - file.begin


def _add_run(log: _Log, run: RecordRun) -> Iterator[CheckFinding]:
    log.end = run.end
    log.last_timestamp = max(log.last_timestamp, int(run.store_timestamps.max()))
    positions = run.positions
    if log.served_end is not None:
        positions = positions[: np.searchsorted(positions, log.served_end - run.file.begin)]
    log.add_records(positions + run.file.begin, run.store_timestamps[: len(positions)])
    for position in positions.tolist():
        try:
            record = peek(run.file.map, position)
        except InvalidMessage as error:
            yield CheckFinding(run.file.path, position, str(error))
            continue
        if sysflag.is_dispatched(record.sys_flag):
            own = (record.topic, record.queue_id)
            stored = bytes(run.file.map[record.properties_begin : record.properties_end])
            units = {own: record.queue_offset, **further_units(stored, own, log.multi_dispatch)}
            for queue, queue_offset in units.items():
                what = log.add_unit(queue, queue_offset, record.physical_offset, record.size)
                if what is not None:
                    yield CheckFinding(run.file.path, position, what)
    run.file.drop_pages()
    if log.is_block():
        yield from log.check_block()


def _check_epochs(log: _Log, store: Path) -> Iterator[CheckFinding]:
    try:
        epochs = read_epochs(store)
    except StoreCorrupt as error:
        yield CheckFinding(Path(error.path), error.position, error.why)
        return
    for number, begin in epochs:
        if log.served_end is not None and begin >= log.served_end:
            return
        file = log.files.find(begin)
        what = None
        if begin > log.end:
            what = f"epoch {number} begins at {begin}, but the log ends at {log.end}"
        elif file is not None and begin < log.end:
            _, magic = FRAME.unpack_from(file.map, begin - file.begin)
            if magic not in (MESSAGE_MAGIC, BLANK_MAGIC):
                what = f"epoch {number} begins at {begin}, where no record begins"
        if what is not None:
            yield CheckFinding(store / EPOCH_FILE, 0, what)


def _check_queue(log: _Log, topic: str, queue_id: int, directory: Path) -> Iterator[CheckFinding]:
    state = log.queues.pop((topic, queue_id), None) or _QueueState()
    try:
        with opened_queue(topic, queue_id, directory) as queue:
            # Records lead to different units. So if as many units point into the log, each leads to its record.
            if state.missing or _count_units(log, queue) != state.matched:
                yield from _check_units(log, state, queue)
            if log.served_end is None:
                yield from _check_zeros_after(queue.files, queue.max_offset * UNIT_SIZE)
    except StoreCorrupt as error:
        yield CheckFinding(Path(error.path), error.position, error.why)


def _count_units(log: _Log, queue: ConsumeQueue) -> int:
    """Return the number of units that point into the part of the log that is checked."""
    count = 0
    for begin in range(queue.min_offset, queue.max_offset, _UNITS_PER_STEP):
        physical_offsets = queue.units(begin, begin + _UNITS_PER_STEP)["physical_offset"]
        end = log.served_end if log.served_end is not None else np.iinfo(np.int64).max
        count += int(np.count_nonzero((physical_offsets >= log.files.begin) & (physical_offsets < end)))
    return count


def _check_units(log: _Log, state: _QueueState, queue: ConsumeQueue) -> Iterator[CheckFinding]:
    name, is_sound = f"{queue.topic}-{queue.queue_id}", True
    for queue_offset in range(queue.min_offset, queue.max_offset):
        physical_offset, size, _ = queue.unit(queue_offset)
        if physical_offset < log.files.begin:
            continue
        if log.served_end is not None and physical_offset >= log.served_end:
            break
        record = state.missing.pop(queue_offset, None)
        what = None
        if size == FILLER_SIZE:
            what = f"unit {queue_offset} is a filler, but not before the first unit"
        elif record is not None:
            what = f"unit {queue_offset} points at {size} bytes from {physical_offset}; the record is at {record}"
        elif not state.begin <= physical_offset < log.end or not queue.is_valid_at(queue_offset, log.files):
            what = f"unit {queue_offset} points at {physical_offset}, but the log has no such message"
        if what is not None:
            is_sound = False
            file = queue.files.find(queue_offset * UNIT_SIZE)
            assert file is not None
            yield CheckFinding(file.path, queue_offset * UNIT_SIZE - file.begin, what)
    for queue_offset, physical_offset in sorted(state.missing.items()):
        yield _at(log.files, physical_offset, f"message {queue_offset} of {name} has no unit")
    if is_sound and not state.missing:
        directory = queue.files.directory
        yield CheckFinding(directory, 0, f"the log has {state.count} messages of {name}, but not one for each unit")


def _check_zeros_after(files: MappedFileQueue, end: int) -> Iterator[CheckFinding]:
    for file in files:
        position = max(end - file.begin, 0)
        if not file.is_zero_from(position):
            yield CheckFinding(file.path, position, "after the last unit there are bytes other than zeros")


def _check_checkpoint(log: _Log, path: Path) -> Iterator[CheckFinding]:
    if not path.exists():
        if log.last_timestamp:
            yield CheckFinding(path, 0, "there is no checkpoint")
        return
    if path.stat().st_size != CHECKPOINT_SIZE:
        yield CheckFinding(path, 0, f"a checkpoint has {CHECKPOINT_SIZE} bytes, not {path.stat().st_size}")
    point = Checkpoint(path)
    times = (point.physic_timestamp, point.logics_timestamp, point.index_timestamp)
    names = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")
    for position, (name, time_ms) in enumerate(zip(names, times, strict=True)):
        if time_ms > log.last_timestamp:
            yield CheckFinding(
                path, 8 * position, f"{name} is {time_ms}, but the log's last message has {log.last_timestamp}"
            )
