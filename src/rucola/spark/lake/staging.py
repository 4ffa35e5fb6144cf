"""Staging: messages and their keys become files that a commit of the lake can publish.

They are written in this process or in Spark's tasks:

    tasks   check that they see the driver's directory (`shared_files`), if the lake is in one; read a partition; write
            its rows to the files that a commit is to name, and sorted entries of the key index to staging; and count
            the rows by queue
    driver  takes the files of the attempts that it has counts of, and no others, and merges their entries into one run
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from rucola.spark.lake import parquet_files
from rucola.spark.lake.storage import Storage
from rucola.spark.lake.writer import LakeWriter, StagedFiles
from rucola.spark.shared_files import SharedPiece
from rucola.spark.source.array_conversions import Array, arrow, ints, repeated
from rucola.spark.source.grouping import Groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ReadTask: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of a task to messages, as record batches with all columns. Pickled for the workers."""

_QUEUE: Final = ("brokerName", "topic", "queueId")
_NUMBERS: Final = ("rows", "size", "begin", "end", "first", "last")
"""Counts by queue: messages, bytes of records, the half-open range of queue offsets, the range of physical offsets."""
_MERGED: Final = {"begin": np.minimum, "end": np.maximum, "first": np.minimum, "last": np.maximum}
_REPORT: Final = "attempt string, files string, brokerName string, topic string, queueId int, " + ", ".join(
    f"{name} bigint" for name in _NUMBERS
)
_NO_COUNTS: Final = pa.Table.from_batches(
    [],
    pa.schema(
        [("brokerName", pa.string()), ("topic", pa.string()), ("queueId", pa.int32())]
        + [(name, pa.int64()) for name in _NUMBERS]
    ),
)


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


@dataclass(frozen=True)
class StagedMessages:
    """Staged messages by queue, their largest physical offset, None if nothing was staged, and their files."""

    queues: tuple[ArchivedQueue, ...] = ()
    last_physical_offset: int | None = None
    files: StagedFiles = field(default_factory=StagedFiles)

    @property
    def rows(self) -> int:
        """All staged messages."""
        return sum(queue.rows for queue in self.queues)


def stage_in_process(lake: LakeWriter, batches: Iterable[pa.RecordBatch]) -> StagedMessages:
    """Write messages, as record batches with all columns, and their keys without Spark."""
    lake.begin()
    counted = _CountedMessages()
    written = parquet_files.write_rows(counted.passing(batches), lake.storage, lake.run, lake.staging)
    return _staged(lake, counted.counts(), [written])


def stage_in_spark(lake: LakeWriter, tasks: DataFrame, read: ReadTask) -> StagedMessages:
    """Write messages and their keys with Spark; `read` makes the messages of a task from its rows."""
    with lake.sharing() as token:
        stage = partial(_stage_task, token, read, lake.storage, lake.run, lake.staging)
        counts = tasks.mapInArrow(stage, _REPORT).toArrow()
    written = {
        attempt: parquet_files.WrittenFiles(*json.loads(files))
        for attempt, files in zip(counts["attempt"].to_pylist(), counts["files"].to_pylist(), strict=True)
        if files is not None
    }
    staged = _staged(lake, counts, [written[attempt] for attempt in sorted(written)])
    return replace(staged, files=replace(staged.files, has_leftovers=not lake.staged_names() <= written.keys()))


def _stage_task(
    token: SharedPiece | None,
    read: ReadTask,
    storage: Storage,
    run: str,
    staging: str,
    rows: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    from pyspark.taskcontext import TaskContext

    if token is not None:
        token.check()
    task = TaskContext.get()
    # In the order of the tasks, which is the order of the log.
    attempt = f"{run}-{task.partitionId() if task else 0:05d}-{uuid.uuid4().hex}"
    counted = _CountedMessages()
    written = parquet_files.write_rows(counted.passing(read(rows)), storage, attempt, staging)
    files: str | None = json.dumps(written)
    for batch in counted.counts().to_batches():
        listed = pa.array([files, *[None] * (len(batch) - 1)], pa.string())
        files = None
        columns = [repeated(attempt, len(batch)), listed, *batch.columns]
        yield pa.RecordBatch.from_arrays(columns, ["attempt", "files", *batch.schema.names])


class _CountedMessages:
    """Messages that are counted by queue while they are written."""

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
        return _merged(pa.concat_tables([_NO_COUNTS, *self._counts]))


def _merged(counts: pa.Table) -> pa.Table:
    return _by_queue(counts, {name: ints(counts[name]) for name in _NUMBERS})


def _by_queue(rows: pa.Table, numbers: Mapping[str, Array]) -> pa.Table:
    """Merge the rows of a queue, in the order of the log, as long as their queue offsets ascend.

    They do not where a queue was deleted and created again.
    """
    codes = Groups(rows, _QUEUE).codes
    order = np.lexsort((numbers["first"], codes))
    codes, begins, ends = codes[order], numbers["begin"][order], numbers["end"][order]
    starts = np.flatnonzero(np.r_[True, (codes[1:] != codes[:-1]) | (begins[1:] < ends[:-1])][: len(order)])
    found = rows.select(list(_QUEUE)).take(arrow(order[starts]))
    for name, values in numbers.items():
        found = found.append_column(name, arrow(_MERGED.get(name, np.add).reduceat(values[order], starts)))
    return found


def _staged(lake: LakeWriter, counts: pa.Table, written: Sequence[parquet_files.WrittenFiles]) -> StagedMessages:
    """Make one run of the written entries, and return what was staged."""
    if not len(counts):
        return StagedMessages()
    keys, _ = lake.merge_entries([path for each in written for path in each.entries])
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
    files = StagedFiles(
        tuple(path for each in written for path in each.rows),
        tuple(keys),
        sum(queue.rows for queue in queues),
        sum(each.entry_count for each in written),
    )
    return StagedMessages(tuple(queues), max(row["last"] for row in found), files)
