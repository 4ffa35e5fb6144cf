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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from rucola.spark.lake import parquet_files
from rucola.spark.lake.archived_queues import NUMBERS, ArchivedQueue, CountedMessages, queues_of
from rucola.spark.lake.storage import Storage
from rucola.spark.lake.writer import LakeWriter, StagedFiles
from rucola.spark.shared_files import SharedPiece
from rucola.spark.source.array_conversions import repeated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ReadTask: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of a task to messages, as record batches with all columns. Pickled for the workers."""

_REPORT: Final = "attempt string, files string, brokerName string, topic string, queueId int, " + ", ".join(
    f"{name} bigint" for name in NUMBERS
)


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
    counted = CountedMessages()
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
    counted = CountedMessages()
    written = parquet_files.write_rows(counted.passing(read(rows)), storage, attempt, staging)
    files: str | None = json.dumps(written)
    for batch in counted.counts().to_batches():
        listed = pa.array([files, *[None] * (len(batch) - 1)], pa.string())
        files = None
        columns = [repeated(attempt, len(batch)), listed, *batch.columns]
        yield pa.RecordBatch.from_arrays(columns, ["attempt", "files", *batch.schema.names])


def _staged(lake: LakeWriter, counts: pa.Table, written: Sequence[parquet_files.WrittenFiles]) -> StagedMessages:
    """Make one run of the written entries, and return what was staged."""
    if not len(counts):
        return StagedMessages()
    keys, _ = lake.merge_entries([path for each in written for path in each.entries])
    queues = queues_of(counts)
    files = StagedFiles(
        tuple(path for each in written for path in each.rows),
        tuple(keys),
        sum(queue.rows for queue in queues),
        sum(each.entry_count for each in written),
    )
    return StagedMessages(tuple(queues), max(counts["last"].to_pylist()), files)
