"""Parallel rebuild: pieces that many processes build independently and that fit together byte by byte.

    scan_log_file          reads one log file: the units of its records and the number of their index entries
    write_consume_queue    writes one ConsumeQueue from the units of all log files, in order
    plan_index_files       computes which log files hold the entries of each index file, from the numbers of entries
    write_index_file       writes one index file from the log files that hold its entries

Entry k of the log is in index file k // (maxIndexNum - 1), so the entries are counted first; then each index file can
be written independently, given the last entry before it. For example, with maxIndexNum=11:

    log file        entries    first entry          index file    entries     log files to read
    0               7          0                    0             0 to 9      0, 1073741824
    1073741824      8          7                    1             10 to 14    1073741824

`rebuild.build` does the same in one process; `rucola.spark.jobs.rebuild` runs the pieces in Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from rucola.errors import InvalidMessage
from rucola.files import sync_directory
from rucola.message import sysflag
from rucola.message.delay import parse_delay_levels
from rucola.store.config import StoreConfig
from rucola.store.consume_queue import first_unit, queue_offset_mismatch
from rucola.store.dispatch import (
    CommitLogDispatcher,
    ConsumeQueues,
    Entries,
    index_entries_of,
    index_keys,
)
from rucola.store.dispatch_request import (
    DispatchRequest,
    dispatch_requests,
    read_dispatch_request,
    read_requests,
)
from rucola.store.index import IndexFile, index_file_name, later_name
from rucola.store.mapped_file import MappedFileQueue, file_paths
from rucola.store.multi_dispatch import MultiDispatch
from rucola.store.scan import ScanEnd, scan_file
from rucola.store.tools.rebuild import damaged_log


class UnitRun(NamedTuple):
    """Consecutive units of one queue from `queue_offset` on; the first points at `physical_offset`."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    units: bytes


class ScannedLogFile(NamedTuple):
    """The summary of one log file, whose records end at `end`; with `is_last` the log ends there too."""

    begin: int
    end: int
    is_last: bool
    messages: int
    entries: int


class IndexSource(NamedTuple):
    """A log file with entries of an index file: its start and first entry's number."""

    begin: int
    first_entry: int


def log_files(log: Path) -> list[Path]:
    return file_paths(log)


def scan_log_file(log: Path, begin: int, settings: StoreConfig) -> Iterator[UnitRun | ScannedLogFile]:
    """Yield the units of the log file at `begin`, and finally its summary. Raises StoreCorrupt."""
    files = MappedFileQueue.open(log)
    try:
        dispatcher = _dispatcher(settings)
        messages = entries = 0
        for item in _batches(files, begin, settings.multi_dispatch):
            if isinstance(item, ScanEnd):
                end = item.physical_offset
                yield ScannedLogFile(begin, end, end < begin + files.file_size, messages, entries)
                return
            messages += len({request.physical_offset for request in item})
            entries += sum(len(index_keys(request)) for request in item)
            for (topic, queue_id), (queue_offset, units, _, _) in dispatcher.units_by_queue(item).items():
                yield UnitRun(topic, queue_id, queue_offset, first_unit(units)[0], units)
    finally:
        files.close()


def write_consume_queue(log: Path, target: Path, runs: Iterable[UnitRun], settings: StoreConfig) -> int:
    """Write the files of one queue, durably, and return its number of units; `runs` are in log order.

    Replaces files of an earlier attempt. Raises StoreCorrupt if the queue offsets are not consecutive.
    """
    files = MappedFileQueue.open(log)
    queues = ConsumeQueues(target / "consumequeue", settings.mapped_file_size_consume_queue)
    expected: int | None = None
    queue = None
    try:
        for run in runs:
            if queue is None:
                shutil.rmtree(queues.directory / run.topic / str(run.queue_id), ignore_errors=True)
                queue = queues[run.topic, run.queue_id]
                expected = run.queue_offset if files.begin else 0
            if run.queue_offset == 0 and expected:
                queue.truncate(0)  # the topic was deleted and created again
            elif run.queue_offset != expected:
                why = queue_offset_mismatch(run.topic, run.queue_id, run.queue_offset, expected or 0)
                raise damaged_log(files, run.physical_offset, why)
            queue.append(run.queue_offset, run.units)
            expected = queue.max_offset
        if queue is None:
            return 0
        for file in queue.files:
            file.flush()
        for directory in (queue.files.directory, queue.files.directory.parent):
            sync_directory(directory)
        return queue.max_offset - queue.min_offset
    finally:
        files.close()
        for each in queues.values():
            each.files.close()


def write_index_file(log: Path, path: Path, number: int, parts: Sequence[IndexSource], settings: StoreConfig) -> int:
    """Write index file `number`, counted from 0, durably; return its first message's store time.

    `parts` are the log files that hold its entries and the entry before. Replaces a file of an earlier attempt.
    """
    path.unlink(missing_ok=True)
    begin, end = (_entries_a_file(settings) * each for each in (number, number + 1))
    files = MappedFileQueue.open(log)
    index = None
    first_timestamp, before = 0, (0, 0)
    try:
        for part in parts:
            at = part.first_entry
            for hashes, physical_offsets, timestamps in _entries(files, part.begin):
                # File 1 of 100 entries each has entries 100 to 199. A batch of 50 that starts with entry 80 has 100 to
                # 129 of them, from 20 to 50, and `before` is its entry 19.
                first, last = max(begin - at, 0), min(max(end - at, 0), len(hashes))
                if first > 0:
                    before = int(timestamps[:first][-1]), int(physical_offsets[:first][-1])
                if first < last:
                    if index is None:
                        index = IndexFile.create(path, settings.max_hash_slot_num, settings.max_index_num)
                        index.begin_after(*before)
                        first_timestamp = int(timestamps[first])
                    index.put_many(hashes[first:last], physical_offsets[first:last], timestamps[first:last])
                at += len(hashes)
        assert index is not None, "an index file has entries"
        index.file.flush()
        return first_timestamp
    finally:
        files.close()
        if index is not None:
            index.file.close()


def index_names(first_timestamps: Sequence[int]) -> list[str]:
    """Return the names of consecutive index files, given the store times of their first messages."""
    names: list[str] = []
    for timestamp in first_timestamps:
        name = index_file_name(timestamp)
        names.append(later_name(name, names[-1]) if names else name)
    return names


def plan_index_files(taken: Sequence[ScannedLogFile], settings: StoreConfig) -> list[tuple[int, list[IndexSource]]]:
    """Return (number, source log files) of each index file, given all log files in order."""
    room = _entries_a_file(settings)
    firsts = [0, *accumulate(each.entries for each in taken)]
    # With room for 100, a log file with entries 80 to 129 is a source of files 0 and 1. One with 0 to 99 is a source of
    # file 1 as well, for the entry before its first.
    parts = [(IndexSource(each.begin, first), first + each.entries) for each, first in zip(taken, firsts, strict=False)]
    return [
        (number, [part for part, end in parts if part.first_entry < (number + 1) * room and end >= number * room])
        for number in range(-(-firsts[-1] // room))
    ]


def _entries_a_file(settings: StoreConfig) -> int:
    """Return the number of entries of a full index file; entry 0 is never used."""
    return settings.max_index_num - 1


def _entries(files: MappedFileQueue, begin: int) -> Iterator[Entries]:
    for item in _batches(files, begin, MultiDispatch.OFF):
        if isinstance(item, ScanEnd):
            return
        yield index_entries_of(item)


def _batches(files: MappedFileQueue, begin: int, mode: MultiDispatch) -> Iterator[list[DispatchRequest] | ScanEnd]:
    """Yield one log file's records and end, in batches that end before a queue starts over."""
    file = files.find(begin)
    assert file is not None, "the file was there when the work was planned"
    for item in scan_file(file, 0):
        if isinstance(item, ScanEnd):
            if item.damage is not None:
                raise damaged_log(files, item.physical_offset, item.damage)
            yield item
            return
        batch: list[DispatchRequest] = []
        following: dict[tuple[str, int], int] = {}
        positions = item.positions.tolist()
        read = iter(read_requests(file.map, positions[0], item.end - begin))
        for position in positions:
            try:
                request = next(read, None) or read_dispatch_request(file.map, position)
            except InvalidMessage as error:
                raise damaged_log(files, begin + position, str(error)) from error
            requests = dispatch_requests(request, mode)
            if sysflag.is_dispatched(request.sys_flag):
                names = {(each.topic, each.queue_id): each.queue_offset for each in requests}
                # Such a queue starts over, or has a gap, which `write_consume_queue` reports.
                if any(following.get(name, queue_offset) != queue_offset for name, queue_offset in names.items()):
                    yield batch
                    batch, following = [], {}
                following.update((name, queue_offset + 1) for name, queue_offset in names.items())
            batch += requests
        yield batch


def _dispatcher(settings: StoreConfig) -> CommitLogDispatcher:
    return CommitLogDispatcher(ConsumeQueues(Path(), 0), None, parse_delay_levels(settings.message_delay_level))
