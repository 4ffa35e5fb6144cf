"""Offsets of consumer groups, ends of queues, and offsets by time.

A group without an offset on a queue starts at 0, independent of ConsumeFromWhere, if the queue still has its first
message and that message counts as being in memory (accessMessageInMemoryMaxRatio). Otherwise the client decides.

Corresponds to `ConsumerManageProcessor` and parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. As in Apache, an
offset may name a topic or queue that does not exist. Deliberate difference: the number of offsets is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping

from rucola import refusals
from rucola.access import Refused
from rucola.broker.role import LogPosition
from rucola.broker.state import BrokerState


class OffsetService:
    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._mastership = state.mastership
        self._offsets = state.offsets
        self._delayed = state.delayed
        self._limits = state.limits

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return a group's offset on a queue. Raises Refused if it has none and the client is to decide."""
        queue_offset = self._offsets.get(group, topic, queue_id)
        if queue_offset >= 0:
            return queue_offset
        if self._is_old(topic, queue_id):
            raise Refused(refusals.NO_CONSUMER_OFFSET, group=group, topic=topic, queue_id=queue_id)
        return 0

    def _is_old(self, topic: str, queue_id: int) -> bool:
        store = self._store
        if store.min_offset(topic, queue_id) > 0:
            return True
        first = store.units(topic, queue_id, 0, 1)
        return bool(first) and store.config.is_on_disk(store.max_physical_offset - first[0][0])

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store a group's offset on a queue. Raises Refused for a new offset if the table is full."""
        self._limits.check_offset(self._offsets, group, topic, queue_id)
        self._offsets.commit(group, topic, queue_id, queue_offset)

    def by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first visible message stored at a time, else of the nearest; 0 without messages."""
        return self._store.offset_by_time(topic, queue_id, timestamp_ms)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end offset of the visible messages."""
        return self._store.max_offset(topic, queue_id, visible=True)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._store.min_offset(topic, queue_id)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return when the first message was stored, milliseconds since 1970; -1 without messages."""
        return self._store.earliest_store_time(topic, queue_id)

    def consumer_offsets_since(self, version: str | None) -> tuple[str, Mapping[str, Mapping[int, int]]]:
        """Return the table's version, and the offsets by "topic@group" and queue id that changed since `version`."""
        return self._offsets.version, self._offsets.changes_since(version)

    def delay_offsets(self) -> Mapping[int, int]:
        """Return the progress of each delay level: queue offsets of SCHEDULE_TOPIC_XXXX by level."""
        return self._delayed.progress()

    def log_begin(self) -> int:
        return self._store.min_physical_offset

    def log_position(self) -> LogPosition:
        """Return the end of the log. Read after the offsets, it covers everything that they count as delivered."""
        return self._mastership.position
