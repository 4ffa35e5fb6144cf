"""ProcessQueue: the messages of one queue between being pulled and being done.

Messages come in the order of their queue offsets and are done in any order. What may be committed is the smallest
offset that is not done: whoever starts there again gets every message that is not done, and some that are.

    begin ... committed       done, all of them
    commit_offset             the first that is not done
    ... next_offset - 1       some done, some not
    next_offset               where pulling goes on

Invariants: `commit_offset` never exceeds the offset of a message that is held, never exceeds `next_offset`, and never
falls. Offsets that carry no message for this consumer (filtered, or a hole) count as done.

Flow control: `has_room` turns false at `MAX_COUNT` messages, `MAX_SIZE` bytes or a span of `MAX_SPAN` offsets, and
whoever pulls then waits. Memory per queue is bounded by these and one more pull.

Answers to `ProcessQueue` of Apache RocketMQ 4.9.8, whose limits these are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rucola.message import MessageExt

MAX_COUNT = 1000
MAX_SIZE = 100 * 1024 * 1024
MAX_SPAN = 2000


class ProcessQueue:
    """Progress on one queue from `begin_offset` on. Pure bookkeeping: no clock, no loop."""

    __slots__ = ("_order", "_sizes", "is_dropped", "next_offset", "size")

    def __init__(self, begin_offset: int) -> None:
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
        return (
            len(self._sizes) < MAX_COUNT
            and self.size < MAX_SIZE
            and (not self._order or self._order[-1] - self._order[0] < MAX_SPAN)
        )
