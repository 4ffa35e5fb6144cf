"""AssignedQueue: a queue of a consumer's share; Delivery: messages of it that the application has in hand.

    broker ── pulled ──> waiting ── taken ──> Delivery ── done ──> committed

A queue may begin anew elsewhere: deliveries know the progress they belong to, so those from before count for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from rucola.client.clock import now_ms
from rucola.client.consumer.process_queue import ProcessQueue, PullLimits
from rucola.message import MessageExt
from rucola.protocol.connections import ProcessQueueInfo
from rucola.protocol.queue import MessageQueue


class AssignedQueue:
    """A queue of this member's share: how far it is, what waits, and the task that pulls it.

    `is_offered` says that it stands in the line, `is_held_back` that it may not: in order, while something of it is at
    work, after a failure, and without its lock. `idle` is set while nothing of it is at work in order.
    """

    __slots__ = (
        "committed", "consumed_ms", "idle", "is_given_up", "is_held_back", "is_offered",
        "progress", "pull", "pulled_ms", "queue", "room", "waiting",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, begin_offset: int, limits: PullLimits) -> None:
        self.queue = queue
        self.progress = ProcessQueue(begin_offset, limits)
        self.waiting: deque[MessageExt] = deque()
        self.committed: int | None = None
        self.pulled_ms = 0
        self.consumed_ms = 0
        self.room = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.is_given_up = False
        self.is_held_back = False
        self.is_offered = False
        self.pull: asyncio.Task[None] | None = None

    def begin_anew(self, queue_offset: int) -> None:
        """Go on there. What is still held commits nothing any more."""
        self.progress.is_dropped = True
        self.progress = ProcessQueue(queue_offset, self.progress.limits)
        self.waiting.clear()
        self.committed = None
        self.room.set()

    def limit(self, limits: PullLimits) -> None:
        """Hold so much from now on."""
        self.progress.limits = limits
        self.room.set()

    def info(self, lock_age_ms: int | None) -> ProcessQueueInfo:
        """What is held, for operators. `lock_age_ms` is how long ago its lock was confirmed, None where it has none."""
        progress = self.progress
        return ProcessQueueInfo(
            cached_msg_count=len(progress),
            cached_msg_max_offset=progress.next_offset - 1 if len(progress) else 0,
            cached_msg_min_offset=progress.commit_offset if len(progress) else 0,
            cached_msg_size_in_mi_b=progress.size >> 20,
            commit_offset=progress.commit_offset,
            last_consume_timestamp=self.consumed_ms,
            last_lock_timestamp=0 if lock_age_ms is None else now_ms() - lock_age_ms,
            last_pull_timestamp=self.pulled_ms,
            locked=lock_age_ms is not None,
        )


class Delivery:
    """Messages of one queue, in its order, that the application has in hand. `progress` is theirs."""

    __slots__ = ("messages", "own", "progress")

    def __init__(self, own: AssignedQueue, messages: list[MessageExt]) -> None:
        self.own = own
        self.progress = own.progress
        self.messages = messages

    @property
    def not_done(self) -> list[MessageExt]:
        """The messages that still count: not done, and of a queue that has neither gone nor begun anew."""
        progress = self.progress
        return [] if progress.is_dropped else [m for m in self.messages if progress.holds(m.queue_offset)]

    def done(self, messages: Iterable[MessageExt] | None = None) -> None:
        """The application is done with these messages, or with all of them. Once more: no effect."""
        self.own.consumed_ms = now_ms()
        for message in self.messages if messages is None else messages:
            self.progress.done(message.queue_offset)
        if self.progress.has_room:
            self.own.room.set()
