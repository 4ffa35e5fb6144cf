"""Staging: messages and their keys become files that a commit of the lake can publish.

They are written in this process or in Spark's tasks:

    tasks   check that they see the driver's directory (`shared_files`), read a partition, write its rows to
            `<staged rows>/<attempt>/topic=.../date=.../` and sorted entries of the key index to
            `<staged entries>/<attempt>/`, and count the rows by queue
    driver  moves the row files of the attempts that it has counts of to `<staged rows>/`, and no others, and merges
            their entries into one run
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rucola.spark.lake import parquet_files
from rucola.spark.lake.key_index import merge
from rucola.spark.lake.writer import LakeWriter
from rucola.spark.shared_files import SharedPiece, not_shared
from rucola.spark.source.array_conversions import Array, arrow, ints, repeated
from rucola.spark.source.grouping import Groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ReadTask: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of a task to messages, as record batches with all columns. Pickled for the workers."""

_QUEUE: Final = ("brokerName", "topic", "queueId")
_NUMBERS: Final = ("rows", "size", "begin", "end", "physicalOffset")
"""Counts by queue: messages, bytes of records, the half-open range of queue offsets, the largest physical offset."""
_REPORT: Final = "attempt string, entries bigint, brokerName string, topic string, queueId int, " + ", ".join(
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
    entries = parquet_files.write_rows(counted.passing(batches), lake.staged_rows, lake.staged_entries)
    return _staged(lake, counted.counts(), sorted(lake.staged_entries.glob("*.parquet")), entries)


def stage_in_spark(lake: LakeWriter, tasks: DataFrame, read: ReadTask) -> StagedMessages:
    """Write messages and their keys to staging with Spark; `read` makes the messages of a task from its rows."""
    with lake.sharing() as token:
        stage = partial(_stage_task, token, read, lake.staged_rows, lake.staged_entries)
        counts = tasks.mapInArrow(stage, _REPORT).toArrow()
    paths: list[Path] = []
    entries = 0
    for attempt, count in sorted(set(zip(*(counts[name].to_pylist() for name in ("attempt", "entries")), strict=True))):
        _adopt(lake.staged_rows, attempt)
        paths += sorted((lake.staged_entries / attempt).glob("*.parquet"))
        entries += count
    return _staged(lake, counts, paths, entries)


def _stage_task(
    token: SharedPiece, read: ReadTask, staged_rows: Path, staged_entries: Path, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from pyspark.taskcontext import TaskContext

    token.check()
    task = TaskContext.get()
    # In the order of the tasks, which is the order of the log.
    attempt = f"{task.partitionId() if task else 0:05d}-{uuid.uuid4().hex}"
    counted = _CountedMessages()
    entries = parquet_files.write_rows(counted.passing(read(rows)), staged_rows / attempt, staged_entries / attempt)
    for batch in counted.counts().to_batches():
        columns = [repeated(attempt, len(batch)), arrow(np.full(len(batch), entries)), *batch.columns]
        yield pa.RecordBatch.from_arrays(columns, ["attempt", "entries", *batch.schema.names])


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


def _staged(lake: LakeWriter, counts: pa.Table, paths: Sequence[Path], entries: int) -> StagedMessages:
    """Make one run of the staged entries, and return what was staged; DirectoryNotShared if entries are missing."""
    if not len(counts):
        return StagedMessages()
    if merge([partial(pq.ParquetFile, path) for path in paths], lake.staged_keys) != entries:
        raise not_shared(lake.root)
    found = _by_queue(counts, {name: ints(counts[name]) for name in _NUMBERS})
    queues = [
        ArchivedQueue(
            row["brokerName"], row["topic"], row["queueId"], row["rows"], row["size"], row["begin"], row["end"]
        )
        for row in found.to_pylist()
    ]
    queues.sort(key=lambda queue: (queue.broker_name, queue.topic, queue.queue_id))
    return StagedMessages(tuple(queues), int(ints(found["physicalOffset"]).max()), entries)
