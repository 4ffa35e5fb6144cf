"""Finding messages: QUERY_MESSAGE (12) by key or unique key, VIEW_MESSAGE_BY_ID (33) by physical offset, and
QUERY_CONSUME_QUEUE (321), the units of a queue.

Bodies are whole records. A key query returns what has the key's hash; the caller compares the real keys. Whether
the key is a unique key stands in the ext field `_UNIQUE_KEY_QUERY` beside the header.
"""

from __future__ import annotations

from msgspec import field

from rucola.protocol.body import Body
from rucola.protocol.command import Header
from rucola.protocol.heartbeat import SubscriptionData


class QueryMessageRequestHeader(Header, kw_only=True):
    """A key and a window of store times, in milliseconds, both ends included.

    `before_physical_offset` is Rucola's own: only records below it count, so that answers can be asked for one after
    the other. Who sends it is told how far the index reaches.
    """

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool | str = field(name="_UNIQUE_KEY_QUERY", default="false")
    before_physical_offset: int | None = field(name="_BEFORE_PHYSICAL_OFFSET", default=None)


class QueryMessageResponseHeader(Header, kw_only=True):
    """The message that was indexed last; 0 where nothing was found.

    `index_begin_timestamp` and `index_end_timestamp` are Rucola's own: the store times of the first and the last
    message in the index, 0 where it is empty and -1 where there is none.
    """

    index_last_update_timestamp: int
    index_last_update_phyoffset: int
    index_begin_timestamp: int | None = field(name="_INDEX_BEGIN_TIMESTAMP", default=None)
    index_end_timestamp: int | None = field(name="_INDEX_END_TIMESTAMP", default=None)


class ViewMessageRequestHeader(Header, kw_only=True):
    """The physical offset of one record."""

    offset: int


class QueryConsumeQueueRequestHeader(Header, kw_only=True):
    """`count` units of a queue from the queue offset `index` on; a group's subscription may be asked for with them."""

    topic: str
    queue_id: int
    index: int
    count: int = 0
    consumer_group: str | None = None


class ConsumeQueueData(Body, kw_only=True):
    """One unit. `eval` belongs to bloom filters, which no unit has here."""

    eval: bool = False
    physic_offset: int
    physic_size: int
    tags_code: int


class QueryConsumeQueueResponseBody(Body, kw_only=True):
    """A queue's ends and some of its units."""

    filter_data: str | None = None
    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: list[ConsumeQueueData] = []
    subscription_data: SubscriptionData | None = None
