"""Visible end: consumers see only messages that all members of the in-sync set have, on a SYNC_MASTER with such a set.

Otherwise a consumer could commit the offset of a message that is lost with the master, and never get a different
message that the new master stores under it (apache/rocketmq#7689). So pulls end before the first message that a member
lacks, and held pulls are retried when the members have more. The ends of queues for clients are limited likewise, since
a group may start there: `MessageStore.max_offset` for clients, `store_time` and `offset_by_time`.

A slave gets the visible end from its master with the log. If it may have to cut off the end of its log, it shows
nothing before it has compared it with the master's.
"""

from __future__ import annotations

from collections.abc import Mapping

from rucola.broker.pop_hold import PopHold
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.store.consume_queue import ConsumeQueue
from rucola.store.dispatch import TopicArrivals
from rucola.store.message_store import MessageStore


class VisibleEnd:
    """The visible end of one store. Without a call of `advance`, all messages are visible."""

    def __init__(self, store: MessageStore, hold: PullRequestHold, pops: PopHold) -> None:
        self._store = store
        self._hold = hold
        self._pops = pops
        self._unseen: dict[ConsumeQueue, None] = {}

    def on_arrival(self, topics: Mapping[str, TopicArrivals]) -> None:
        """Retry held pulls on the queues of new messages, as soon as these are visible."""
        if self._store.visible_end is not None:
            for queues, _, _ in topics.values():
                self._unseen.update(dict.fromkeys(queues))
            self._wake_seen()
        elif self._hold.held or self._pops.held:  # skips the loop over all topics of the dispatch while none waits
            for queues, _, _ in topics.values():
                for queue in dict.fromkeys(queues):
                    self._arrived(queue)

    def advance(self, physical_offset: int) -> None:
        """Show consumers everything that ends at or before a physical offset."""
        if self._store.visible_end is None:  # from now on, there may be messages that no pull has seen
            self._unseen.update(dict.fromkeys(self._store.consume_queues()))
        if self._store.visible_end != physical_offset:
            self._store.visible_end = physical_offset
            self._wake_seen()

    def _wake_seen(self) -> None:
        ends = {queue: queue.end_before(self._store.visible_end) for queue in self._unseen}
        self._unseen = {queue: None for queue, end in ends.items() if end < queue.max_offset}
        # Last: the read of a retried pull may dispatch, which adds queues and comes here again.
        for queue, end in ends.items():
            self._arrived(queue, end)

    def _arrived(self, queue: ConsumeQueue, end: int | None = None) -> None:
        self._hold.arrived(queue, end)
        self._pops.arrived(queue.topic, queue.queue_id)
