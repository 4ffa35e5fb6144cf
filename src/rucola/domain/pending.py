"""Messages that a broker still has to deliver, or that somebody still has to consume."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final

import msgspec

DUE_BOUNDS_MS: Final = (0, 60_000, 3_600_000, 86_400_000)
DUE_NAMES: Final = ("overdue", "minute", "hour", "day", "later")
"""Ranges of due times, each up to the bound of the same place: due already, within a minute, an hour, a day; later."""


class DueCounts(msgspec.Struct, rename="camel"):
    """Numbers of messages by due time."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * len(DUE_NAMES))
    """By the ranges of DUE_NAMES."""
    last_due_ms: int = 0
    """Due time of the last one in milliseconds since 1970; 0 without any."""

    @property
    def total(self) -> int:
        return sum(self.counts)

    def add(self, due_ms: int, now_ms: int, count: int = 1) -> None:
        self.counts[bisect_left(DUE_BOUNDS_MS, due_ms - now_ms)] += count
        self.last_due_ms = max(self.last_due_ms, due_ms)

    def add_ordered(self, begin: int, end: int, due_ms: Callable[[int], int], now_ms: int) -> None:
        """Count the messages of a range of queue offsets, which is ordered by due time."""
        first = begin
        for place, bound_ms in enumerate(DUE_BOUNDS_MS):
            until_ms = now_ms + bound_ms
            last = bisect_right(range(end), until_ms, lo=first, hi=end, key=due_ms)
            self.counts[place] += last - first
            first = last
        self.counts[-1] += end - first
        if begin < end:
            self.last_due_ms = max(self.last_due_ms, due_ms(end - 1))


class Backlog(msgspec.Struct, rename="camel"):
    """Messages of a topic on a broker that a consumer group has not consumed."""

    group: str
    topic: str
    messages: int
    clients: int = 0
    """Members of the group that are connected to the broker."""
    queues: int = 0
    """Queues with a backlog."""
    largest_queue_id: int = 0
    largest_queue: int = 0
    """The queue with the greatest backlog, and that."""
    consume_tps: float = 0.0
    """Messages read per second in the last minute."""


class PendingMessages(msgspec.Struct, rename="camel"):
    """What a broker must keep running for. At most MAX_ENTRIES of each list, those with the most messages."""

    backlogs: list[Backlog] = []
    backlog_total: int = 0
    delayed: DueCounts = msgspec.field(default_factory=DueCounts)
    """Messages of delay levels, retries included."""
    timed: DueCounts = msgspec.field(default_factory=DueCounts)
    half: DueCounts = msgspec.field(default_factory=DueCounts)
    """Open transactions, by the time of their first check."""
    dead_letters: dict[str, int] = {}
    """By group: those that were neither re-driven nor consumed."""
    dead_letter_total: int = 0
    unread: dict[str, int] = {}
    """Messages of topics that no group consumes, by topic."""
    unread_total: int = 0

    @property
    def total(self) -> int:
        """Messages that wait for somebody; those of topics that nobody consumes do not."""
        due = self.delayed.total + self.timed.total + self.half.total
        return self.backlog_total + due + self.dead_letter_total


MAX_ENTRIES: Final = 1000
