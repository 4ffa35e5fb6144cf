"""The epoch file: which mastership wrote which part of the log.

Each mastership of a broker name has an epoch, a number that only grows, and writes the log from one physical offset on.
`<store>/epochFileCheckpoint` lists them, in the layout of Apache RocketMQ 5:

    2                 the number of entries
    773307083         CRC-32 of the entries, without the sign bit
    7-7000            an entry: epoch, physical offset at which it begins
    8-8000

An entry is on disk before the first byte of its epoch is in the log, so after a crash the last entries may start after
the end of the log, and are dropped. Epochs and offsets ascend.

Corresponds to `EpochFileCache` and `CheckpointFile` of Apache RocketMQ 5. Deliberate difference: a file that fails its
check is an error; Apache reads the previous one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rucola.epochs import NO_EPOCH, Epoch, appended, within
from rucola.errors import StoreCorrupt
from rucola.files import read_inside, replace_file

EPOCH_FILE: Final = "epochFileCheckpoint"


def format_epochs(epochs: Sequence[Epoch]) -> bytes:
    entries = "".join([f"{epoch.number}-{epoch.begin}\n" for epoch in epochs]).encode("ascii")
    return b"%d\n%d\n%b" % (len(epochs), _checksum(entries), entries)


def parse_epochs(content: bytes) -> tuple[Epoch, ...]:
    """Return the epochs in the content of a file. Raises ValueError with the reason."""
    count, _, rest = content.replace(b"\r\n", b"\n").partition(b"\n")
    checksum, _, entries = rest.partition(b"\n")
    if not (count.isdigit() and checksum.isdigit()):
        raise ValueError("it does not begin with a count and a checksum")
    lines = entries.splitlines()
    if int(count) != len(lines) or int(checksum) not in (0, _checksum(entries)):  # Apache writes 0 for no checksum
        raise ValueError(f"{len(lines)} entries do not match the count or the checksum")
    epochs = [Epoch(*map(int, line.split(b"-"))) for line in lines]
    # The first is compared with epoch 0 at -1, so that it may start at 0.
    for before, after in zip([NO_EPOCH._replace(begin=-1), *epochs], epochs, strict=False):
        if after.number <= before.number or after.begin <= before.begin:
            raise ValueError(f"epoch {after.number} at {after.begin} does not follow {before.number} at {before.begin}")
    return tuple(epochs)


def read_epochs(store: Path) -> tuple[Epoch, ...]:
    """Return the epochs of a store directory; none without an epoch file. Raises StoreCorrupt."""
    path = store / EPOCH_FILE
    try:
        return parse_epochs(read_inside(store, path))
    except FileNotFoundError:
        return ()
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(path, 0, f"{error}; a copy of the file of another broker of this name is as good") from None


def _checksum(entries: bytes) -> int:
    return zlib.crc32(entries) & 0x7FFFFFFF


class EpochFile:
    """The epochs of one open store, for one thread at a time. Changes are durable; OSError changes nothing."""

    def __init__(self, store: Path) -> None:
        self._path = store / EPOCH_FILE
        self.epochs = read_epochs(store)

    @property
    def last(self) -> Epoch:
        return self.epochs[-1] if self.epochs else NO_EPOCH

    def limit(self, begin: int, end: int) -> None:
        """Drop epochs outside a log from `begin` to `end`: at the opening, and after the log was cut."""
        self.replace(within(self.epochs, begin, end))

    def begin_epoch(self, number: int, begin: int) -> None:
        """Append an epoch that starts at the log's end. ValueError unless its number is new."""
        if number <= self.last.number:
            raise ValueError(f"epoch {number} does not follow {self.last.number}")
        self.replace(appended(self.epochs, Epoch(number, begin)))

    def replace(self, epochs: Sequence[Epoch]) -> None:
        if tuple(epochs) != self.epochs:
            replace_file(self._path, format_epochs(epochs))
            self.epochs = tuple(epochs)
