"""Clean-up on request: expired CommitLog files, and ConsumeQueues of deleted topics.

Expired files are deleted within cleanResourceInterval, at any hour; the request does not wait for that. ConsumeQueues
of deleted topics are deleted at once, if all their messages have left the log.

Corresponds to parts of `AdminBrokerProcessor` of Apache RocketMQ 4.9.8. Deliberate differences: Apache deletes the
empty queues of every topic. A queue that is deleted begins at 0 again, and a group that had consumed it to its end
would miss the next messages; therefore a topic that exists keeps its queues, of which at most one file remains anyway.
CLEAN_UNUSED_TOPIC deletes the queues of deleted topics there while the log still has their messages, and a recovery
after a crash would restore them; here they stay as long as their messages.
"""

from __future__ import annotations

import asyncio

from rucola.broker.tables.topics import TopicConfigTable
from rucola.store.message_store import MessageStore


class CleanupService:
    """Deletes files that are no longer needed."""

    def __init__(self, store: MessageStore, topics: TopicConfigTable) -> None:
        self._store = store
        self._topics = topics

    def delete_expired_files(self) -> None:
        """Have the next run of the retention delete expired files, whatever deleteWhen says."""
        self._store.request_manual_deletion()

    async def delete_unused_queues(self) -> None:
        """Delete the ConsumeQueues of topics that no longer exist."""
        for topic, queue_id in self._store.queues():
            if self._topics.get(topic) is None and not self._topics.is_system_topic(topic):
                self._store.delete_queue(topic, queue_id)
                await asyncio.sleep(0)  # there may be thousands; let requests in between
