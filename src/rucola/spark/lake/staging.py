"""Staging: messages and their keys become files that a commit of the lake can publish.

Rows are written by Arrow, in this process or in Spark's tasks, because Spark's own writer needs twice as long:

    tasks   check that they see the driver's directory (`shared_files`), read a partition, write its rows to
            `<staged rows>/<attempt>/topic=.../date=.../`, and count them by queue
    driver  moves the files of the attempts that it has counts of to `<staged rows>/`, and no others
    Spark   reads the keys of all staged rows, sorts them, and writes them
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.spark.lake import parquet_files
from rucola.spark.lake.key_index import key_entries, write_keys
from rucola.spark.lake.reader import read_rows
from rucola.spark.lake.writer import LakeWriter
from rucola.spark.shared_files import SharedPiece
from rucola.spark.source.array_conversions import Array, ints, repeated
from rucola.spark.source.grouping import Groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ReadTask: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of a task to messages, as record batches with all columns. Pickled for the workers."""

_QUEUE: Final = ("brokerName", "topic", "queueId")
_NUMBERS: Final = ("rows", "size", "begin", "end", "physicalOffset", "keys")
"""Counts by queue: messages, bytes of records, the half-open range of queue offsets, the largest physical offset, and
index entries, or a few more."""
_REPORT: Final = "attempt string, brokerName string, topic string, queueId int, " + ", ".join(
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
    """Archived messages of one queue. Queue offsets are half-open; `size` is bytes of records in the log."""

    broker_name: str
    topic: str
    queue_id: int
    rows: int
    size: int
    begin_queue_offset: int
    end_queue_offset: int


@dataclass(frozen=True)
class StagedMessages:
    """Staged messages by queue, their largest physical offset, None if nothing was staged, and their index entries."""

    queues: tuple[ArchivedQueue, ...] = ()
    last_physical_offset: int | None = None
    entries: int = 0

    @property
    def rows(self) -> int:
        """All staged messages."""
        return sum(queue.rows for queue in self.queues)


def stage_in_process(lake: LakeWriter, batches: Iterable[pa.RecordBatch]) -> StagedMessages:
    """Write messages, as record batches with all columns, and their keys to staging without Spark."""
    counted = _CountedMessages()
    parquet_files.write_rows(counted.passing(batches), lake.staged_rows)
    paths = sorted(lake.staged_rows.glob("*/*/*.parquet"))
    entries = parquet_files.staged_key_entries(paths)
    parquet_files.write_key_entries(entries, lake.staged_keys)
    return _staged(counted.counts(), len(entries))


def stage_in_spark(lake: LakeWriter, tasks: DataFrame, read: ReadTask) -> StagedMessages:
    """Write messages and their keys to staging with Spark; `read` makes the messages of a task from its rows."""
    with lake.sharing() as token:
        counts = tasks.mapInArrow(partial(_stage_task, token, read, lake.staged_rows), _REPORT).toArrow()
    if not len(counts):
        return StagedMessages()
    for attempt in sorted(set(counts["attempt"].to_pylist())):
        _adopt(lake.staged_rows, attempt)
    session, paths = tasks.sparkSession, map(str, sorted(lake.staged_rows.glob("topic=*/*/*.parquet")))
    entries = key_entries(read_rows(session, lake.staged_rows, [*paths]))
    return _staged(counts, write_keys(entries, pc.sum(counts["keys"]).as_py(), lake.staged_keys))


def _stage_task(
    token: SharedPiece, read: ReadTask, staged_rows: Path, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from pyspark.taskcontext import TaskContext

    token.check()
    task = TaskContext.get()
    # In the order of the tasks, which is the order of the log.
    attempt = f"{task.partitionId() if task else 0:05d}-{uuid.uuid4().hex}"
    counted = _CountedMessages()
    parquet_files.write_rows(counted.passing(read(rows)), staged_rows / attempt)
    for batch in counted.counts().to_batches():
        columns = [repeated(attempt, len(batch)), *batch.columns]
        yield pa.RecordBatch.from_arrays(columns, ["attempt", *batch.schema.names])


def _adopt(staged_rows: Path, attempt: str) -> None:
    """Move the files of an attempt to where the lake looks for staged rows."""
    for path in sorted((staged_rows / attempt).glob("*/*/*.parquet")):
        directory = staged_rows / path.parent.relative_to(staged_rows / attempt)
        directory.mkdir(parents=True, exist_ok=True)
        path.rename(directory / f"{attempt}-{path.name}")


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
                "physicalOffset": ints(batch["commitLogOffset"]),
                "keys": np.bincount(ints(pc.list_parent_indices(batch["keys"])), minlength=len(batch)) + 1,
            }
            queues = pa.Table.from_arrays([batch[name] for name in _QUEUE], _QUEUE)
            self._counts.append(_by_queue(queues, numbers))
            yield batch

    def counts(self) -> pa.Table:
        every = pa.concat_tables([_NO_COUNTS, *self._counts])
        return _by_queue(every, {name: ints(every[name]) for name in _NUMBERS})


def _by_queue(rows: pa.Table, numbers: Mapping[str, Array]) -> pa.Table:
    groups = Groups(rows, _QUEUE)
    combine = {"begin": groups.min, "end": groups.max, "physicalOffset": groups.max}
    return groups.table(**{name: combine.get(name, groups.sum)(values) for name, values in numbers.items()})


def _staged(counts: pa.Table, entries: int) -> StagedMessages:
    if not len(counts):
        return StagedMessages()
    found = _by_queue(counts, {name: ints(counts[name]) for name in _NUMBERS})
    queues = [
        ArchivedQueue(
            row["brokerName"], row["topic"], row["queueId"], row["rows"], row["size"], row["begin"], row["end"]
        )
        for row in found.to_pylist()
    ]
    queues.sort(key=lambda queue: (queue.broker_name, queue.topic, queue.queue_id))
    return StagedMessages(tuple(queues), int(ints(found["physicalOffset"]).max()), entries)
