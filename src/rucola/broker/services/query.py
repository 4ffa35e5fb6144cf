"""Queries: messages by key, by id, and by physical offset.

Corresponds to `QueryMessageProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: a query may ask for records
before a physical offset, which Apache does not offer. It can page through all hits without loss, and its result tells
how far back the index reaches.
"""

from __future__ import annotations

from rucola.access import Reason, Refused
from rucola.broker.config import BrokerConfig
from rucola.message.properties import is_true
from rucola.protocol.query import QueryMessageRequestHeader
from rucola.store.config import QueryResult
from rucola.store.index import MAX_LONG
from rucola.store.message_store import MessageStore


class QueryService:
    """Finds messages through the index and in the CommitLog."""

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self._config = config
        self._store = store

    def by_key(self, request: QueryMessageRequestHeader) -> QueryResult:
        """Return records whose key has the hash of the requested key; callers compare the keys themselves."""
        max_num = self._config.default_query_max_num if is_true(request.unique_key_query) else request.max_num
        before = request.before_physical_offset
        return self._store.query(
            request.topic,
            request.key,
            max_num,
            request.begin_timestamp,
            request.end_timestamp,
            MAX_LONG if before is None else before,
        )

    def by_physical_offset(self, physical_offset: int) -> bytes:
        """Return the record that begins at a physical offset. Raises Refused."""
        record = self._store.record_at(physical_offset)
        if record is None:
            raise Refused(Reason.NOT_FOUND, f"can not find message by the offset, {physical_offset}")
        return bytes(record)
