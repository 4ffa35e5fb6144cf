"""The checkpoint: up to which store time everything is known to be on disk.

A file of 4,096 bytes, of which three longs are used, all milliseconds:

    position  bytes  field
           0      8  physicMsgTimestamp: the CommitLog
           8      8  logicsMsgTimestamp: the ConsumeQueues
          16      8  indexMsgTimestamp: the end of the last full index file

It may lag behind the truth and never runs ahead of it: a time is entered after the flush that it vouches for. A crash
recovery begins with the log file in which the earlier of the first two lies, three seconds taken off. The times are
those of the last messages, not the latest: where a clock is set back, so is the checkpoint, or it would vouch for
everything until the clock is there again.

Answers to org.apache.rocketmq.store.StoreCheckpoint. Apache advances logicsMsgTimestamp before the flush, and no time
ever goes back.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

CHECKPOINT_SIZE: Final = 4096
MARGIN_MS: Final = 3000

_FIELDS: Final = struct.Struct(">qqq")


class Checkpoint:
    """The three times. Assign to them, then `write`."""

    __slots__ = ("_path", "index_timestamp", "logics_timestamp", "physic_timestamp")

    physic_timestamp: int
    logics_timestamp: int
    index_timestamp: int

    def __init__(self, path: Path) -> None:
        """Read the file; one that is missing or short vouches for nothing."""
        self._path = path
        data = path.read_bytes() if path.exists() else b""
        if len(data) < _FIELDS.size:
            data = bytes(_FIELDS.size)
        self.physic_timestamp, self.logics_timestamp, self.index_timestamp = _FIELDS.unpack_from(data)

    @property
    def min_timestamp(self) -> int:
        """Up to this store time log and queues are on disk."""
        return max(min(self.physic_timestamp, self.logics_timestamp) - MARGIN_MS, 0)

    def write(self) -> None:
        """Bring the three times to disk. Raises OSError."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size < CHECKPOINT_SIZE:
                os.ftruncate(fd, CHECKPOINT_SIZE)
            os.pwrite(fd, _FIELDS.pack(self.physic_timestamp, self.logics_timestamp, self.index_timestamp), 0)
            os.fdatasync(fd)
        finally:
            os.close(fd)
