"""Clean-up: expired CommitLog files on request, and ConsumeQueues of deleted topics when their messages have expired.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate differences: Apache deletes the
empty queues of every topic. A deleted queue restarts at 0, and a group that had consumed it to its end would miss the
next messages; therefore an existing topic keeps its queues. Apache's CLEAN_UNUSED_TOPIC also deletes queues of deleted
topics whose messages are still in the log, and a recovery would restore them; here they stay as long as their messages.
"""

from __future__ import annotations

import asyncio
from typing import Final

from rucola.broker.state import BrokerState

_QUEUES_PER_STEP: Final = 256


class CleanupService:
    def __init__(self, state: BrokerState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._offsets = state.offsets
        self._tiered = state.tiered

    def delete_expired_files(self) -> None:
        """Have the next run of the retention, within cleanResourceInterval, delete expired files at any hour."""
        self._store.request_manual_deletion()

    async def delete_unused_queues(self) -> None:
        """Delete the ConsumeQueues of deleted topics whose messages have all left the log, and the offsets on them."""
        for number, (topic, queue_id) in enumerate(self._store.queue_names()):
            is_unused = self._topics.get(topic) is None and not self._topics.is_system_topic(topic)
            is_deleted = is_unused and self._store.delete_queue(topic, queue_id)
            if is_deleted:
                self._offsets.remove_queue(topic, queue_id)
                self._tiered.remove_queue(topic, queue_id)
            if is_deleted or number % _QUEUES_PER_STEP == 0:
                await asyncio.sleep(0)  # there may be thousands; let requests in between
