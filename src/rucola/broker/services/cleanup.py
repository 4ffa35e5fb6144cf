"""Clean-up on request: expired CommitLog files, and ConsumeQueues of deleted topics.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate differences: Apache deletes the
empty queues of every topic. A deleted queue restarts at 0, and a group that had consumed it to its end would miss the
next messages; therefore an existing topic keeps its queues. Apache's CLEAN_UNUSED_TOPIC also deletes queues of deleted
topics whose messages are still in the log, and a recovery would restore them; here they stay as long as their messages.
"""

from __future__ import annotations

import asyncio

from rucola.broker.tables.topics import TopicConfigTable
from rucola.store.message_store import MessageStore


class CleanupService:
    def __init__(self, store: MessageStore, topics: TopicConfigTable) -> None:
        self._store = store
        self._topics = topics

    def delete_expired_files(self) -> None:
        """Have the next run of the retention, within cleanResourceInterval, delete expired files at any hour."""
        self._store.request_manual_deletion()

    async def delete_unused_queues(self) -> None:
        """Delete the ConsumeQueues of deleted topics whose messages have all left the log."""
        for topic, queue_id in self._store.queues():
            if self._topics.get(topic) is None and not self._topics.is_system_topic(topic):
                self._store.delete_queue(topic, queue_id)
                await asyncio.sleep(0)  # there may be thousands; let requests in between
