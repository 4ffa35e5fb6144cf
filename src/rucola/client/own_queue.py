"""OwnQueue: a queue of a consumer's share, with the task that pulls it; Delivery: a message of it on its way.

A queue may begin anew elsewhere: deliveries know the progress they belong to, so those from before count for nothing.
"""

from __future__ import annotations

import asyncio
import time

from rucola.client.process_queue import ProcessQueue
from rucola.message import MessageExt
from rucola.protocol.connections import ProcessQueueInfo
from rucola.protocol.queue import MessageQueue


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class OwnQueue:
    """A queue of this member's share, and the task that pulls it."""

    __slots__ = ("committed", "consumed_ms", "progress", "pulled_ms", "queue", "room", "task")

    def __init__(self, queue: MessageQueue, begin_offset: int) -> None:
        self.queue = queue
        self.progress = ProcessQueue(begin_offset)
        self.committed: int | None = None
        self.pulled_ms = 0
        self.consumed_ms = 0
        self.room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def begin_anew(self, queue_offset: int) -> None:
        """Go on there. What is still held commits nothing any more."""
        self.progress.is_dropped = True
        self.progress = ProcessQueue(queue_offset)
        self.committed = None

    def info(self) -> ProcessQueueInfo:
        """What is held, for operators."""
        progress = self.progress
        return ProcessQueueInfo(
            cached_msg_count=len(progress),
            cached_msg_max_offset=progress.next_offset - 1 if len(progress) else 0,
            cached_msg_min_offset=progress.commit_offset if len(progress) else 0,
            cached_msg_size_in_mi_b=progress.size >> 20,
            commit_offset=progress.commit_offset,
            last_consume_timestamp=self.consumed_ms,
            last_pull_timestamp=self.pulled_ms,
        )


class Delivery:
    """A message on its way to the application. `progress` is that of the pull which brought it."""

    __slots__ = ("message", "own", "progress")

    def __init__(self, own: OwnQueue, progress: ProcessQueue, message: MessageExt) -> None:
        self.own = own
        self.progress = progress
        self.message = message

    def done(self) -> None:
        """The application is done with the message."""
        self.own.consumed_ms = now_ms()
        if self.progress.done(self.message.queue_offset) and self.progress.has_room:
            self.own.room.set()
