"""Offsets of consumer groups.

A group without an offset on a queue starts at 0, independent of ConsumeFromWhere, if the queue still has its first
message and that message counts as being in memory (accessMessageInMemoryMaxRatio). Otherwise the client decides.

Corresponds to `ConsumerManageProcessor` and parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. As in Apache, an
offset may name a topic or queue that does not exist. Deliberate difference: the number of offsets is bounded.
"""

from __future__ import annotations

from rucola import refusals
from rucola.access import Refused
from rucola.broker.state import BrokerState


class OffsetService:
    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._offsets = state.offsets
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
