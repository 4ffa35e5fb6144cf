"""Pending progress: offsets of a master's own deliveries, until its slave has these.

On its own account a master delivers delayed messages and puts open half messages back: it puts a record, and then
advances an offset. Log and offsets reach the slave independently, and the offsets may be first. A slave that took them
at once and were promoted would find the message neither in its own queue nor among those that wait: a message that was
acknowledged would be lost.

    master    delivers the message that waits at 400 by a record at 900, and ends at 1000: offsets {level 1: 5}
    slave     ends at 700     {level 1: 5} is pending with the end 1000, {level 1: 4} applies
    slave     ends at 1000    {level 1: 5} applies

So a table comes with the end of the master's log, read after the table. It is pending until the slave has that much of
the log on disk, and the last epoch of its log is that of the master's: then both logs are equal up to there. In another
epoch the slave's log is that of another master.

At most one table is pending, and later ones of the same log are dropped meanwhile. If the newest were kept instead, a
slave that lags steadily would never apply any. So the offsets are behind by no more than the log is, which costs
duplicates at most. A restart forgets what is pending.

A master without epochs, such as Apache's, is known by its address, and how much of its log is needed by the end alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from rucola.broker.role import LogPosition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MasterProgress(Generic[T]):
    """A table of offsets with the end of the log that it needs.

    `needed.epoch` is 0 if the master at `address` has no epochs.
    """

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
    """The table that waits for the log."""

    def __init__(self) -> None:
        self._pending: MasterProgress[T] | None = None

    def offer(self, progress: MasterProgress[T]) -> None:
        """Let a table wait, unless one does that precedes it."""
        if self._pending is None or not self._pending.precedes(progress):
            self._pending = progress

    def take(self, address: str, own: LogPosition) -> MasterProgress[T] | None:
        """Return the waiting progress if it is covered, which then waits no more; else None."""
        pending = self._pending
        if pending is None or not pending.is_covered(address, own):
            return None
        self._pending = None
        return pending
