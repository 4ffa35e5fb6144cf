"""Offsets of consumer groups and queues: codes 14, 15 and 29 to 32. All are queue offsets, never physical offsets."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

from rucola import fastjson
from rucola.protocol.command import Header

_ENTRIES_PER_STEP: Final = 64


def offset_table_steps(table: Mapping[str, Mapping[int, int]]) -> Generator[None, None, bytes]:
    """Encode the body of GET_ALL_CONSUMER_OFFSET in small steps (see `rucola.slices`)."""
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
    consumer_group: str
    topic: str
    queue_id: int


class UpdateConsumerOffsetRequestHeader(Header, kw_only=True):
    """The group has consumed all messages below `commit_offset`."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class QueueRequestHeader(Header, kw_only=True):
    topic: str
    queue_id: int


class SearchOffsetRequestHeader(Header, kw_only=True):
    """`timestamp` is a store time in milliseconds."""

    topic: str
    queue_id: int
    timestamp: int


class OffsetResponseHeader(Header, kw_only=True):
    offset: int


class EarliestStoreTimeResponseHeader(Header, kw_only=True):
    """A store time in milliseconds, -1 for an empty queue."""

    timestamp: int
