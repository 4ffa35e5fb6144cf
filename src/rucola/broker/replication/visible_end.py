"""Visible end: consumers see only messages that are safe.

    SYNC_FLUSH                               on disk
    SYNC_MASTER with an in-sync set          at all its members

Otherwise a consumer could commit the offset of a message that is lost with the power or the master, and never get a
different message that is stored under it later (apache/rocketmq#7689). So pulls end before the first message that is
not safe, and held pulls are retried when more are. The ends of queues for clients are limited likewise, since a group
may start there: `MessageStore.max_offset` for clients, `store_time` and `offset_by_time`.

A slave gets the visible end from its master with the log. If it may have to cut off the end of its log, it shows
nothing before it has compared it with the master's.

Deliberate difference: consumers of Apache RocketMQ 4.9.8 also see what is not on disk yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from rucola.broker.background.group_commit import GroupCommit
from rucola.broker.pop_hold import PopHold
from rucola.broker.pull_request_hold import PullRequestHold
from rucola.store.consume_queue import ConsumeQueue
from rucola.store.dispatch import TopicArrivals
from rucola.store.message_store import MessageStore


class VisibleEnd:
    """The visible end of one store: that on disk with `flushes`, and from the first `advance` on that one.

    Without both, all messages are visible.
    """

    def __init__(
        self, store: MessageStore, hold: PullRequestHold, pops: PopHold, flushes: GroupCommit | None = None
    ) -> None:
        self._store = store
        self._hold = hold
        self._pops = pops
        self._flushes = flushes
        self._replicated: int | None = None
        self._unseen: dict[ConsumeQueue, None] = {}
        if flushes is not None:
            flushes.on_end = self._show
            self._show()

    def on_arrival(self, topics: Mapping[str, TopicArrivals]) -> None:
        """Retry held pulls on the queues of new messages, as soon as these are visible."""
        if self._store.visible_end is not None:
            for queues, _, _ in topics.values():
                self._unseen.update(dict.fromkeys(queues))
            self._wake_seen()
            if self._unseen and self._flushes is not None:
                self._flushes.flush_all()  # nobody may wait for what the broker itself has put
        elif self._hold.held or self._pops.held:  # skips the loop over all topics of the dispatch while none waits
            for queues, _, _ in topics.values():
                for queue in dict.fromkeys(queues):
                    self._arrived(queue)

    def advance(self, physical_offset: int) -> None:
        """Show consumers everything that ends at or before a physical offset, if it is on disk."""
        self._replicated = physical_offset
        self._show()

    def _show(self) -> None:
        end = self._replicated
        if self._flushes is not None:
            flushed = self._store.flushed_physical_offset
            end = flushed if end is None else min(end, flushed)
        if self._store.visible_end is None:  # from now on, there may be messages that no pull has seen
            self._unseen.update(dict.fromkeys(self._store.consume_queues()))
        if self._store.visible_end != end:
            self._store.visible_end = end
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
