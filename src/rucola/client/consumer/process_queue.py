"""ProcessQueue: the messages of one queue between being pulled and being done.

Messages come in the order of their queue offsets and are done in any order. What may be committed is the smallest
offset that is not done: whoever starts there again gets every message that is not done, and some that are.

    begin ... committed       done, all of them
    commit_offset             the first that is not done
    ... next_offset - 1       some done, some not
    next_offset               where pulling goes on

Invariants: `commit_offset` never exceeds the offset of a message that is held, never exceeds `next_offset`, and never
falls. OffsetStore that carry no message for this consumer (filtered, or a hole) count as done.

Flow control: `has_room` turns false at so many messages, bytes or offsets between the first and the last as
`PullLimits` says, and whoever pulls then waits. Memory per queue is bounded by these and one more pull.

Answers to `ProcessQueue` and to the flow control of `DefaultMQPushConsumerImpl` of Apache RocketMQ 4.9.8, whose limits
these are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from rucola.errors import ConfigError
from rucola.message import MessageExt

MEBIBYTE = 1 << 20


class PullLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be held of one queue before pulling it pauses. Apache's names stand beside them."""

    count: int = 1000
    """Messages: pullThresholdForQueue."""
    size: int = 100 * MEBIBYTE
    """Bytes of body: pullThresholdSizeForQueue."""
    span: int | None = 2000
    """Offsets from the first message not done to the last one held: consumeConcurrentlyMaxSpan. None: any."""
    topic_count: int | None = None
    """Messages of all own queues of a topic together: pullThresholdForTopic. Takes the place of `count`."""
    topic_size: int | None = None
    """Bytes, likewise: pullThresholdSizeForTopic. Takes the place of `size`."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ConfigError(f"pull limit {name} is {limit}: it must be 1 or more")

    def shared_by(self, queues: int, *, in_order: bool) -> PullLimits:
        """The limits of one queue where this member has so many of the topic. In order, no span can grow."""
        count = self.count if self.topic_count is None else max(1, self.topic_count // queues)
        size = self.size if self.topic_size is None else max(1, self.topic_size // queues)
        return PullLimits(count=count, size=size, span=None if in_order else self.span)


class ProcessQueue:
    """Progress on one queue from `begin_offset` on. Pure bookkeeping: no clock, no loop."""

    __slots__ = ("_order", "_sizes", "is_dropped", "limits", "next_offset", "size")

    def __init__(self, begin_offset: int, limits: PullLimits) -> None:
        self.limits = limits
        self.next_offset = begin_offset
        """The queue offset to pull next."""
        self.size = 0
        """Bytes of body that are held."""
        self.is_dropped = False
        """Whether the queue belongs to somebody else by now: nothing may be committed any more."""
        self._order: deque[int] = deque()
        self._sizes: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def put(self, messages: Iterable[MessageExt], next_offset: int) -> list[MessageExt]:
        """Take in what a pull brought, and where it says to go on. Returns the messages that are new.

        A message below `next_offset` as it stood before has been here already and is passed over.
        """
        expected = self.next_offset
        new = []
        for message in messages:
            offset = message.queue_offset
            if offset < expected:
                continue
            expected = offset + 1
            self._order.append(offset)
            self._sizes[offset] = len(message.body)
            self.size += len(message.body)
            new.append(message)
        self.next_offset = max(expected, next_offset)
        return new

    def holds(self, queue_offset: int) -> bool:
        """Whether the message at `queue_offset` was pulled and is not done."""
        return queue_offset in self._sizes

    def done(self, queue_offset: int) -> bool:
        """The message at `queue_offset` is done with; False when it is not held, so done twice does no harm."""
        size = self._sizes.pop(queue_offset, None)
        if size is None:
            return False
        self.size -= size
        order = self._order
        while order and order[0] not in self._sizes:
            order.popleft()
        return True

    @property
    def commit_offset(self) -> int:
        """The smallest queue offset that is not done."""
        return self._order[0] if self._order else self.next_offset

    @property
    def has_room(self) -> bool:
        """Whether more may be pulled."""
        limits = self.limits
        if len(self._sizes) >= limits.count or self.size >= limits.size:
            return False
        return limits.span is None or not self._order or self._order[-1] - self._order[0] < limits.span
