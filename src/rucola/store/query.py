"""Queries by key: the latest records that have a key with a given hash.

Both steps, in the index and in the log, are small (see `rucola.slices`), since millions of messages may have one key.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from rucola.store.commit_log import CommitLog
from rucola.store.config import QueryResult
from rucola.store.index import Index

MAX_QUERY_SIZE: Final = 8 * 1024 * 1024
"""Bytes of records that a query returns, beyond the first: a frame has 16 MiB at most."""
_STEP: Final = 8
"""Records in a step. Each may have to be read from the disk."""


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
    records: list[bytes] = []
    offsets: list[int] = []
    size = 0
    latest_first = physical_offsets[::-1]
    # One wait for the disk serves all: 32 cold records take a third of the CPU and a quarter of the time.
    log.read_ahead(physical_offsets)
    while latest_first and size <= MAX_QUERY_SIZE:
        found = log.records(latest_first[:_STEP], MAX_QUERY_SIZE - size)
        for physical_offset, record in zip(latest_first, found, strict=False):
            if record is not None:
                size += len(record)
                if size <= MAX_QUERY_SIZE or not records:
                    records.append(record)
                    offsets.append(physical_offset)
        del latest_first[: len(found)]
        yield
    return records[::-1], offsets[::-1]
