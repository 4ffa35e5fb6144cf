"""The archive job: what is new in a store goes into the lake.

The log is one sequence, so one number says how far a store is archived: the physical offset behind its last archived
record (see `rucola.spark.lake`, which also says why a run that is killed leaves nothing twice). A run takes the whole
records from there to where the log ends when it starts, so the store may be in use meanwhile.

A store is known by its name, by default the path of its directory. That the store in that place is the one that was
archived before is checked by the last archived record while the log still has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.errors import StoreError
from rucola.spark.lake import PARTITION_COLUMNS, Lake, Progress, open_lake, read_lake
from rucola.spark.options import is_store
from rucola.spark.planning import log_end
from rucola.spark.source import FORMAT
from rucola.store.reader import StoreReader

_MICROSECONDS_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class QueueSummary:
    """What a run archived of one queue; queue offsets are half-open, `size` is bytes of records in the log."""

    topic: str
    queue_id: int
    rows: int
    size: int
    begin_queue_offset: int
    end_queue_offset: int


@dataclass(frozen=True)
class Summary:
    """What a run archived: the records of `store` between two physical offsets.

    `size` counts bytes of records in the log, `file_size` bytes of the `file_count` Parquet files made of them.
    """

    store: str
    broker_name: str
    lake: str
    begin_physical_offset: int
    end_physical_offset: int
    file_count: int = 0
    file_size: int = 0
    queues: tuple[QueueSummary, ...] = ()

    @property
    def rows(self) -> int:
        """Messages that this run archived."""
        return sum(queue.rows for queue in self.queues)

    @property
    def size(self) -> int:
        """Bytes of records that this run archived."""
        return sum(queue.size for queue in self.queues)

    @property
    def rows_by_topic(self) -> dict[str, int]:
        """Messages that this run archived, by topic in alphabetical order."""
        rows: dict[str, int] = {}
        for queue in self.queues:
            rows[queue.topic] = rows.get(queue.topic, 0) + queue.rows
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the summary as values that JSON knows."""
        return {
            "store": self.store,
            "brokerName": self.broker_name,
            "lake": self.lake,
            "rows": self.rows,
            "size": self.size,
            "files": self.file_count,
            "fileSize": self.file_size,
            "commitLogOffsets": [self.begin_physical_offset, self.end_physical_offset],
            "topics": self.rows_by_topic,
            "queues": [
                {
                    "topic": queue.topic,
                    "queueId": queue.queue_id,
                    "rows": queue.rows,
                    "size": queue.size,
                    "queueOffsets": [queue.begin_queue_offset, queue.end_queue_offset],
                }
                for queue in self.queues
            ],
        }


def archive(messages: DataFrame) -> DataFrame:
    """Return the rows of the lake for these messages: the same with `date`, the UTC date of storeTimestamp."""
    days = F.floor(F.unix_micros("storeTimestamp") / _MICROSECONDS_A_DAY).cast("int")
    return messages.withColumn("date", F.date_from_unix_date(days))


def run(
    spark: SparkSession,
    store: str | Path,
    lake: str | Path,
    *,
    broker_name: str | None = None,
    include_system_topics: bool = False,
    corrupt_records: str = "fail",
) -> Summary:
    """Archive what is new in a store directory and return what that was. Running again over the same adds nothing.

    The options are those of the data source (see `rucola.spark.options`). Raises StoreError when `store` is no store
    directory, is damaged, or is not the one that was archived under this name before; ConfigError when the lake
    cannot be used. Nothing is archived then.
    """
    directory = Path(store).absolute()
    if not is_store(directory):
        raise StoreError(f"{directory} is no store directory: it holds no commitlog/")
    name = broker_name or str(directory)
    with open_lake(lake) as target, StoreReader(directory) as reader:
        known = target.progress().get(name)
        begin, end = _begin(reader, known, name, target), log_end(reader)
        summary = Summary(str(directory), name, str(target.root), begin, end)
        if begin == end:
            return summary
        options = {
            "storePath": str(directory),
            "brokerName": name,
            "startingCommitLogOffset": str(begin),
            "endingCommitLogOffset": str(end),
            "includeSystemTopics": str(include_system_topics).lower(),
            "corruptRecords": corrupt_records,
        }
        messages = spark.read.format(FORMAT).options(**options).load()
        try:
            archive(messages).write.partitionBy(*PARTITION_COLUMNS).parquet(str(target.staging))
            queues, last = _inspect(spark, target)
        except PySparkException as error:
            raise _plain(error) from error
        progress = _advance(known or Progress(begin), end, queues, last, reader)
        files = target.publish(name, begin, progress)
        sizes = [path.stat().st_size for path in files]
        return Summary(str(directory), name, str(target.root), begin, end, len(files), sum(sizes), queues)


def _begin(reader: StoreReader, known: Progress | None, name: str, lake: Lake) -> int:
    """Return where to go on, having made sure that this is the store that was archived up to there."""
    begin = reader.min_physical_offset
    if known is None:
        return begin
    if known.physical_offset < begin:
        raise StoreError(
            f"{reader.path} begins at physical offset {begin}, but only what is before {known.physical_offset} is "
            f"archived in {lake.root}; the messages between are lost. Archive into another lake to go on"
        )
    other = (
        f"{lake.root} holds messages of another store under the name {name}; archive into another lake, "
        f"or give this store a name of its own"
    )
    if known.physical_offset > log_end(reader):
        raise StoreError(other)
    last = known.last_physical_offset
    if last is not None and last >= begin:
        try:
            found = reader.record(last).msg_id
        except StoreError as error:
            raise StoreError(other) from error
        if found != known.last_msg_id:
            raise StoreError(other)
    return known.physical_offset


def _inspect(spark: SparkSession, lake: Lake) -> tuple[tuple[QueueSummary, ...], int | None]:
    """Return what lies in staging by queue, and the physical offset of its last record: the files themselves say."""
    if next(lake.staging.glob("*/*/*.parquet"), None) is None:
        return (), None
    counted = (
        read_lake(spark, lake.staging)
        .groupBy("topic", "queueId")
        .agg(
            F.count("*").alias("rows"),
            F.sum("storeSize").alias("size"),
            F.min("queueOffset").alias("first"),
            F.max("queueOffset").alias("last"),
            F.max("commitLogOffset").alias("commitLogOffset"),
        )
        .collect()
    )
    queues = [QueueSummary(row.topic, row.queueId, row.rows, row.size, row.first, row.last + 1) for row in counted]
    last = max(row.commitLogOffset for row in counted)
    return tuple(sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))), last


def _advance(
    known: Progress, end: int, queues: tuple[QueueSummary, ...], last: int | None, reader: StoreReader
) -> Progress:
    """Return the progress after a run that archived these queues and records before `end`."""
    offsets: dict[str, Mapping[str, int]] = dict(known.queues)
    for queue in queues:
        offsets[queue.topic] = {**offsets.get(queue.topic, {}), str(queue.queue_id): queue.end_queue_offset}
    if last is None:
        return Progress(end, known.last_physical_offset, known.last_msg_id, offsets)
    return Progress(end, last, reader.record(last).msg_id, offsets)


def _plain(error: PySparkException) -> StoreError:
    """Return the error of ours that Spark carried home from a worker in the text of its own."""
    found = re.search(r"rucola\.errors\.\w+: (.*)", str(error))
    return StoreError(found[1].strip() if found else str(error))
