"""Record boundaries in a CommitLog: its end, the next record, the address after n records.

Records are chained: the size in a record's frame is the distance to the next one. A walk along the chain
(`StoreReader.runs`) yields runs of whole records and ends with a `ScanEnd` where no whole record begins. ConsumeQueue
units point at records independently of the chain, so they lead past damage and to the end without a walk over the whole
log.
"""

from __future__ import annotations

from rucola.store.directory_reader import StoreReader
from rucola.store.scan import ScanEnd


def log_end(reader: StoreReader) -> int:
    """Return the physical offset after the last whole record.

    Bytes after it are unwritten, or being written by a running broker. Damage with more records after it is not the
    end: the read that meets it reports it.
    """
    # 1. Begin at the last record that a ConsumeQueue knows, so that only records not dispatched yet are walked.
    begin = max([queue_log_end(reader, *queue) for queue in reader.queues()], default=0)
    # 2. Follow the chain to its end.
    end = _chain_end(reader, max(begin, reader.min_physical_offset))
    # 3. A later file may hold records although the chain broke before it.
    for file in reader.commit_log_files:
        if file.begin > end and (further := _chain_end(reader, file.begin)) > file.begin:
            end = further
    return end


def _chain_end(reader: StoreReader, begin: int) -> int:
    """Return the physical offset at which the chain of whole records from `begin` ends."""
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
    """Return the address after `count` records, and the number of records before it.

    The address is at most `end`. Damage is included up to the next record, so that the batch that contains it reports
    it.
    """
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
    """Return the address of a record at or after `physical_offset`, None if none is known.

    Candidates are the ConsumeQueue units, found by binary search, and the beginning of the next file. With `max_queues`
    only the largest queues are searched; the result is near the next record then, but not always the next one.
    """
    queues = sorted(reader.queues().items(), key=lambda item: item[1][0] - item[1][1])[:max_queues]
    found = [_next_in_queue(reader, *name, *bounds, physical_offset) for name, bounds in queues]
    found += [file.begin for file in reader.commit_log_files if file.begin >= physical_offset][:1]
    return min((offset for offset in found if offset is not None), default=None)


def _next_in_queue(
    reader: StoreReader, topic: str, queue_id: int, begin: int, end: int, physical_offset: int
) -> int | None:
    """Return the address of a queue's first record at or after `physical_offset`."""
    found = search_queue(reader, topic, queue_id, begin, end, physical_offset)
    return int(reader.units(topic, queue_id, found, found + 1)["physical_offset"][0]) if found < end else None


def search_queue(reader: StoreReader, topic: str, queue_id: int, begin: int, end: int, physical_offset: int) -> int:
    """Return the first queue offset whose record is at or after `physical_offset`.

    It is in [begin, end), or `end` if there is none. A binary search: units of a queue ascend by physical offset.
    """
    while begin < end:
        middle = (begin + end) // 2
        if int(reader.units(topic, queue_id, middle, middle + 1)["physical_offset"][0]) < physical_offset:
            begin = middle + 1
        else:
            end = middle
    return begin
