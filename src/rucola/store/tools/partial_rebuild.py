"""A rebuild in pieces that can be made apart from each other, by many processes, and fit together byte by byte.

    scan_log_file             one file of the log: the units of its records, and how many entries their keys make in the
    index write_consume_queue         one ConsumeQueue, from the units of all files in the order of the log
    plan_index_files          which files of the log hold the entries of each index file, once they are counted
    write_index_file    one file of the index, from those files of the log that hold its entries

The units of a record depend on the record alone, and of a queue only the order. An index file depends on the order of
the entries, on its number and on the last entry before it: entry k of the log lies in file k // (maxIndexNum - 1). So
the entries are counted first, and then each index file is written for itself.

`rebuild.build` does the same in one pass and one process; `rucola.spark.jobs.rebuild` puts the pieces together.
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
from rucola.store.consume_queue import iter_units
from rucola.store.dispatch import (
    ConsumeQueues,
    Dispatcher,
    DispatchRequest,
    Entries,
    index_entries_of,
    index_keys_of,
    read_dispatch_request,
)
from rucola.store.index import IndexFile, index_file_name, later_name
from rucola.store.mapped_file import MappedFileQueue, file_paths
from rucola.store.scan import ScanEnd, scan_file
from rucola.store.tools.rebuild import damaged, queue_offset_mismatch


class UnitRun(NamedTuple):
    """Units of one queue that follow each other from `queue_offset` on; the first points at `physical_offset`."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    units: bytes


class ScannedLogFile(NamedTuple):
    """A file of the log that was read: its records end at `end`, and with `is_last` so does the log."""

    begin: int
    end: int
    is_last: bool
    messages: int
    entries: int


class IndexSource(NamedTuple):
    """A file of the log that holds entries of an index file: where it begins, and the number of its first entry."""

    begin: int
    first_entry: int


def log_files(log: Path) -> list[int]:
    """Return where the files of a log begin, physical offsets in order."""
    return [int(path.name) for path in file_paths(log)]


def scan_log_file(log: Path, begin: int, settings: StoreConfig) -> Iterator[UnitRun | ScannedLogFile]:
    """Yield the units of the log's file that begins at a physical offset, and at last what it was.

    Raises StoreCorrupt where the log is damaged.
    """
    files = MappedFileQueue.open(log)
    try:
        dispatcher = _dispatcher(settings)
        messages = entries = 0
        for item in _batches(files, begin):
            if isinstance(item, ScanEnd):
                end = item.physical_offset
                yield ScannedLogFile(begin, end, end < begin + files.file_size, messages, entries)
                return
            messages += len(item)
            entries += len(index_keys_of(item)[0])
            for (topic, queue_id), (queue_offset, units, _, _) in dispatcher.units_by_queue(item).items():
                physical_offset, _, _ = next(iter_units(units[0]))
                yield UnitRun(topic, queue_id, queue_offset, physical_offset, b"".join(units))
    finally:
        files.close()


def write_consume_queue(log: Path, target: Path, runs: Iterable[UnitRun], settings: StoreConfig) -> int:
    """Write the files of one queue under `target/consumequeue`, down to the disk; return how many units it has.

    `runs` are all of the queue, in the order of the log. What was there of this queue, from an attempt that failed, is
    removed. Raises StoreCorrupt where a message is not in its turn.
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
                queue.truncate(0)  # the topic was deleted and made anew: its queue starts over
            elif run.queue_offset != expected:
                why = queue_offset_mismatch(run.topic, run.queue_id, run.queue_offset, expected or 0)
                raise damaged(files, run.physical_offset, why)
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
    """Write file `number` of the index, counted from 0, down to the disk; return the store time of its first message.

    `parts` are the log's files, in order, that hold its entries and the one before them. What was in the place of the
    file is removed.
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
    """Return the names of index files in order, given the store time of the first message of each."""
    names: list[str] = []
    for timestamp in first_timestamps:
        name = index_file_name(timestamp)
        names.append(later_name(name, names[-1]) if names else name)
    return names


def plan_index_files(taken: Sequence[ScannedLogFile], settings: StoreConfig) -> list[tuple[int, list[IndexSource]]]:
    """Return for each index file of a log, whose files are given in order, its number and its parts."""
    room = _entries_a_file(settings)
    firsts = [0, *accumulate(each.entries for each in taken)]
    parts = [(IndexSource(each.begin, first), first + each.entries) for each, first in zip(taken, firsts, strict=False)]
    return [
        (number, [part for part, end in parts if part.first_entry < (number + 1) * room and end >= number * room])
        for number in range(-(-firsts[-1] // room))
    ]


def _entries_a_file(settings: StoreConfig) -> int:
    """Return how many entries an index file has when it is full; number 0 is none."""
    return settings.max_index_num - 1


def _entries(files: MappedFileQueue, begin: int) -> Iterator[Entries]:
    """Yield the entries of one file of the log, some at a time."""
    for item in _batches(files, begin):
        if isinstance(item, ScanEnd):
            return
        yield index_entries_of(item)


def _batches(files: MappedFileQueue, begin: int) -> Iterator[list[DispatchRequest] | ScanEnd]:
    """Yield the records of one file of the log, in order, and at last its end.

    In a batch the messages of each queue follow each other.
    """
    file = files.find(begin)
    assert file is not None, "the file was there when the work was planned"
    for item in scan_file(file, 0):
        if isinstance(item, ScanEnd):
            if item.damage is not None:
                raise damaged(files, item.physical_offset, item.damage)
            yield item
            return
        batch: list[DispatchRequest] = []
        following: dict[tuple[str, int], int] = {}
        for position in item.positions.tolist():
            try:
                pending = read_dispatch_request(file.map, position)
            except InvalidMessage as error:
                raise damaged(files, begin + position, str(error)) from error
            topic, queue_id, queue_offset, _, _, _, sys_flag, *_ = pending
            if sysflag.is_dispatched(sys_flag):
                name = (topic, queue_id)
                if following.get(name, queue_offset) != queue_offset:
                    yield batch
                    batch, following = [], {}
                following[name] = queue_offset + 1
            batch.append(pending)
        yield batch


def _dispatcher(settings: StoreConfig) -> Dispatcher:
    return Dispatcher(ConsumeQueues(Path(), 0), None, parse_delay_levels(settings.message_delay_level))
