"""Rolling: messages that wait in the oldest log file are put again at the end of the log, before it is deleted.

    log file 0    file 1    ...    file 9
    w . . w                        . . w w        w waits: delayed, timer and half messages

Retention deletes files by age or disk space. The file stays while a put fails. The broker flushes the copies and writes
their progress before the file is deleted, so that a crash finds the original or the copy. A slave puts nothing:
it deletes what its master has deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from rucola.broker.delivery.progress import Delivery
from rucola.store.message_store import MessageStore


async def roll(store: MessageStore, kinds: Iterable[Delivery[Any]], clock: Callable[[], int]) -> bool:
    """Roll all messages that wait in the oldest log file, unless it is the only one; return False if a put failed."""
    file_end = store.oldest_file_end
    if file_end >= store.max_physical_offset:
        return True
    for kind in kinds:
        done = None
        while not done:
            if (done := kind.roll_some(file_end, clock())) is False:
                return False
            await asyncio.sleep(0)
    return True
