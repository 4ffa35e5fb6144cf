"""Epochs: which mastership wrote which part of a log, and where two logs diverge.

Each mastership of a broker name has an increasing epoch, and writes the log from one physical offset on. Epoch 0 starts
at 0. An epoch without bytes is replaced by the next.

Two logs in which an epoch has the same start offset are equal up to the first end of that epoch in either, since one
master wrote it, after comparing the logs. `divergence` is this end for the last common epoch:

    this log       epoch 7: 0 to 100    epoch 8: 100 to 180
    the master's   epoch 7: 0 to 100    epoch 9: 100 to 150
    divergence     100: the bytes of epoch 8 exist only here
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MAX_EPOCHS: Final = 4096
"""Entries of a file. An older part of the log counts as epoch 0, so slaves from that time are copied again."""


class Epoch(NamedTuple):
    """A mastership: its number, and its start offset in the log."""

    number: int
    begin: int


NO_EPOCH: Final = Epoch(0, 0)


def divergence(mine: Sequence[Epoch], my_end: int, theirs: Sequence[Epoch], their_end: int) -> int:
    shared = max({NO_EPOCH, *mine} & {NO_EPOCH, *theirs})
    return min(_end_of(shared, mine, my_end), _end_of(shared, theirs, their_end))


def _end_of(epoch: Epoch, epochs: Sequence[Epoch], log_end: int) -> int:
    return min([following.begin for following in epochs if following.number > epoch.number], default=log_end)


def appended(epochs: Iterable[Epoch], epoch: Epoch) -> tuple[Epoch, ...]:
    """Append an epoch, dropping those left without bytes."""
    # Epoch 9 at 100 after 7 at 0 and 8 at 100: 8 has no byte, so 7 and 9 are left.
    kept = [known for known in epochs if known.begin < epoch.begin and known.number < epoch.number]
    return (*kept[1 - MAX_EPOCHS :], epoch)


def within(epochs: Iterable[Epoch], begin: int, end: int) -> tuple[Epoch, ...]:
    """Return the epochs with bytes from `begin` to `end`."""
    kept = [epoch for epoch in epochs if epoch.begin <= end]
    # Epochs 7 at 0, 8 at 100 and 9 at 180, in a log from 120 to 170: 8 alone has bytes.
    while len(kept) > 1 and kept[1].begin <= begin:
        del kept[0]
    return tuple(kept)
