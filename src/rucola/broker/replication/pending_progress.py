"""Pending progress: offsets of a master's internal puts, until its slave has the records.

A master that delivers delayed messages or puts open half messages back puts a record, then advances an offset. Log and
offsets reach the slave independently. A slave that applied offsets before it has the record, and were promoted, would
lose an acknowledged message.

    master    delivers the message that waits at 400 by a record at 900, and ends at 1000: offsets {level 1: 5}
    slave     ends at 700     {level 1: 5} is pending with the end 1000, {level 1: 4} applies
    slave     ends at 1000    {level 1: 5} applies

So a table comes with the end of the master's log, read after the table. It is pending until the slave has the log up to
there on disk, and its log has the same last epoch as the master's: then both logs are equal up to there.

At most one table is pending, and later ones of the same log are dropped: otherwise a slave that lags steadily would
never apply any. So the offsets lag no more than the log, which costs duplicates at most. A restart forgets what is
pending.

A master without epochs, such as Apache's, is identified by its address, and only the end counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from rucola.broker.role import LogPosition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MasterProgress(Generic[T]):
    """A table of offsets with the end of the log that it needs; `needed.epoch` is 0 for a master without epochs."""

    table: T
    address: str
    needed: LogPosition

    def is_covered(self, address: str, own: LogPosition) -> bool:
        """Return whether the log of a slave that follows `address` has all that is needed."""
        needed = self.needed
        return address == self.address and own.end >= needed.end and needed.epoch in (0, own.epoch)

    def precedes(self, other: MasterProgress[T]) -> bool:
        """Return whether `other` is of the same log, and needs no less of it."""
        needed, others = self.needed, other.needed
        return self.address == other.address and needed.epoch == others.epoch and needed.end <= others.end


class PendingProgress(Generic[T]):
    def __init__(self) -> None:
        self._pending: MasterProgress[T] | None = None

    def offer(self, progress: MasterProgress[T]) -> None:
        """Let a table wait, unless one does that precedes it."""
        if self._pending is None or not self._pending.precedes(progress):
            self._pending = progress

    def take(self, address: str, own: LogPosition) -> MasterProgress[T] | None:
        """Remove and return the waiting progress if it is covered, else None."""
        pending = self._pending
        if pending is None or not pending.is_covered(address, own):
            return None
        self._pending = None
        return pending
