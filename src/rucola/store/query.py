"""Queries by key: the latest records that have a key with a given hash.

Both steps, in the index and in the log, are small (see `rucola.slices`), since millions of messages may have one key.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from rucola import speed
from rucola.store.commit_log import CommitLog
from rucola.store.config import QueryResult
from rucola.store.index import Index

MAX_QUERY_SIZE: Final = 8 * 1024 * 1024
"""Bytes of records that a query returns, beyond the first: a frame has 16 MiB at most."""


def query_steps(
    index: Index,
    log: CommitLog,
    topic: str,
    key: str,
    max_count: int,
    begin_ms: int,
    end_ms: int,
    before: int,
    after: int,
) -> Generator[None, None, QueryResult]:
    indexed = index.begin_timestamp, index.end_timestamp
    offsets = yield from index.query_steps(topic, key, max_count, begin_ms, end_ms, before, after)
    if not offsets:
        return QueryResult([], [], 0, 0, indexed)
    records, offsets = yield from latest_records(log, offsets)
    return QueryResult(records, offsets, index.end_timestamp, index.end_physical_offset, indexed)


def latest_records(log: CommitLog, physical_offsets: list[int]) -> Generator[None, None, tuple[list[bytes], list[int]]]:
    """Return the last existing records that fit a response, at least one, with their ascending offsets."""
    file = log.files.find(physical_offsets[0]) if physical_offsets else None
    if speed.read_records is not None and file is not None and log.end <= file.end:  # its pages are mapped
        found = speed.read_records(file.map, file.begin, log.end - file.begin, physical_offsets, MAX_QUERY_SIZE)
        if found is not None:
            return found
    records: list[bytes] = []
    offsets: list[int] = []
    size = 0
    for physical_offset in reversed(physical_offsets):
        record = log.record(physical_offset)
        yield
        if record is None:
            continue
        size += len(record)
        if records and size > MAX_QUERY_SIZE:
            break
        records.append(record)
        offsets.append(physical_offset)
    return records[::-1], offsets[::-1]
