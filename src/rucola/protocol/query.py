"""Queries for messages and ConsumeQueue units: codes 12, 33 and 321.

Message bodies are complete records. A query by key returns records whose keys have the same hash; the caller compares
the keys. The ext field `_UNIQUE_KEY_QUERY` marks a unique key.
"""

from __future__ import annotations

from msgspec import field

from rucola.domain.subscription import SubscriptionData
from rucola.protocol.body import Body
from rucola.protocol.command import Header


class QueryMessageRequestHeader(Header, kw_only=True):
    """Store times are inclusive (ms). `before_physical_offset`, Rucola's own, pages: only records below it."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool | str = field(name="_UNIQUE_KEY_QUERY", default="false")
    before_physical_offset: int | None = field(name="_BEFORE_PHYSICAL_OFFSET", default=None)


class QueryMessageResponseHeader(Header, kw_only=True):
    """Last indexed message; 0 for none. Rucola's own `index_…` times: 0 for an empty index, -1 for none."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int
    index_begin_timestamp: int | None = field(name="_INDEX_BEGIN_TIMESTAMP", default=None)
    index_end_timestamp: int | None = field(name="_INDEX_END_TIMESTAMP", default=None)


class ViewMessageRequestHeader(Header, kw_only=True):
    """`offset` is a physical offset."""

    offset: int


class QueryConsumeQueueRequestHeader(Header, kw_only=True):
    topic: str
    queue_id: int
    # A queue offset.
    index: int
    count: int = 0
    consumer_group: str | None = None


class ConsumeQueueData(Body, kw_only=True):
    """A unit. `eval` is the result of a bloom filter, which units do not have here."""

    eval: bool = False
    physic_offset: int
    physic_size: int
    # Hash code of the tag, or the delivery time of a delayed message.
    tags_code: int


class QueryConsumeQueueResponseBody(Body, kw_only=True):
    filter_data: str | None = None
    # The offset of the next message.
    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: list[ConsumeQueueData] = []
    subscription_data: SubscriptionData | None = None
