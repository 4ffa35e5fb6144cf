"""Rolling: messages that wait in the oldest log file are put again at the end of the log, before it is deleted.

    log file 0    file 1    ...    file 9
    w . . w                        . . w w        w waits: delayed, timer and half messages

Retention deletes files by age or disk space. The file stays while a put fails. The broker flushes the copies and writes
the services' progress before the file is deleted, so that a crash finds the original or the copy. A slave puts nothing:
it deletes what its master has deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from rucola.store.message_store import MessageStore


class RollingService(Protocol):
    def roll_some(self, file_end: int, now_ms: int) -> bool | None:
        """Roll some messages before the physical offset `file_end`: True if none is left, None if unknown, False if it
        failed.
        """


async def roll(store: MessageStore, services: Iterable[RollingService], clock: Callable[[], int]) -> bool:
    """Roll all messages that wait in the oldest log file, unless it is the only one; return False if a put failed."""
    file_end = store.oldest_file_end
    if file_end >= store.max_physical_offset:
        return True
    for service in services:
        done = None
        while not done:
            if (done := service.roll_some(file_end, clock())) is False:
                return False
            await asyncio.sleep(0)
    return True
