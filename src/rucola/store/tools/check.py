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

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rucola.errors import InvalidMessage, StoreCorrupt, StoreError
from rucola.files import local_path
from rucola.message import sysflag
from rucola.message.record import BLANK_MAGIC, FRAME, MESSAGE_MAGIC, peek
from rucola.store.checkpoint import CHECKPOINT_SIZE, Checkpoint
from rucola.store.config_files import temporary_files
from rucola.store.consume_queue import FILLER_SIZE, UNIT_SIZE, ConsumeQueue, queue_directories
from rucola.store.directory_entries import STORE_ENTRIES
from rucola.store.directory_lock import check_store_directory, is_served
from rucola.store.diverged_tail import is_diverged_tail
from rucola.store.epoch_file import EPOCH_FILE, read_epochs
from rucola.store.features import Support, detect_multi_dispatch, find_features
from rucola.store.index import HEADER_SIZE, Index, IndexFile, index_paths, is_index_name
from rucola.store.mapped_file import MappedFile, MappedFileQueue, is_file_name
from rucola.store.multi_dispatch import MultiDispatch, further_units
from rucola.store.scan import RecordRun, ScanEnd, scan_file

MAX_FINDINGS: Final = 1000

_SERVED_ROUNDS: Final = 3


class CheckFinding(NamedTuple):
    """A violated invariant: the file, the position in it, and a description."""

    path: Path
    position: int
    what: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.what}"


class _LogSummary:
    def __init__(self, files: MappedFileQueue, served_end: int | None, multi_dispatch: MultiDispatch) -> None:
        self.files = files
        self.multi_dispatch = multi_dispatch
        self.served_end = served_end
        """The end of the last dispatched record if a broker serves the store; later bytes are not checked."""
        self.end = files.begin
        self.last_timestamp = 0
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.queues: dict[tuple[str, int], dict[int, int]] = {}
        """{(topic, queue id): {queue offset: physical offset}} of all records that need a unit."""


def check(
    path: str | Path, *, index_slots: int = 0, progress: Callable[[int, int], None] | None = None
) -> list[CheckFinding]:
    """Return everything wrong with the store at `path`; raises StoreError if that is no directory.

    `index_slots` is as for `StoreReader`. `progress` gets (bytes done, bytes in total) of the log.
    """
    store = local_path(path)
    if not store.is_dir():
        raise StoreError(f"{store} is no directory; give the directory that holds commitlog/")
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
        try:
            files = MappedFileQueue.open(directory)
        except StoreCorrupt:
            continue  # reported by the check of this queue
        try:
            queue = ConsumeQueue(topic, queue_id, files)
            if queue.max_offset > queue.min_offset:
                physical_offset, size, _ = queue.unit(queue.max_offset - 1)
                end = max(end, physical_offset + size)
        finally:
            files.close()
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
    try:
        log = _LogSummary(files, served_end, detect_multi_dispatch(store))
        yield from _check_log(log, progress)
        for topic, queue_id, directory in queue_directories(store / "consumequeue"):
            yield from _check_queue(log, topic, queue_id, directory)
        if is_diverged_tail(store):
            return
        for (topic, queue_id), expected in sorted(log.queues.items()):
            offset = min(expected.values())
            yield _at(files, offset, f"{len(expected)} records of {topic}-{queue_id} have no unit, this one first")
        yield from _check_index(log, store / "index", index_slots)
        yield from _check_epochs(log, store)
        if not served:
            yield from _check_checkpoint(log, store / "checkpoint")
        if progress is not None:
            progress(files.end - files.begin, files.end - files.begin)
    finally:
        files.close()


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


def _check_log(log: _LogSummary, progress: Callable[[int, int], None] | None) -> Iterator[CheckFinding]:
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


def _add_run(log: _LogSummary, run: RecordRun) -> Iterator[CheckFinding]:
    log.end = run.end
    log.last_timestamp = max(log.last_timestamp, int(run.store_timestamps.max()))
    count = len(run.positions)
    if log.served_end is not None:
        count = int(np.searchsorted(run.positions, log.served_end - run.file.begin))
    log.timestamps += run.store_timestamps[:count].tolist()
    for position in run.positions.tolist():
        if log.served_end is not None and run.file.begin + position >= log.served_end:
            return
        log.offsets.append(run.file.begin + position)
        try:
            outline = peek(run.file.map, position)
        except InvalidMessage as error:
            yield CheckFinding(run.file.path, position, str(error))
            continue
        if sysflag.is_dispatched(outline.sys_flag):
            own = (outline.topic, outline.queue_id)
            stored = bytes(run.file.map[outline.properties_begin : outline.properties_end])
            units = {own: outline.queue_offset, **further_units(stored, own, log.multi_dispatch)}
            for queue, queue_offset in units.items():
                what = _add_unit(log.queues.setdefault(queue, {}), queue, queue_offset, outline.physical_offset)
                if what is not None:
                    yield CheckFinding(run.file.path, position, what)


def _add_unit(expected: dict[int, int], queue: tuple[str, int], queue_offset: int, physical_offset: int) -> str | None:
    what = None
    if queue_offset == 0 and expected:
        expected.clear()  # the topic was deleted and created again
    elif expected and (queue_offset - 1 not in expected or queue_offset in expected):
        what = f"queueOffset is {queue_offset}, but the record before it in {queue[0]}-{queue[1]} has {max(expected)}"
    expected[queue_offset] = physical_offset
    return what


def _check_epochs(log: _LogSummary, store: Path) -> Iterator[CheckFinding]:
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


def _check_queue(log: _LogSummary, topic: str, queue_id: int, directory: Path) -> Iterator[CheckFinding]:
    records = log.queues.pop((topic, queue_id), {})
    try:
        files = MappedFileQueue.open(directory)
    except StoreCorrupt as error:
        yield CheckFinding(Path(error.path), error.position, error.why)
        return
    try:
        queue = ConsumeQueue(topic, queue_id, files)
        # Every unit points at its record. Found records are removed, so that those without a unit are left.
        for queue_offset in range(queue.min_offset, queue.max_offset):
            physical_offset, size, _ = queue.unit(queue_offset)
            if physical_offset < log.files.begin:
                continue
            if log.served_end is not None and physical_offset >= log.served_end:
                break
            actual = records.pop(queue_offset, None)
            what = None
            if size == FILLER_SIZE:
                what = f"unit {queue_offset} is a filler, but not before the first unit"
            elif actual is None:
                what = f"unit {queue_offset} points at {physical_offset}, but the log has no such message"
            elif actual != physical_offset or size != _size_at(log.files, physical_offset):
                what = f"unit {queue_offset} points at {size} bytes from {physical_offset}; the record is at {actual}"
            if what is not None:
                file = files.find(queue_offset * UNIT_SIZE)
                assert file is not None
                yield CheckFinding(file.path, queue_offset * UNIT_SIZE - file.begin, what)
        for queue_offset, physical_offset in sorted(records.items()):
            yield _at(log.files, physical_offset, f"message {queue_offset} of {topic}-{queue_id} has no unit")
        if log.served_end is None:
            yield from _check_zeros_after(files, queue.max_offset * UNIT_SIZE)
    finally:
        files.close()


def _check_zeros_after(files: MappedFileQueue, end: int) -> Iterator[CheckFinding]:
    for file in files:
        position = max(end - file.begin, 0)
        if not file.is_zero_from(position):
            yield CheckFinding(file.path, position, "after the last unit there are bytes other than zeros")


def _size_at(files: MappedFileQueue, physical_offset: int) -> int:
    file = files.find(physical_offset)
    try:
        return peek(file.map, physical_offset - file.begin).size if file is not None else -1
    except InvalidMessage:
        return -1


def _check_index(log: _LogSummary, directory: Path, slot_count: int) -> Iterator[CheckFinding]:
    offsets, times = np.array(log.offsets, np.int64), np.array(log.timestamps, np.int64)
    files: list[IndexFile] = []
    try:
        paths = list(index_paths(directory))
        for path in paths if log.served_end is None else paths[:-1]:
            try:
                files.append(IndexFile.open(path, slot_count))
            except StoreCorrupt as error:
                yield CheckFinding(path, error.position, error.why)
                continue
            yield from _check_index_file(files[-1], offsets, times, log.files.begin)
    finally:
        Index(directory, slot_count, 0, files).close()


def _check_index_file(
    index: IndexFile, offsets: npt.NDArray[np.int64], times: npt.NDArray[np.int64], begin: int
) -> Iterator[CheckFinding]:
    path = index.file.path
    # The counts in the header, on which all else depends.
    if not 1 <= index.count <= index.max_count:
        yield CheckFinding(path, 36, f"indexCount is {index.count}; the file has room for {index.max_count}")
        return
    entries, slots = index.entries(), index.slots().astype(np.int64)
    used = np.flatnonzero(slots)
    if len(used) != index.slots_used:
        yield CheckFinding(path, 32, f"hashSlotCount is {index.slots_used}, but {len(used)} slots are in use")
    outside = (slots < 0) | (slots >= index.count)
    for slot in np.flatnonzero(outside)[:10].tolist():
        yield CheckFinding(path, HEADER_SIZE + 4 * slot, f"the slot points at entry {slots[slot]} of {index.count - 1}")
    if outside.any() or not len(entries):
        return
    yield from _check_entries(index, entries, slots[used], offsets, begin)
    for position, name, stated, entry in (
        (16, "beginPhyOffset", index.begin_physical_offset, 0),
        (24, "endPhyOffset", index.end_physical_offset, -1),
    ):
        if stated != int(entries["physical_offset"][entry]):
            actual = int(entries["physical_offset"][entry])
            which = ("first", "last")[entry]
            yield CheckFinding(path, position, f"{name} is {stated}, but the {which} entry has {actual}")
    yield from _check_index_times(index, entries, offsets, times)


def _check_entries(
    index: IndexFile,
    entries: npt.NDArray[np.void],
    used_slots: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    begin: int,
) -> Iterator[CheckFinding]:
    numbers = np.arange(1, index.count)
    previous = entries["previous"].astype(np.int64)
    hashes = entries["hash"].astype(np.int64)
    wrong = (previous < 0) | (previous >= numbers)
    # Count the references to each entry, from a slot or a later entry. Entry 0 means the end of a chain.
    reached = np.zeros(index.count, np.int64)
    np.add.at(reached, used_slots, 1)
    np.add.at(reached, previous[~wrong], 1)
    reached[0] = 1
    other_slot = np.zeros(len(entries), bool)
    linked = (previous > 0) & ~wrong
    other_slot[linked] = hashes[linked] % index.slot_count != hashes[previous[linked] - 1] % index.slot_count
    physical_offsets = entries["physical_offset"]
    unknown = (physical_offsets < 0) | (physical_offsets >= begin) & ~_is_in(physical_offsets, offsets)
    entries_at = HEADER_SIZE + 4 * index.slot_count
    for bad, what in (
        (wrong, "the chain does not lead back"),
        (other_slot, "the chain leads into another slot"),
        (reached[1:] != 1, "the entry is in no chain, or in two"),
        (hashes < 0, "the hash is negative"),
        (entries["seconds"] < 0, "the time difference is negative"),
        (unknown, "the entry points at no record of the log"),
    ):
        for k in np.flatnonzero(bad)[:10].tolist():
            yield CheckFinding(index.file.path, entries_at + 20 * (k + 1), f"entry {k + 1}: {what}")


def _is_in(values: npt.NDArray[np.int64], ascending: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """A faster isin for ascending values."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    found: npt.NDArray[np.bool_] = ascending[np.searchsorted(ascending, values).clip(max=len(ascending) - 1)] == values
    return found


def _check_index_times(
    index: IndexFile, entries: npt.NDArray[np.void], offsets: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
) -> Iterator[CheckFinding]:
    at = np.searchsorted(offsets, entries["physical_offset"])
    known = _is_in(entries["physical_offset"], offsets)
    stored = times[np.where(known, at, 0)] if len(times) else np.zeros(len(entries), np.int64)
    for position, name, stated, entry in (
        (0, "beginTimestamp", index.begin_timestamp, 0),
        (8, "endTimestamp", index.end_timestamp, -1),
    ):
        if known[entry] and stated != int(stored[entry]):
            yield CheckFinding(
                index.file.path, position, f"{name} is {stated}, but the message has {int(stored[entry])}"
            )
    expected = ((stored - index.begin_timestamp) // 1000).clip(0, 0x7FFFFFFF)  # the range of the field
    # The first entry was written before the file had its beginTimestamp.
    wrong = known & (entries["seconds"] != expected) & (index.begin_timestamp > 0)
    for k in np.flatnonzero(wrong[1:])[:10].tolist():
        position = HEADER_SIZE + 4 * index.slot_count + 20 * (k + 2)
        yield CheckFinding(
            index.file.path, position, f"entry {k + 2}: {entries['seconds'][k + 1]} s, but it is {expected[k + 1]} s"
        )


def _check_checkpoint(log: _LogSummary, path: Path) -> Iterator[CheckFinding]:
    if not path.exists():
        if log.offsets:
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
