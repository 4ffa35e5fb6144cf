"""What a get takes from a queue: the records to which its units point, one after the other.

A unit of which a filter does not like the tags code, or the properties of its record, is passed over, and so is one
whose record has gone with its file of the log. A unit whose record does not say that it lies there, has that size and
that place in its queue is damaged; it is passed over too, since any other bytes would be worse than none.

Answers to the loop in DefaultMessageStore.getMessage of org.apache.rocketmq.store, which returns whatever a unit points
at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from mmap import mmap
from typing import Final

from rucola.message.record import MIN_RECORD_SIZE, place_of
from rucola.store.commit_log import CommitLog
from rucola.store.config import GetMessageStatus
from rucola.store.consume_queue import ConsumeQueue, iter_units

logger = logging.getLogger(__name__)

_ANYWHERE: Final = -1 << 63
"""Before every physical offset that a unit can have."""


def take(
    log: CommitLog,
    units: bytes,
    queue_offset: int,
    max_count: int,
    max_bytes: int,
    accepts: Callable[[int], bool] | None,
    matches: Callable[[Mapping[str, str]], bool] | None,
    on_damage: Callable[[int], None],
) -> tuple[GetMessageStatus, int, list[bytes], int]:
    """Return (status, how many units were looked at, records, their bytes), given units from `queue_offset` on.

    Takes up to `max_count` records, and up to `max_bytes` after the first. `on_damage` is told the queue offsets of
    damaged units.
    """
    status = GetMessageStatus.NO_MATCHED_MESSAGE
    records: list[bytes] = []
    total = looked_at = 0
    goes_on_at = _ANYWHERE
    mapped: mmap | bytes = b""
    begin = size_there = 0
    for physical_offset, size, code in iter_units(units):
        if physical_offset >= goes_on_at:
            if records and (len(records) >= max_count or total + size > max_bytes):
                break
            if (accepts is None or accepts(code)) and (matches is None or log.matches(physical_offset, matches)):
                position = physical_offset - begin
                if not 0 <= position <= size_there - size and (file := log.files.find(physical_offset)) is not None:
                    mapped, begin, size_there = file.map, file.begin, min(log.end, file.end) - file.begin
                    position = physical_offset - begin
                if (
                    0 <= position <= size_there - size
                    and size >= MIN_RECORD_SIZE
                    and place_of(mapped, position) == (size, queue_offset + looked_at, physical_offset)
                ):
                    records.append(mapped[position : position + size])
                    total += size
                    status = GetMessageStatus.FOUND
                    goes_on_at = _ANYWHERE
                elif 0 <= physical_offset < log.begin:
                    if not records:
                        status = GetMessageStatus.MESSAGE_WAS_REMOVING
                    goes_on_at = log.next_file_begin(physical_offset)
                else:
                    on_damage(queue_offset + looked_at)
            elif not records:
                status = GetMessageStatus.NO_MATCHED_MESSAGE
        looked_at += 1
    return status, looked_at, records, total


def report_damaged_unit(queue: ConsumeQueue, queue_offset: int, said: set[ConsumeQueue]) -> None:
    """Say that a queue is damaged, once: unless it is in `said`, where it is then."""
    if queue not in said:
        said.add(queue)
        logger.error(
            "%s-%d: the unit at %d does not point at its message, which is passed over; `rucola store check` names "
            "all such units, and `rucola store rebuild`, with the broker stopped, makes them anew",
            queue.topic,
            queue.queue_id,
            queue_offset,
        )
