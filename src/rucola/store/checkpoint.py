"""The checkpoint: the store times up to which log, ConsumeQueues and index are on disk.

A file of 4,096 bytes, of which the first three longs are used, all in milliseconds:

    position  bytes  field
           0      8  physicMsgTimestamp: the CommitLog
           8      8  logicsMsgTimestamp: the ConsumeQueues
          16      8  indexMsgTimestamp: the end of the last full index file

It may be late, never ahead: a time is entered after the flush that it covers. A crash recovery starts with the log
file that holds the earlier of the first two times, minus three seconds. The times are the last messages': if the clock
is set back, so is the checkpoint. Otherwise it would cover new messages until the clock catches up.

Corresponds to `StoreCheckpoint` of Apache RocketMQ 4.9.8. Deliberate differences: Apache advances logicsMsgTimestamp
before the flush, and never sets a time back.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from rucola.files import open_file, read_inside
from rucola.system_calls import sync_data

CHECKPOINT_SIZE: Final = 4096
MARGIN_MS: Final = 3000
"""Apache's: messages stored at nearly the same time may be flushed in any order."""

_FIELDS: Final = struct.Struct(">qqq")


class Checkpoint:
    """The three times of one store: assign to them, then call `write`."""

    __slots__ = ("_path", "index_timestamp", "logics_timestamp", "physic_timestamp")

    physic_timestamp: int
    logics_timestamp: int
    index_timestamp: int

    def __init__(self, path: Path) -> None:
        """Read the file; if it is missing or short, all times are 0."""
        self._path = path
        try:
            data = read_inside(path.parent, path)
        except FileNotFoundError:
            data = b""
        if len(data) < _FIELDS.size:
            data = bytes(_FIELDS.size)
        self.physic_timestamp, self.logics_timestamp, self.index_timestamp = _FIELDS.unpack_from(data)

    @property
    def log_timestamp(self) -> int:
        """The store time up to which the log is on disk, minus the margin."""
        return max(self.physic_timestamp - MARGIN_MS, 0)

    @property
    def queues_timestamp(self) -> int:
        """The store time up to which log and queues are on disk, minus the margin."""
        return min(self.log_timestamp, max(self.logics_timestamp - MARGIN_MS, 0))

    def write(self) -> None:
        """Write the three times; durable on return. Raises OSError."""
        fd = open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(fd).st_size < CHECKPOINT_SIZE:
                os.ftruncate(fd, CHECKPOINT_SIZE)
            # In place: 24 bytes of one sector are written as a whole or not at all, so no second file is needed.
            os.pwrite(fd, _FIELDS.pack(self.physic_timestamp, self.logics_timestamp, self.index_timestamp), 0)
            sync_data(fd)
        finally:
            os.close(fd)
