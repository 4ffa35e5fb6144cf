"""Offsets: a group's progress (14, 15), a queue's ends (30, 31), the offset at a time (29), the oldest time (32).

Everything here is a queue offset, a count of messages, never a byte address.
"""

from __future__ import annotations

from rucola.protocol.command import Header


class QueryConsumerOffsetRequestHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET: how far has the group come?"""

    consumer_group: str
    topic: str
    queue_id: int


class UpdateConsumerOffsetRequestHeader(Header, kw_only=True):
    """UPDATE_CONSUMER_OFFSET: the group has done everything below `commit_offset`."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class QueueRequestHeader(Header, kw_only=True):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME: one queue."""

    topic: str
    queue_id: int


class SearchOffsetRequestHeader(Header, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP: the queue offset at a store time in milliseconds."""

    topic: str
    queue_id: int
    timestamp: int


class OffsetResponseHeader(Header, kw_only=True):
    """The answer of every request above but the next."""

    offset: int


class EarliestStoreTimeResponseHeader(Header, kw_only=True):
    """The answer to GET_EARLIEST_MSG_STORETIME, in milliseconds; -1 where the queue is empty."""

    timestamp: int
