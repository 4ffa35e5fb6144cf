"""PopProcessQueue: the messages of one topic that this member holds at one broker by POP.

A message leaves it when it is completed, which acknowledges it; when it is given up for a retry; or when its invisible
time is over, after which another member may have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rucola.client.clock import precise_monotonic_ms
from rucola.client.consumer.pop_requests import Held, Received
from rucola.client.consumer.process_queue import ProcessQueue, PullLimits, ReadAhead
from rucola.message import MessageExt

THRESHOLD = 256
"""Messages that are held at most, unless the listener has more calls at a time: popThresholdForQueue, which is 96 with
Apache, where a receive returns no more than 32 and costs as much as a hundred messages."""


class PopProcessQueue(ProcessQueue):
    """The messages by identity, since they are of several queues. `acknowledge` gets each that is completed."""

    __slots__ = ("_acknowledge", "_held", "_threshold", "_waiting")

    def __init__(
        self,
        limits: PullLimits,
        read_ahead: ReadAhead,
        acknowledge: Callable[[Held, int], None],
        threshold: int,
    ) -> None:
        super().__init__(0, limits, read_ahead)
        self._acknowledge = acknowledge
        self._threshold = threshold
        self._held: dict[int, tuple[MessageExt, Held, int]] = {}
        """Each message, those that it was received with, and the size of its body then."""
        self._waiting: set[int] = set()
        """Those that were not delivered yet."""

    def __len__(self) -> int:
        return len(self._held)

    def receive(self, received: Received) -> None:
        messages = received.messages
        keys, sizes = list(map(id, messages)), [len(message.body) for message in messages]
        self._held.update(zip(keys, zip(messages, received.held, sizes, strict=True), strict=True))
        self._waiting.update(keys)
        size = sum(sizes)
        self.size += size
        self._read_ahead.size += size

    def start(self, messages: Sequence[MessageExt]) -> list[MessageExt]:
        """Return those that are still held, and are delivered now."""
        now_ms = precise_monotonic_ms()
        started = []
        for message in messages:
            entry = self._held.get(key := id(message))
            if entry is None:
                continue
            self._waiting.discard(key)
            if entry[1].until_ms <= now_ms:
                self.give_up(message)
            else:
                started.append(message)
        return started

    def holds(self, message: MessageExt) -> bool:
        return id(message) in self._held

    def complete(self, message: MessageExt) -> bool:
        held = self.give_up(message)
        if held is None:
            return False
        self._acknowledge(held, message.queue_offset)
        return True

    def give_up(self, message: MessageExt) -> Held | None:
        """Return those that a message was received with, for the last time; None if it is complete already."""
        entry = self._held.pop(key := id(message), None)
        if entry is None:
            return None
        self._waiting.discard(key)
        _, held, size = entry
        self.size -= size
        if not self.is_dropped:
            self._release(size)
        return held

    def give_up_waiting(self) -> list[tuple[Held, int]]:
        """Give up what was not delivered."""
        waiting = [self._held[key] for key in self._held if key in self._waiting]
        for message, _, _ in waiting:
            self.give_up(message)
        return [(held, message.queue_offset) for message, held, _ in waiting]

    @property
    def room(self) -> int:
        return min(self.limits.count, self._threshold) - len(self._held)

    @property
    def has_capacity(self) -> bool:
        held, limits = len(self._held), self.limits
        if not held:
            return True
        # A receive for one message costs as much as one for a batch.
        most = limits.count if limits.count < self._threshold else self._threshold
        return held <= most // 2 and self.size < limits.size and not self.is_total_full
