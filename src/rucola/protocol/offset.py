"""Offsets of consumer groups and queues.

QUERY_CONSUMER_OFFSET (14), UPDATE_CONSUMER_OFFSET (15), SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30),
GET_MIN_OFFSET (31) and GET_EARLIEST_MSG_STORETIME (32). All offsets here are queue offsets, never physical offsets.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

from rucola import fastjson
from rucola.protocol.command import Header

_ENTRIES_PER_STEP: Final = 64


def offset_table_steps(table: Mapping[str, Mapping[int, int]]) -> Generator[None, None, bytes]:
    """Encode the body of GET_ALL_CONSUMER_OFFSET, a generator of small steps (see `rucola.slices`)."""
    parts: list[bytes] = []
    for key, queues in list(table.items()):
        entries: list[bytes] = []
        for entry in list(queues.items()):
            entries.append(b"%d:%d" % entry)
            if len(entries) % _ENTRIES_PER_STEP == 0:
                yield
        parts.append(b"%b:{%b}" % (fastjson.dumps(key), b",".join(entries)))
        yield
    return b'{"offsetTable":{%b}}' % b",".join(parts)


class QueryConsumerOffsetRequestHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET: the consumer offset of a group on a queue."""

    consumer_group: str
    topic: str
    queue_id: int


class UpdateConsumerOffsetRequestHeader(Header, kw_only=True):
    """UPDATE_CONSUMER_OFFSET: the group has consumed all messages below `commit_offset`."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class QueueRequestHeader(Header, kw_only=True):
    """GET_MAX_OFFSET, GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME of one queue."""

    topic: str
    queue_id: int


class SearchOffsetRequestHeader(Header, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP: the queue offset at a store time, in milliseconds."""

    topic: str
    queue_id: int
    timestamp: int


class OffsetResponseHeader(Header, kw_only=True):
    """The response to all requests above except UPDATE_CONSUMER_OFFSET and GET_EARLIEST_MSG_STORETIME."""

    offset: int


class EarliestStoreTimeResponseHeader(Header, kw_only=True):
    """The response to GET_EARLIEST_MSG_STORETIME: a store time in milliseconds, -1 for an empty queue."""

    timestamp: int
