"""Archived messages by queue: their numbers and ends, and where a queue begins that was created again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from rucola.spark.source.array_conversions import Array, arrow, ints
from rucola.spark.source.grouping import Groups

_QUEUE: Final = ("brokerName", "topic", "queueId")
NUMBERS: Final = ("rows", "size", "begin", "end", "first", "last")
"""Counts by queue: messages, bytes of records, the half-open range of queue offsets, the range of physical offsets."""
_MERGED: Final = {"begin": np.minimum, "end": np.maximum, "first": np.minimum, "last": np.maximum}
_NO_COUNTS: Final = pa.Table.from_batches(
    [],
    pa.schema(
        [("brokerName", pa.string()), ("topic", pa.string()), ("queueId", pa.int32())]
        + [(name, pa.int64()) for name in NUMBERS]
    ),
)
COUNTED: Final = (*_QUEUE, "queueOffset", "commitLogOffset", "storeSize")
"""The columns that are needed to count."""


@dataclass(frozen=True)
class ArchivedQueue:
    """Archived messages of one queue. Queue offsets are half-open; `size` is bytes of records in the log.

    `first_physical_offset` is that of the first message. `recreated` has those of the first messages after the queue
    was deleted and created again: the queue offsets are then from before the first time to after the last one.
    """

    broker_name: str
    topic: str
    queue_id: int
    rows: int
    size: int
    begin_queue_offset: int
    end_queue_offset: int
    first_physical_offset: int
    recreated: tuple[int, ...] = ()


class CountedMessages:
    """Messages that are counted by queue as they pass."""

    def __init__(self) -> None:
        self._counts: list[pa.Table] = []

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            offsets = ints(batch["queueOffset"])
            numbers = {
                "rows": np.ones(len(batch), np.int64),
                "size": ints(batch["storeSize"]),
                "begin": offsets,
                "end": offsets + 1,
                "first": ints(batch["commitLogOffset"]),
                "last": ints(batch["commitLogOffset"]),
            }
            queues = pa.Table.from_arrays([batch[name] for name in _QUEUE], _QUEUE)
            self._counts.append(_by_queue(queues, numbers))
            yield batch

    def counts(self) -> pa.Table:
        """Return the counts, for `queues_of`."""
        return _merged(pa.concat_tables([_NO_COUNTS, *self._counts]))


def _merged(counts: pa.Table) -> pa.Table:
    return _by_queue(counts, {name: ints(counts[name]) for name in NUMBERS})


def _by_queue(rows: pa.Table, numbers: Mapping[str, Array]) -> pa.Table:
    """Merge the rows of a queue, in the order of the log, as long as their queue offsets ascend.

    They do not where a queue was deleted and created again. Rows of files by day may overlap in the log as well.
    """
    codes = Groups(rows, _QUEUE).codes
    order = np.lexsort((numbers["first"], codes))
    codes = codes[order]
    begins, ends, firsts, lasts = (numbers[name][order] for name in ("begin", "end", "first", "last"))
    is_again = (begins[1:] < ends[:-1]) & (firsts[1:] > lasts[:-1])
    starts = np.flatnonzero(np.r_[True, (codes[1:] != codes[:-1]) | is_again][: len(order)])
    found = rows.select(list(_QUEUE)).take(arrow(order[starts]))
    for name, values in numbers.items():
        found = found.append_column(name, arrow(_MERGED.get(name, np.add).reduceat(values[order], starts)))
    return found


def queues_of(counts: pa.Table) -> list[ArchivedQueue]:
    """Return the queues that were counted."""
    found = _merged(counts).to_pylist()
    found.sort(key=lambda row: (row["brokerName"], row["topic"], row["queueId"], row["first"]))
    queues = []
    for (broker_name, topic, queue_id), of_queue in groupby(found, key=lambda row: tuple(row[name] for name in _QUEUE)):
        first, *again = of_queue
        rows, size = (sum(row[name] for row in (first, *again)) for name in ("rows", "size"))
        end = again[-1]["end"] if again else first["end"]
        recreated = tuple(row["first"] for row in again)
        queues.append(
            ArchivedQueue(broker_name, topic, queue_id, rows, size, first["begin"], end, first["first"], recreated)
        )
    return queues
