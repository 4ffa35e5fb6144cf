"""Queries for messages and ConsumeQueue units.

QUERY_MESSAGE (12) by key or unique key, VIEW_MESSAGE_BY_ID (33) by physical offset, and QUERY_CONSUME_QUEUE (321).
Response bodies of the first two are complete records. A query by key returns the records whose keys have the same hash;
the caller compares the keys themselves. The ext field `_UNIQUE_KEY_QUERY` tells whether the key is a unique key.
"""

from __future__ import annotations

from msgspec import field

from rucola.protocol.body import Body
from rucola.protocol.command import Header
from rucola.protocol.heartbeat import SubscriptionData


class QueryMessageRequestHeader(Header, kw_only=True):
    """QUERY_MESSAGE: a key and an inclusive window of store times, in milliseconds.

    `before_physical_offset` is Rucola's own, for paging: only records below it are returned. A broker that knows it
    reports the range of its index in the response.
    """

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool | str = field(name="_UNIQUE_KEY_QUERY", default="false")
    before_physical_offset: int | None = field(name="_BEFORE_PHYSICAL_OFFSET", default=None)


class QueryMessageResponseHeader(Header, kw_only=True):
    """Store time and physical offset of the last indexed message. 0 if none was found.

    `index_begin_timestamp` and `index_end_timestamp` are Rucola's own: the store times of the first and last message in
    the index, 0 if it is empty, -1 if the broker keeps none.
    """

    index_last_update_timestamp: int
    index_last_update_phyoffset: int
    index_begin_timestamp: int | None = field(name="_INDEX_BEGIN_TIMESTAMP", default=None)
    index_end_timestamp: int | None = field(name="_INDEX_END_TIMESTAMP", default=None)


class ViewMessageRequestHeader(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID: the physical offset of a record."""

    offset: int


class QueryConsumeQueueRequestHeader(Header, kw_only=True):
    """QUERY_CONSUME_QUEUE: `count` units from queue offset `index` on, and a group's subscription."""

    topic: str
    queue_id: int
    # A queue offset.
    index: int
    count: int = 0
    consumer_group: str | None = None


class ConsumeQueueData(Body, kw_only=True):
    """One ConsumeQueue unit.

    `eval` is the result of a bloom filter, which units do not have here.
    """

    eval: bool = False
    physic_offset: int
    physic_size: int
    # Hash code of the tag, or the delivery time of a delayed message.
    tags_code: int


class QueryConsumeQueueResponseBody(Body, kw_only=True):
    """The response body of QUERY_CONSUME_QUEUE: the ends of the queue and the requested units."""

    filter_data: str | None = None
    # End of the queue, the offset of its next message.
    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: list[ConsumeQueueData] = []
    subscription_data: SubscriptionData | None = None
