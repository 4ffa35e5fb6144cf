"""Finding messages: QUERY_MESSAGE (12) by key or unique key, VIEW_MESSAGE_BY_ID (33) by physical offset.

Bodies are whole records. A key query returns what has the key's hash; the caller compares the real keys. Whether
the key is a unique key stands in the ext field `_UNIQUE_KEY_QUERY` beside the header.
"""

from __future__ import annotations

from msgspec import field

from rucola.protocol.command import Header


class QueryMessageRequestHeader(Header, kw_only=True):
    """A key and a window of store times, in milliseconds, both ends included."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool | str = field(name="_UNIQUE_KEY_QUERY", default="false")


class QueryMessageResponseHeader(Header, kw_only=True):
    """How far the index reaches."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class ViewMessageRequestHeader(Header, kw_only=True):
    """The physical offset of one record."""

    offset: int
