"""The rebuild job: ConsumeQueues and index of a store, made from its log by many tasks, byte by byte as a broker's.

    files       a row for each file of the log
    taken_in    by file of the log: the units of its records in runs, and how many index entries it makes
    queues      by queue: the runs in the order of the log become the files of the queue
    index       by index file: its entries, found in the one or two files of the log that hold them

Each step is a piece of `rucola.store.tools.partial_rebuild`; Spark deals them out and brings the runs of a queue
together. A run is some bytes for many messages, so little travels. A task that is tried again writes its files anew.

Files are written beside the old ones and exchanged at the end, as `rucola store rebuild` does, which takes one process.
The directory must be seen by driver and workers under one path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from rucola.files import sync_directory
from rucola.spark.errors import plainly
from rucola.spark.session import Spark, session_of
from rucola.store.config import StoreConfig
from rucola.store.tools.partial_rebuild import (
    IndexSource,
    ScannedLogFile,
    UnitRun,
    index_names,
    log_files,
    plan_index_files,
    scan_log_file,
    write_consume_queue,
    write_index_file,
)
from rucola.store.tools.rebuild import ProgressCallback, RebuildResult
from rucola.store.tools.rebuild import rebuild as rebuild_by

_TAKEN_IN: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("units", pa.binary()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("is_last", pa.bool_()),
        ("messages", pa.int64()),
        ("entries", pa.int64()),
    ]
)
"""A `UnitRun`, or a `ScannedLogFile`; the fields of the other are NULL."""

_FILE: Final = "number int, begin bigint"
_INDEX_FILE: Final = "number int, parts array<struct<begin: bigint, first_entry: bigint>>"
_RUNS_A_BATCH: Final = 256

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Pieces:
    """The work of the tasks; made on the driver, and pickled to the workers."""

    log: Path
    target: Path
    settings: StoreConfig

    def scan_log_file(self, batches: Batches) -> Batches:
        """Read the files of the log whose beginnings these rows name."""
        for row in _rows(batches):
            items = scan_log_file(self.log, row["begin"], self.settings)
            while some := [item._asdict() for item in islice(items, _RUNS_A_BATCH)]:
                yield pa.RecordBatch.from_pylist(some, _TAKEN_IN)

    def write_queues(self, batches: Batches) -> Batches:
        """Write the queues whose runs these rows are, in order."""
        for _, runs in groupby(_rows(batches), key=itemgetter("topic", "queue_id")):
            count = write_consume_queue(self.log, self.target, (UnitRun(**run) for run in runs), self.settings)
            yield pa.RecordBatch.from_pydict({"units": [count]})

    def write_index(self, batches: Batches) -> Batches:
        """Write the index files that these rows name."""
        for row in _rows(batches):
            parts = [IndexSource(**part) for part in row["parts"]]
            path = self.target / "index" / _temporary(row["number"])
            timestamp = write_index_file(self.log, path, row["number"], parts, self.settings)
            yield pa.RecordBatch.from_pydict({"number": [row["number"]], "firstTimestamp": [timestamp]})


def taken_in(files: DataFrame, pieces: Pieces, count: int) -> DataFrame:
    """Return the runs of units of `count` files of a log, and for each file, with topic NULL, what it was.

    `files` are rows of number and begin.
    """
    return files.repartitionById(count, "number").mapInArrow(pieces.scan_log_file, from_arrow_schema(_TAKEN_IN))


def queues(runs: DataFrame, pieces: Pieces, count: int) -> DataFrame:
    """Write the queues of these runs in `count` tasks, and return how many units each has."""
    return (
        runs.select(*UnitRun._fields)
        .repartition(count, "topic", "queue_id")
        .sortWithinPartitions("topic", "queue_id", "physical_offset")
        .mapInArrow(pieces.write_queues, "units bigint")
    )


@plainly()
def run(
    spark: Spark, store: str | Path, out: str | Path | None = None, *, settings: StoreConfig | None = None
) -> RebuildResult:
    """Rewrite ConsumeQueues and index of a store, in place or under `out`, like `rucola.store.tools.rebuild`.

    Arguments and errors are those of that.
    """
    return rebuild_by(
        Path(store).absolute(), Path(out).absolute() if out else None, settings=settings, builder=partial(build, spark)
    )


def build(
    spark: Spark, log: Path, target: Path, settings: StoreConfig, _: ProgressCallback | None = None
) -> RebuildResult:
    """Write `target/consumequeue` and `target/index` for the log in the directory `log`, down to the disk."""
    session = session_of(spark)
    for name in ("consumequeue", "index"):
        (target / name).mkdir(parents=True)
    pieces = Pieces(log, target, settings)
    begins = log_files(log)
    files = session.createDataFrame(list(enumerate(begins)), _FILE)
    found = taken_in(files, pieces, len(begins)).persist(StorageLevel.DISK_ONLY)
    try:
        taken = _up_to_the_end(
            [ScannedLogFile(*row) for row in found.where("topic IS NULL").select(*ScannedLogFile._fields).collect()]
        )
        runs = found.where(found.physical_offset < taken[-1].end)
        written = queues(runs, pieces, 2 * session.sparkContext.defaultParallelism).collect()
        entries = sum(each.entries for each in taken)
        names = _write_index(session, pieces, taken)
    finally:
        found.unpersist()
    for directory in (target / "consumequeue", target / "index", target):
        sync_directory(directory)
    return RebuildResult(
        target,
        messages=sum(each.messages for each in taken),
        queues=len(written),
        units=sum(row.units for row in written),
        index_files=len(names),
        index_entries=entries,
    )


def _write_index(spark: SparkSession, pieces: Pieces, taken: Sequence[ScannedLogFile]) -> list[str]:
    """Write all index files, then give them their names, in order."""
    work = plan_index_files(taken, pieces.settings)
    if not work:
        return []
    rows = spark.createDataFrame(work, _INDEX_FILE).repartitionById(len(work), "number")
    done = rows.mapInArrow(pieces.write_index, "number bigint, firstTimestamp bigint").collect()
    names = index_names([timestamp for _, timestamp in sorted(done)])
    for number, name in enumerate(names):
        directory = pieces.target / "index"
        (directory / _temporary(number)).rename(directory / name)
    return names


def _up_to_the_end(taken: Sequence[ScannedLogFile]) -> list[ScannedLogFile]:
    """Return the files, in order, up to the one in which the log ends; what may lie behind is no part of it."""
    ordered = sorted(taken)
    last = next((number for number, each in enumerate(ordered) if each.is_last), len(ordered) - 1)
    return ordered[: last + 1]


def _rows(batches: Batches) -> Iterator[dict[str, Any]]:
    return (row for batch in batches for row in batch.to_pylist())


def _temporary(number: int) -> str:
    return f"part-{number:08d}"
