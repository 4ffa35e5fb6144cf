"""ProcessQueue: the messages of one queue between pull and completion.

Messages arrive in the order of their queue offsets and are completed in any order. The offset to commit is the smallest
one that is not completed: a consumer that starts there gets every incomplete message, and possibly some completed ones.

    .. commit_offset - 1      all completed
    commit_offset             the first incomplete message
    .. next_offset - 1        some completed, some not
    next_offset               the offset of the next pull

Invariants: `commit_offset` never exceeds the offset of an incomplete message, never exceeds `next_offset`, and never
decreases. Offsets without a message for this consumer (filtered messages, gaps) count as completed. The fetcher pauses
while `has_capacity` is false; memory is bounded by `PullLimits` and one more pull per queue.

Corresponds to `ProcessQueue`, and to the flow control of `DefaultMQPushConsumerImpl`, of Apache RocketMQ 4.9.8, whose
limits these are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

import msgspec

from rucola.errors import ConfigError
from rucola.message import MessageExt

MEBIBYTE = 1 << 20


class PullLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the messages pulled ahead of the application, per queue, with Apache's names."""

    count: int = 1000
    """Messages: pullThresholdForQueue."""
    size: int = 100 * MEBIBYTE
    """Bytes of bodies: pullThresholdSizeForQueue."""
    span: int | None = 2000
    """Offsets between the first incomplete message and the last one: consumeConcurrentlyMaxSpan. None: no limit."""
    topic_count: int | None = None
    """Messages of all assigned queues of a topic together: pullThresholdForTopic. Replaces `count`."""
    topic_size: int | None = None
    """Bytes, likewise: pullThresholdSizeForTopic. Replaces `size`."""
    total_size: int | None = 256 * MEBIBYTE
    """Bytes of all assigned queues of the consumer together; beyond it, only queues without messages are pulled."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ConfigError(f"pull limit {name} is {limit}: it must be 1 or more")

    def shared_by(self, queues: int, *, in_order: bool) -> PullLimits:
        """Return the limits of each of `queues` assigned queues of a topic. In order, no span can develop."""
        count = self.count if self.topic_count is None else max(1, self.topic_count // queues)
        size = self.size if self.topic_size is None else max(1, self.topic_size // queues)
        return PullLimits(count=count, size=size, span=None if in_order else self.span, total_size=self.total_size)


class ReadAhead:
    """The bytes that all queues of a consumer have pulled ahead, with the events of the fetchers that they hold up."""

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.size = 0
        self.waiting: deque[asyncio.Event] = deque()

    def wake(self, limit: int) -> None:
        """Set an event if there is capacity again, so that not all pull at once; all of them if there is plenty."""
        if self.size < limit:
            for _ in range(len(self.waiting) if self.size <= limit // 2 else 1):
                self.waiting.popleft().set()


class ProcessQueue:
    """The bookkeeping of one queue from `begin_offset`. No clock, no I/O."""

    __slots__ = ("_last_offset", "_read_ahead", "_sizes", "is_dropped", "limits", "next_offset", "size")

    def __init__(self, begin_offset: int, limits: PullLimits, read_ahead: ReadAhead) -> None:
        self.limits = limits
        self._read_ahead = read_ahead
        self.next_offset = begin_offset
        self.size = 0
        """The bytes of the bodies of incomplete messages."""
        self.is_dropped = False
        """Whether the queue was revoked or reset: nothing may be committed any more."""
        self._last_offset = begin_offset
        """Of the last message that was added."""
        self._sizes: dict[int, int] = {}
        """The body size of each incomplete message, by queue offset, in order."""

    def __len__(self) -> int:
        return len(self._sizes)

    def put(self, messages: Iterable[MessageExt], next_offset: int) -> list[MessageExt]:
        """Add a pull's messages and next offset; return those that are new, at or above the current `next_offset`."""
        expected = self.next_offset
        new = []
        for message in messages:
            offset = message.queue_offset
            if offset < expected:
                continue
            expected = offset + 1
            self._sizes[offset] = len(message.body)
            new.append(message)
        if new:
            self._last_offset = expected - 1
            size = sum([len(message.body) for message in new])
            self.size += size
            self._read_ahead.size += size
        # Beyond the last message if the broker left out messages after it, which count as completed.
        self.next_offset = max(expected, next_offset)
        return new

    def holds(self, message: MessageExt) -> bool:
        """Return whether a message was pulled and is incomplete."""
        return message.queue_offset in self._sizes

    def complete(self, message: MessageExt) -> bool:
        """Complete a message; return False if it is complete already."""
        return self._remove(message.queue_offset)

    def _remove(self, key: int) -> bool:
        size = self._sizes.pop(key, None)
        if size is None:
            return False
        self.size -= size
        if not self.is_dropped:
            self._release(size)
        return True

    def drop(self) -> None:
        """Stop counting the messages: the queue was revoked or reset."""
        if not self.is_dropped:
            self.is_dropped = True
            self._release(self.size)

    def _release(self, size: int) -> None:
        read_ahead = self._read_ahead
        read_ahead.size -= size
        if read_ahead.waiting:
            read_ahead.wake(self.limits.total_size or read_ahead.size + 1)

    @property
    def commit_offset(self) -> int:
        return next(iter(self._sizes), self.next_offset)

    @property
    def has_capacity(self) -> bool:
        limits = self.limits
        if not self._sizes:
            return True
        if len(self._sizes) >= limits.count or self.size >= limits.size or self.is_total_full:
            return False
        return limits.span is None or self._last_offset - self.commit_offset < limits.span

    @property
    def is_total_full(self) -> bool:
        return self.limits.total_size is not None and self._read_ahead.size >= self.limits.total_size

    def wake_below_total(self, event: asyncio.Event) -> None:
        """Set an event when the consumer is below its total limit."""
        self._read_ahead.waiting.append(event)
