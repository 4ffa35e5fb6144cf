"""Queries by key: the latest records that have a key with a given hash.

The index finds their physical offsets, the log their records. Both are done in small steps (see `rucola.slices`), since
millions of messages may have one key, and records may have megabytes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

from rucola.store.commit_log import CommitLog
from rucola.store.config import QueryResult
from rucola.store.index import Index

MAX_QUERY_SIZE: Final = 8 * 1024 * 1024
"""Bytes of records that a query returns, beyond the first: a frame has 16 MiB at most."""


def query_steps(
    index: Index, log: CommitLog, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, before: int
) -> Generator[None, None, QueryResult]:
    """Find the latest records for a key, a generator of small steps; see `MessageStore.query`."""
    indexed = index.begin_timestamp, index.end_timestamp
    offsets = yield from index.query_steps(topic, key, max_count, begin_ms, end_ms, before)
    if not offsets:
        return QueryResult([], [], 0, 0, indexed)
    found = yield from _latest_records(log, offsets)
    return QueryResult(
        [record for _, record in found],
        [offset for offset, _ in found],
        index.end_timestamp,
        index.end_physical_offset,
        indexed,
    )


def _latest_records(log: CommitLog, physical_offsets: Sequence[int]) -> Generator[None, None, list[tuple[int, bytes]]]:
    """Return the records at ascending physical offsets, each with its own, as many of the last as fit a response.

    Offsets without a record are left out. At least one record is returned, whatever its size.
    """
    found: list[tuple[int, bytes]] = []
    size = 0
    for physical_offset in reversed(physical_offsets):
        record = log.record(physical_offset)
        yield
        if record is None:
            continue
        size += len(record)
        if found and size > MAX_QUERY_SIZE:
            break
        found.append((physical_offset, record))
    return found[::-1]
