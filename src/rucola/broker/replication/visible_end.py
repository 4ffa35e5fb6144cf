"""Visible end: consumers of a SYNC_MASTER with an in-sync set see only messages that all of its members have.

A consumer that had got another message could commit its offset. If the master were lost then, the new one would store a
different message under that offset, which the consumer would never get (apache/rocketmq#7689). So pulls end before the
first message that a member lacks, and pulls that are held there are retried when the members have more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rucola.store.consume_queue import ConsumeQueue
from rucola.store.dispatch import TopicArrivals
from rucola.store.message_store import MessageStore


class VisibleEnd:
    """The visible end of one store. Without a call of `advance`, all messages are visible."""

    def __init__(self, store: MessageStore, wake: Callable[[ConsumeQueue, int], None]) -> None:
        self._store = store
        self._wake = wake
        """Called with a queue, and the queue offset behind its last visible message."""
        self._unseen: dict[ConsumeQueue, None] = {}
        """Queues with messages that are not visible yet, at most all."""

    def on_arrival(self, topics: Mapping[str, TopicArrivals]) -> None:
        """Note the queues of new messages."""
        if self._store.visible_end is not None:
            for queues, _, _ in topics.values():
                self._unseen.update(dict.fromkeys(queues))
            self._wake_seen()

    def advance(self, physical_offset: int) -> None:
        """Let consumers see what ends at or before a physical offset."""
        if self._store.visible_end is None:  # from now on, there may be messages that no pull has seen
            self._unseen.update(dict.fromkeys(self._store.consume_queues()))
        if self._store.visible_end != physical_offset:
            self._store.visible_end = physical_offset
            self._wake_seen()

    def _wake_seen(self) -> None:
        for queue in list(self._unseen):
            end = queue.end_before(self._store.visible_end)
            if end == queue.max_offset:
                del self._unseen[queue]
            self._wake(queue, end)
