"""Record boundaries in a CommitLog: its end, the next record, the address after n records.

A walk along the chain of sizes (`StoreReader.runs`) ends if no whole record follows. ConsumeQueue units point at
records independently of the chain, so they lead past damage and to the end.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial

from rucola.store.directory_reader import StoreReader
from rucola.store.scan import ScanEnd


def log_end(reader: StoreReader) -> int:
    """Return the offset after the last whole record. Damage before more records is not the end: reads report it."""
    # 1. Start at the last record with a ConsumeQueue unit, so that only records not dispatched yet are walked.
    begin = max([queue_log_end(reader, *queue) for queue in reader.queues()], default=0)
    # 2. Follow the chain to its end.
    end = _chain_end(reader, max(begin, reader.min_physical_offset))
    # 3. A later file may hold records although the chain broke before it.
    for file in reader.commit_log_files:
        if file.begin > end and (further := _chain_end(reader, file.begin)) > file.begin:
            end = further
    return end


def _chain_end(reader: StoreReader, begin: int) -> int:
    for item in reader.runs(begin):
        if isinstance(item, ScanEnd):
            return item.physical_offset
    raise AssertionError("a walk ends with a ScanEnd")


def queue_log_end(reader: StoreReader, topic: str, queue_id: int) -> int:
    """Return the physical offset after a queue's last record, 0 for an empty queue."""
    _, end = reader.queues()[topic, queue_id]
    last = reader.units(topic, queue_id, end - 1, end)
    return int(last["physical_offset"][0] + last["size"][0]) if len(last) else 0


def skip_records(reader: StoreReader, begin: int, end: int, count: int) -> tuple[int, int]:
    """Return the address after `count` records and the damage after them, at most `end`, and their number."""
    left = count
    for item in reader.runs(begin):
        if isinstance(item, ScanEnd):
            following = next_record(reader, item.physical_offset + 1)
            return end if following is None else min(following, end), count - left
        if len(item.positions) > left:
            return min(item.file.begin + int(item.positions[left]), end), count
        left -= len(item.positions)
        if left == 0 or item.end >= end:
            return min(item.end, end), count - left
    raise AssertionError("a walk ends with a ScanEnd")


def next_record(reader: StoreReader, physical_offset: int, max_queues: int | None = None) -> int | None:
    """Return the address of a record at or after `physical_offset`, by units and file starts, None if none is known.

    With `max_queues` only the largest queues are searched; the result may then be a later record near the next one.
    """
    queues = sorted(reader.queues().items(), key=lambda item: item[1][0] - item[1][1])[:max_queues]
    found = [_next_in_queue(reader, *name, *bounds, physical_offset) for name, bounds in queues]
    found += [file.begin for file in reader.commit_log_files if file.begin >= physical_offset][:1]
    return min((offset for offset in found if offset is not None), default=None)


def _next_in_queue(
    reader: StoreReader, topic: str, queue_id: int, begin: int, end: int, physical_offset: int
) -> int | None:
    found = search_queue(reader, topic, queue_id, begin, end, physical_offset)
    return unit_address(reader, topic, queue_id, found) if found < end else None


def search_queue(reader: StoreReader, topic: str, queue_id: int, begin: int, end: int, physical_offset: int) -> int:
    """Return the first queue offset in [begin, end) whose record is at or after `physical_offset`, else `end`."""
    address = partial(unit_address, reader, topic, queue_id)
    return begin + bisect_left(range(begin, end), physical_offset, key=address)


def unit_address(reader: StoreReader, topic: str, queue_id: int, queue_offset: int) -> int:
    """Return the physical offset that a unit points at."""
    return int(reader.units(topic, queue_id, queue_offset, queue_offset + 1)["physical_offset"][0])
