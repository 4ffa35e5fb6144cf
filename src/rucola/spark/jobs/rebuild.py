"""Rebuild job: builds a store's ConsumeQueues and index from its CommitLog in parallel, byte-identical to a broker's.

`run_from_lake` writes the CommitLog first, from archived messages: each at its physical offset, a part of the lake by
task, and in the places between them what `rucola.store.tools.repair` writes instead of damage.

    1. units    by log file: the units of its records, in runs of consecutive units, and its number of index entries
    2. queues   by queue: the runs in log order are written as the files of the queue
    3. index    by index file: its entries, read from the one or two log files that contain them

Each step is a function of `rucola.store.tools.parallel_rebuild`. A retried task overwrites its files. Driver and
workers must reach the directory under the same path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from rucola.errors import ConfigError, StoreError
from rucola.files import DIRECTORY_MODE, FILE_MODE, local_path, make_directory, open_inside, sync_directory
from rucola.message.record import FRAME, MIN_RECORD_SIZE
from rucola.message.topics import is_system_topic
from rucola.spark.archive import Archive, ArchivePart
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.jobs.progress import ProgressCallback
from rucola.spark.jobs.selected_messages import map_partitions
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.shared_files import SharedPiece, share
from rucola.store.config import DERIVED_DIRECTORIES, StoreConfig
from rucola.store.config_files import config_path, write_config
from rucola.store.consume_queue import queue_directories
from rucola.store.mapped_file import file_name
from rucola.store.tools.parallel_rebuild import (
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
from rucola.store.tools.rebuild import RebuildResult
from rucola.store.tools.rebuild import build as build_here
from rucola.store.tools.rebuild import rebuild as rebuild_by
from rucola.store.tools.repair import RepairResult, complete

_UNITS_SCHEMA: Final = pa.schema(
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
"""`UnitRun` and `ScannedLogFile` rows in one DataFrame; the fields of the other are NULL."""

_FILE: Final = "number int, begin bigint"
_INDEX_FILE: Final = "number int, parts array<struct<begin: bigint, first_entry: bigint>>"
_BATCH_RUNS: Final = 256
_NOT_ARCHIVED: Final = "the lake has no message here"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class RebuildTasks:
    """Functions of the three steps for `mapInArrow`, pickled from the driver to the workers."""

    log: Path
    target: Path
    settings: StoreConfig
    token: SharedPiece
    first_pieces: Mapping[int, SharedPiece]
    """The head of each log file's first record, by the file's start offset."""

    def check_log_file(self, begin: int) -> None:
        """Raise DirectoryNotShared unless this is the driver's log file."""
        if begin in self.first_pieces:
            self.first_pieces[begin].check()

    def extract_units(self, batches: Batches) -> Batches:
        """Extract the units of the log files whose start offsets are in these rows."""
        for row in _rows(batches):
            self.check_log_file(row["begin"])
            items = scan_log_file(self.log, row["begin"], self.settings)
            while some := [item._asdict() for item in islice(items, _BATCH_RUNS)]:
                yield pa.RecordBatch.from_pylist(some, _UNITS_SCHEMA)

    def write_queues(self, batches: Batches) -> Batches:
        """Write the queues of these runs, which are sorted by queue and physical offset."""
        self.token.check()
        for _, runs in groupby(_rows(batches), key=itemgetter("topic", "queue_id")):
            count = write_consume_queue(self.log, self.target, (UnitRun(**run) for run in runs), self.settings)
            yield pa.RecordBatch.from_pydict({"units": [count]})

    def write_index(self, batches: Batches) -> Batches:
        """Write the index files that these rows describe, under temporary names."""
        self.token.check()
        for row in _rows(batches):
            parts = [IndexSource(**part) for part in row["parts"]]
            for part in parts:
                self.check_log_file(part.begin)
            path = self.target / "index" / _temporary_name(row["number"])
            timestamp = write_index_file(self.log, path, row["number"], parts, self.settings)
            yield pa.RecordBatch.from_pydict({"number": [row["number"]], "firstTimestamp": [timestamp]})


def extract_units(files: DataFrame, tasks: RebuildTasks, count: int) -> DataFrame:
    """Return the unit runs of the files (number, begin), and per file a summary row, with the topic NULL."""
    return files.repartitionById(count, "number").mapInArrow(tasks.extract_units, from_arrow_schema(_UNITS_SCHEMA))


def write_queues(runs: DataFrame, tasks: RebuildTasks, count: int) -> DataFrame:
    """Write the queues of these runs in `count` tasks, and return their numbers of units."""
    return (
        runs.select(*UnitRun._fields)
        .repartition(count, "topic", "queue_id")
        .sortWithinPartitions("topic", "queue_id", "physical_offset")
        .mapInArrow(tasks.write_queues, "units bigint")
    )


@translate_spark_errors()
def run(
    spark: AnySession, store: str | Path, out: str | Path | None = None, *, settings: StoreConfig | None = None
) -> RebuildResult:
    """Rebuild ConsumeQueues and index, in place or under `out`, as `rucola.store.tools.rebuild.rebuild` does."""
    return rebuild_by(
        local_path(store).absolute(),
        local_path(out).absolute() if out else None,
        settings=settings,
        builder=partial(build, spark),
    )


@dataclass(frozen=True)
class LogTask:
    """Writes the messages of one store or live broker into the files of its log."""

    name: str
    log: Path
    file_size: int
    token: SharedPiece

    def write(self, part: ArchivePart) -> Batches:
        """Write records at their physical offsets; durable on return. Raises ConfigError if files are too small."""
        self.token.check()
        for offsets, records in part.records(self.name):
            begins = offsets - offsets % self.file_size
            for begin in np.unique(begins).tolist():
                path = self.log / file_name(begin)
                with open(open_inside(self.log, path, os.O_WRONLY | os.O_CREAT, FILE_MODE), "wb") as file:
                    file.truncate(self.file_size)
                    for index in np.flatnonzero(begins == begin).tolist():
                        if (record := records[index].as_py()) is None:
                            continue
                        position = int(offsets[index]) - begin
                        if position + len(record) > self.file_size:
                            raise ConfigError(
                                f"the record at {int(offsets[index])} crosses the end of a file of {self.file_size} "
                                "bytes: give the mappedFileSizeCommitLog of the broker that wrote it",
                                subject="mappedFileSizeCommitLog",
                            )
                        file.seek(position)
                        file.write(record)
                    file.flush()
                    os.fsync(file.fileno())
            yield pa.RecordBatch.from_pydict({"messages": [len(offsets)]})


@translate_spark_errors()
def run_from_lake(
    spark: AnySession,
    lake: str | Path | Archive,
    out: str | Path,
    *,
    broker_name: str | None = None,
    settings: StoreConfig | None = None,
) -> RepairResult:
    """Write the store that a lake has the messages of to `out`, which must be missing or empty.

    Each message gets its physical offset and its queue offset again, and its record the bytes that the lake knows (see
    `rucola.spark.lake.record_columns`). System topics are left out. `broker_name` is the name of the store in the lake,
    and may be omitted if that has one only. The log ends where the next run of `archive` continues.

    Raises ConfigError for a wrong name or file size, StoreError if there is no lake or `out` is not empty, and
    StoreCorrupt if the lake is damaged; then `out` does not exist.
    """
    archive, target = Archive(lake), local_path(out).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} is not empty; give a new directory", subject=target)
    scan = archive.scan(lambda topic: not is_system_topic(topic))
    name = broker_name or _only_name(archive, scan.progress)
    if name not in scan.progress:
        raise ConfigError(
            f"{archive} has no messages of {name}; it has those of {', '.join(sorted(scan.progress))}", subject=name
        )
    staging = target.with_name(f"{target.name}.tmp")
    if staging.exists():
        shutil.rmtree(staging)
    make_directory(staging / "commitlog")
    settings = settings or StoreConfig(staging)
    in_spark = runs_in_spark(spark, lambda: scan.size)
    with share(staging) as token:
        task = LogTask(name, staging / "commitlog", settings.mapped_file_size_commit_log, token)
        if in_spark:
            session = resolve_session(spark)
            parts = scan.parts(2 * session.sparkContext.defaultParallelism)
            map_partitions(session, parts, task.write, "messages bigint").collect()
        else:
            for part in scan.parts(1):
                for _ in task.write(part):
                    pass
    end = scan.progress[name].physical_offset
    builder = partial(build, spark) if in_spark else build_here
    done = complete(staging, end, _NOT_ARCHIVED, settings, builder=builder)
    write_config(config_path(staging, "topics"), {"topicConfigTable": _topics(staging)})
    if target.exists():
        target.rmdir()
    staging.rename(target)
    sync_directory(target.parent)
    done.source, done.out, done.rebuilt.path = archive.path, target, target
    # What has no message is no loss: system topics are in the log of a broker, and not in its lake.
    done.left_out = [each for each in done.left_out if each.messages]
    return done


def _only_name(archive: Archive, names: Iterable[str]) -> str:
    known = sorted(names)
    if len(known) != 1:
        raise ConfigError(f"{archive} has the messages of {', '.join(known) or 'no store'}: give the name of one")
    return known[0]


def _topics(store: Path) -> dict[str, Any]:
    """Return settings of the topics of a store, with the queues that it has."""
    counts: dict[str, int] = {}
    for topic, queue_id, _ in queue_directories(store / "consumequeue"):
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return {
        topic: {"topicName": topic, "perm": 6, "readQueueNums": count, "writeQueueNums": count}
        for topic, count in sorted(counts.items())
    }


def build(
    spark: AnySession, log: Path, target: Path, settings: StoreConfig, _: ProgressCallback | None = None
) -> RebuildResult:
    """Write `target/consumequeue` and `target/index` for the log directory `log`, and sync them to disk."""
    session = resolve_session(spark)
    make_directory(target)
    for name in DERIVED_DIRECTORIES:
        (target / name).mkdir(DIRECTORY_MODE)
    begins = {int(path.name): path for path in log_files(log)}
    first_pieces = {
        begin: SharedPiece.of(path, 0, MIN_RECORD_SIZE) for begin, path in begins.items() if _has_record(path)
    }
    # The rows are read twice. Keeping them on disk costs far less than a second scan of the log.
    files = session.createDataFrame(list(enumerate(begins)), _FILE)
    with share(target) as token:
        tasks = RebuildTasks(log, target, settings, token, first_pieces)
        found = extract_units(files, tasks, len(begins)).persist(StorageLevel.DISK_ONLY)
        try:
            summaries = found.where("topic IS NULL").select(*ScannedLogFile._fields).collect()
            taken = _up_to_log_end([ScannedLogFile(*row) for row in summaries])
            runs = found.where(found.physical_offset < taken[-1].end)
            written = write_queues(runs, tasks, 2 * session.sparkContext.defaultParallelism).collect()
            entries = sum(each.entries for each in taken)
            names = _write_index(session, tasks, taken)
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


def _write_index(spark: SparkSession, tasks: RebuildTasks, taken: Sequence[ScannedLogFile]) -> list[str]:
    """Write all index files under temporary names, then rename them in order: a name can depend on the one before."""
    work = plan_index_files(taken, tasks.settings)
    if not work:
        return []
    rows = spark.createDataFrame(work, _INDEX_FILE).repartitionById(len(work), "number")
    done = rows.mapInArrow(tasks.write_index, "number bigint, firstTimestamp bigint").collect()
    names = index_names([timestamp for _, timestamp in sorted(done)])
    for number, name in enumerate(names):
        directory = tasks.target / "index"
        (directory / _temporary_name(number)).rename(directory / name)
    return names


def _up_to_log_end(taken: Sequence[ScannedLogFile]) -> list[ScannedLogFile]:
    """Return the files in order, up to the one with the end of the log."""
    ordered = sorted(taken)
    last = next((number for number, each in enumerate(ordered) if each.is_last), len(ordered) - 1)
    return ordered[: last + 1]


def _has_record(log_file: Path) -> bool:
    """Return whether a log file has been written to; a broker creates the next one in advance."""
    with log_file.open("rb") as file:
        return any(file.read(FRAME.size))


def _rows(batches: Batches) -> Iterator[dict[str, Any]]:
    return (row for batch in batches for row in batch.to_pylist())


def _temporary_name(number: int) -> str:
    return f"part-{number:08d}"
