"""AssignedQueue: a consumer's assigned queue; Delivery: messages of it that the application is consuming.

    broker ── fetcher ──> waiting ── ready queue ──> Delivery ── complete ──> committed offset

A reset replaces the process queue of an assigned queue. Deliveries reference the process queue of their messages, so
that completing messages from before a reset has no effect on the offsets after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from rucola.client.clock import now_ms
from rucola.client.consumer.process_queue import ProcessQueue, PullLimits, ReadAhead
from rucola.domain.queue import MessageQueue
from rucola.message import MessageExt
from rucola.protocol.connections import ProcessQueueInfo


class AssignedQueue:
    """A queue of this member's assignment: its offsets, its waiting messages and its fetch task."""

    __slots__ = (
        "capacity", "committed", "consumed_ms", "fetch_task", "idle", "is_blocked", "is_ready", "is_revoked",
        "process_queue", "pulled_ms", "queue", "read_ahead", "waiting",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, begin_offset: int, limits: PullLimits, read_ahead: ReadAhead) -> None:
        self.queue = queue
        self.read_ahead = read_ahead
        self.process_queue = ProcessQueue(begin_offset, limits, read_ahead)
        """The messages between pull and completion; replaced by a reset."""
        self.waiting: deque[MessageExt] = deque()
        """The pulled messages that are not delivered yet, in order."""
        self.committed: int | None = None
        """The offset in the offset store; None if none was committed since the assignment or reset."""
        self.pulled_ms = 0
        """Start of the latest pull, in milliseconds since 1970."""
        self.consumed_ms = 0
        """When a message was last completed, in milliseconds since 1970."""
        self.capacity = asyncio.Event()
        """Cleared by the fetcher while it waits for capacity."""
        self.capacity.set()
        self.idle = asyncio.Event()
        """In order: set while no delivery is in flight. Concurrently: always set."""
        self.idle.set()
        self.is_revoked = False
        self.is_blocked = False
        """Not in the ready queue: in order while a delivery is in flight, after a failure, and without its lock."""
        self.is_ready = False
        self.fetch_task: asyncio.Task[None] | None = None

    def reset(self, queue_offset: int) -> None:
        """Continue at this offset. Earlier messages are not delivered; those in flight affect no offset."""
        self.process_queue.drop()
        self.process_queue = ProcessQueue(queue_offset, self.process_queue.limits, self.read_ahead)
        self.waiting.clear()
        self.committed = None
        self.capacity.set()

    def part(self) -> AssignedQueue:
        """Return a queue for some of the messages, which is ordered separately."""
        part = AssignedQueue(self.queue, 0, self.process_queue.limits, self.read_ahead)
        part.process_queue, part.capacity = self.process_queue, self.capacity
        return part

    def set_limits(self, limits: PullLimits) -> None:
        self.process_queue.limits = limits
        self.capacity.set()

    def info(self, lock_age_ms: int | None) -> ProcessQueueInfo:
        """Return the state for operators; `lock_age_ms` is None without a lock."""
        process_queue = self.process_queue
        return ProcessQueueInfo(
            cached_msg_count=len(process_queue),
            cached_msg_max_offset=process_queue.next_offset - 1 if len(process_queue) else 0,
            cached_msg_min_offset=process_queue.commit_offset if len(process_queue) else 0,
            cached_msg_size_in_mi_b=process_queue.size >> 20,
            commit_offset=process_queue.commit_offset,
            last_consume_timestamp=self.consumed_ms,
            last_lock_timestamp=0 if lock_age_ms is None else now_ms() - lock_age_ms,
            last_pull_timestamp=self.pulled_ms,
            locked=lock_age_ms is not None,
        )


class Delivery:
    """Messages of one queue, in order, that are passed to the application together."""

    __slots__ = ("assigned", "messages", "process_queue")

    def __init__(self, assigned: AssignedQueue, messages: list[MessageExt]) -> None:
        self.assigned = assigned
        self.process_queue = assigned.process_queue
        """The process queue of the messages, even after a reset of the queue."""
        self.messages = messages

    @property
    def incomplete(self) -> list[MessageExt]:
        """The messages that still need a delivery; none after the queue was revoked or reset."""
        process_queue = self.process_queue
        return [] if process_queue.is_dropped else [m for m in self.messages if process_queue.holds(m)]

    def complete(self, messages: Iterable[MessageExt] | None = None) -> None:
        """Complete some of the messages, by default all: they need no further delivery. Idempotent."""
        self.assigned.consumed_ms = now_ms()
        for message in self.messages if messages is None else messages:
            self.process_queue.complete(message)
        self.check_capacity()

    def check_capacity(self) -> None:
        """Resume the fetcher if there is capacity again."""
        if not self.assigned.capacity.is_set() and self.process_queue.has_capacity:
            self.assigned.capacity.set()
