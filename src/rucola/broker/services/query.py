"""Queries: messages by key, by id, and by physical offset.

Corresponds to `QueryMessageProcessor` of Apache RocketMQ 4.9.8. Deliberate difference: a query may request records
before a physical offset, to page through all hits, and its result includes how far back the index reaches.
"""

from __future__ import annotations

from typing import NamedTuple

from rucola import refusals
from rucola.access import Caller, Check, Refused, Resource
from rucola.broker.config import BrokerConfig
from rucola.broker.tiered_store import TieredStore
from rucola.message.record import decode
from rucola.store.config import QueryResult
from rucola.store.index import MAX_LONG


class KeyQuery(NamedTuple):
    """Up to `max_num` messages of a topic with a key. Store times are inclusive (ms)."""

    topic: str
    key: str
    max_num: int
    begin_ms: int
    end_ms: int
    before_physical_offset: int | None = None
    """Only records below it."""
    is_unique_key: bool = False
    """Whether the broker chooses the number, as for the key that a client gives each message."""


class QueryService:
    def __init__(self, config: BrokerConfig, tiered: TieredStore, check_read: Check | None = None) -> None:
        self._config = config
        self._tiered = tiered
        self._check_read = check_read

    async def by_key(self, caller: Caller, query: KeyQuery) -> QueryResult:
        """Return records whose key has the requested key's hash; callers compare the keys themselves."""
        max_num = self._config.default_query_max_num if query.is_unique_key else query.max_num
        before = MAX_LONG if query.before_physical_offset is None else query.before_physical_offset
        found = await self._tiered.query(query.topic, query.key, max_num, query.begin_ms, query.end_ms, before)
        if self._check_read is None:
            return found
        # Keys of different topics can have one hash, and a caller can choose its key accordingly.
        allowed = [
            (record, physical_offset)
            for record, physical_offset in zip(found.records, found.physical_offsets, strict=True)
            if self._may_read(caller, record)
        ]
        return found._replace(
            records=[record for record, _ in allowed],
            physical_offsets=[physical_offset for _, physical_offset in allowed],
        )

    async def by_physical_offset(self, caller: Caller, physical_offset: int) -> bytes:
        """Return the record at a physical offset. Raises Refused."""
        record = await self._tiered.record_at(physical_offset)
        if record is None:
            raise Refused(refusals.MESSAGE_NOT_FOUND, physical_offset=physical_offset)
        self._check(caller, record)
        return bytes(record)

    def _may_read(self, caller: Caller, record: bytes) -> bool:
        try:
            self._check(caller, record)
        except Refused:
            return False
        return True

    def _check(self, caller: Caller, record: bytes | memoryview) -> None:
        if self._check_read is not None:
            self._check_read(caller, Resource(decode(record, decompress=False).topic))
