"""PopProcessQueue: the messages of one topic that this member holds at one broker by POP.

A message leaves it when it is completed, which acknowledges it; when it is given up for a retry; or when its invisible
time is over, after which another member may have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rucola.client.clock import precise_monotonic_ms
from rucola.client.consumer.pop_requests import Held, held
from rucola.client.consumer.process_queue import ProcessQueue, PullLimits, ReadAhead
from rucola.message import MessageExt

THRESHOLD = 96
"""Messages that are held at most, unless the listener has more calls at a time: popThresholdForQueue."""


class PopProcessQueue(ProcessQueue):
    """The messages by identity, since they are of several queues. `acknowledge` gets each that is completed."""

    __slots__ = ("_acknowledge", "_entries", "_threshold")

    def __init__(
        self, limits: PullLimits, read_ahead: ReadAhead, acknowledge: Callable[[Held, float], None], threshold: int
    ) -> None:
        super().__init__(0, limits, read_ahead)
        self._acknowledge = acknowledge
        self._threshold = threshold
        self._entries: dict[int, _Entry] = {}

    def receive(self, messages: Iterable[MessageExt], until_ms: float) -> None:
        """Add messages that are held until then, on the monotonic clock."""
        for message in messages:
            size = len(message.body)
            self._entries[id(message)] = _Entry(message, held(message), until_ms)
            self._sizes[id(message)] = size
            self.size += size
            self._read_ahead.size += size

    def start(self, messages: Sequence[MessageExt]) -> list[MessageExt]:
        """Return those that are still held, and are delivered now."""
        now_ms = precise_monotonic_ms()
        started = []
        for message in messages:
            entry = self._entries.get(id(message))
            if entry is None:
                continue
            if entry.until_ms <= now_ms:
                self.give_up(message)
                continue
            entry.is_started = True
            started.append(message)
        return started

    def holds(self, message: MessageExt) -> bool:
        return id(message) in self._entries

    def complete(self, message: MessageExt) -> bool:
        entry = self._give_up(message)
        if entry is None:
            return False
        self._acknowledge(entry.held, entry.until_ms)
        return True

    def give_up(self, message: MessageExt) -> tuple[Held, float] | None:
        """Return a message as it is held, and until when, for the last time; None if it is complete already."""
        entry = self._give_up(message)
        return None if entry is None else (entry.held, entry.until_ms)

    def give_up_waiting(self) -> list[tuple[Held, float]]:
        """Give up what was not delivered."""
        waiting = [entry for entry in self._entries.values() if not entry.is_started]
        for entry in waiting:
            self._give_up(entry.message)
        return [(entry.held, entry.until_ms) for entry in waiting]

    def _give_up(self, message: MessageExt) -> _Entry | None:
        entry = self._entries.pop(id(message), None)
        if entry is not None:
            self._remove(id(message))
        return entry

    @property
    def room(self) -> int:
        return min(self.limits.count, self._threshold) - len(self)

    @property
    def has_capacity(self) -> bool:
        if not self._entries:
            return True
        # A receive for one message costs as much as one for a batch.
        least = max(1, min(self.limits.count, self._threshold) // 2)
        return self.room >= least and self.size < self.limits.size and not self.is_total_full


class _Entry:
    __slots__ = ("held", "is_started", "message", "until_ms")

    def __init__(self, message: MessageExt, held: Held, until_ms: float) -> None:
        self.message = message
        self.held = held
        self.until_ms = until_ms
        self.is_started = False
