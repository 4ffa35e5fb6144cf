"""The archive job: what is new in a store, or on live brokers, goes into the lake, and its keys into the key index.

**A store.** The log is one sequence, so one number says how far it is archived: the physical offset behind its last
archived record. A run takes the whole records from there to where the log ends when it starts, so the store may be in
use meanwhile. A store is known by its name, by default the path of its directory. That the store in that origin is the
one that was archived before is checked by the last archived record while the log still has it.

**Live brokers.** Every queue is a sequence, and a run takes each from the next queue offset to its end when the run
starts. A broker is known by its brokerName. Nothing follows from that about the broker's log, so such an archive is
none that deleteOnlyArchived can go by. A broker that was archived before, or that is required, and is missing now ends
the run, unless that is allowed; a later run goes on where the broker's queues were.

A run writes rows and keys to staging and publishes both by one commit (see `rucola.spark.lake.writer`, which also says
why a run that is killed leaves nothing twice). Running again is how one goes on, after a kill as after a day; there is
no other state than the lake's own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.errors import StoreError
from rucola.spark.errors import translate_spark_errors
from rucola.spark.jobs.grouping import Groups
from rucola.spark.jobs.messages import frame_of
from rucola.spark.lake import parquet_files
from rucola.spark.lake.data_files import PARTITION_COLUMNS, ROW_OPTIONS
from rucola.spark.lake.key_index import key_entries, write_keys
from rucola.spark.lake.reader import read_rows
from rucola.spark.lake.snapshot import ArchiveProgress
from rucola.spark.lake.writer import LakeWriter, open_lake
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.source import batch_reader as reader
from rucola.spark.source.arrays import ints
from rucola.spark.source.log_boundaries import log_end
from rucola.spark.source.options import ReadOptions, is_store, parse_read_options
from rucola.spark.source.schema import COLUMNS
from rucola.spark.source.source_offsets import BrokerQueue, OffsetRanges, Origin, is_chosen, refuse_missing, to_json
from rucola.store.reader import StoreReader

_log = logging.getLogger(__name__)

_REMEDY = "allow missing brokers"

_MICROSECONDS_A_DAY = 86_400_000_000
_MESSAGE_SIZE = 1024
"""What a message of a live broker is taken for, whose size only its broker knows."""


@dataclass(frozen=True)
class QueueSummary:
    """What a run archived of one queue; queue offsets are half-open, `size` is bytes of records in the log."""

    broker_name: str
    topic: str
    queue_id: int
    rows: int
    size: int
    begin_queue_offset: int
    end_queue_offset: int


@dataclass(frozen=True)
class Summary:
    """What a run archived of `source`, a store directory or name servers.

    Of a store it is what lies between two physical offsets; of live brokers these are None. `size` counts bytes of
    records in the log, `file_size` bytes of the `file_count` Parquet files made of them, `key_count` their entries in
    the key index and `key_size` its bytes. `missing` has a sentence for each broker that was left out.
    """

    source: str
    lake: str
    begin_physical_offset: int | None = None
    end_physical_offset: int | None = None
    queues: tuple[QueueSummary, ...] = ()
    file_count: int = 0
    file_size: int = 0
    key_count: int = 0
    key_size: int = 0
    missing: tuple[str, ...] = ()

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
        for queue in sorted(self.queues, key=lambda queue: queue.topic):
            rows[queue.topic] = rows.get(queue.topic, 0) + queue.rows
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the summary as values that JSON knows."""
        return {
            "source": self.source,
            "lake": self.lake,
            "rows": self.rows,
            "size": self.size,
            "files": self.file_count,
            "fileSize": self.file_size,
            "keys": self.key_count,
            "keySize": self.key_size,
            "commitLogOffsets": None
            if self.begin_physical_offset is None
            else [self.begin_physical_offset, self.end_physical_offset],
            "topics": self.rows_by_topic,
            "missing": list(self.missing),
            "queues": [
                {
                    "brokerName": queue.broker_name,
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


def check_store(store: str | Path) -> None:
    """Raise StoreError where this is no store directory."""
    directory = Path(store).absolute()
    if not is_store(directory):
        raise StoreError(f"{directory} is not a store directory: it holds no commitlog/")


@translate_spark_errors()
def run(
    spark: AnySession,
    store: str | Path,
    lake: str | Path,
    *,
    broker_name: str | None = None,
    include_system_topics: bool = False,
    corrupt_records: str = "fail",
    fail_on_data_loss: bool = True,
) -> Summary:
    """Archive what is new in a store directory and return what that was. Running again over the same adds nothing.

    The options are those of the data source (see `rucola.spark.source.options`); without `fail_on_data_loss` messages
    that were deleted before they were archived are warned of and passed over. Raises StoreError when `store` is no
    store directory, is damaged, or is not the one that was archived under this name before; ConfigError when the lake
    cannot be used. Nothing is archived then.
    """
    check_store(store)
    directory = Path(store).absolute()
    name = broker_name or str(directory)
    with open_lake(lake) as target, StoreReader(directory) as reader:
        known = _known(target, name, is_live=False)
        begin, end = _begin(reader, known, name, target, fail_on_data_loss), log_end(reader)
        summary = Summary(str(directory), str(target.root), begin, end)
        if begin == end:
            return summary
        options = {
            "storePath": str(directory),
            "brokerName": name,
            "startingCommitLogOffset": str(begin),
            "endingCommitLogOffset": str(end),
            "includeSystemTopics": str(include_system_topics).lower(),
            "corruptRecords": corrupt_records,
            "failOnDataLoss": str(fail_on_data_loss).lower(),
        }
        staged = _stage(spark, target, options, end - begin)
        ends = {(queue.topic, queue.queue_id): queue.end_queue_offset for queue in staged.queues}
        progress = _advanced(replace(known or ArchiveProgress(begin), physical_offset=end), ends)
        if staged.last_physical_offset is not None:
            last = reader.record(staged.last_physical_offset)
            progress = replace(progress, last_physical_offset=last.physical_offset, last_msg_id=last.msg_id)
        return _publish(target, summary, staged, {name: progress})


@translate_spark_errors()
def run_live(
    spark: AnySession,
    name_server: str,
    lake: str | Path,
    *,
    include_system_topics: bool = False,
    fail_on_data_loss: bool = True,
    fail_on_missing_broker: bool = True,
    required_brokers: Collection[str] = (),
) -> Summary:
    """Archive what is new on all brokers that these name servers know, and return what that was.

    Raises StoreError if messages were deleted before they were archived, or a queue was made anew, and RemotingError
    if no name server answers, or if a broker is missing that is required or has been archived before; without
    `fail_on_missing_broker` the summary names it. Nothing is archived after an error.
    """
    from rucola.spark.source.live_source import LiveSource  # here, since an archive of a store needs no client

    chosen = {
        "nameServer": name_server,
        "includeSystemTopics": str(include_system_topics).lower(),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "failOnMissingBroker": str(fail_on_missing_broker).lower(),
        **({"requiredBrokers": ",".join(required_brokers)} if required_brokers else {}),
    }
    parsed = parse_read_options(chosen)
    source = LiveSource(parsed)
    refuse_missing(parsed, source.bounds(), _REMEDY)  # so that no lake is made if nothing can be archived
    with open_lake(lake) as target:
        # Asked again, since another run may have archived since, and with the queues that the lake knows.
        found = source.bounds([queue for queue in _archived(target) if is_chosen(parsed, queue)])
        refuse_missing(parsed, found, _REMEDY)
        summary = Summary(name_server, str(target.root), missing=tuple(found.describe_missing()))
        names = sorted({origin.broker_name for origin in found.ranges})
        known = {name: _known(target, name, is_live=True) for name in names}
        ranges = _live_ranges(found.ranges, known, target, fail_on_data_loss)
        if not ranges:
            return summary
        messages = sum(end - begin for begin, end in ranges.values())
        staged = _stage(spark, target, _read_options(parsed, ranges), messages * _MESSAGE_SIZE)
        progress = {}
        for name, archived in known.items():
            upto = {
                (origin.topic, origin.queue_id): end
                for origin, (_, end) in ranges.items()
                if origin.broker_name == name
            }
            progress[name] = _advanced(archived or ArchiveProgress(0, is_live=True), upto)
        return _publish(target, summary, staged, progress)


def _archived(lake: LakeWriter) -> list[BrokerQueue]:
    """Return every queue of live brokers of which the lake has something."""
    return [
        BrokerQueue(topic, name, int(queue_id))
        for name, progress in lake.progress().items()
        if progress.is_live
        for topic, queues in progress.queues.items()
        for queue_id in queues
    ]


def _read_options(parsed: ReadOptions, ranges: Mapping[BrokerQueue, tuple[int, int]]) -> dict[str, str]:
    """Return the options of a read of just these ranges of live queues."""
    begins: dict[Origin, int] = {origin: begin for origin, (begin, _) in ranges.items()}
    ends: dict[Origin, int] = {origin: end for origin, (_, end) in ranges.items()}
    assigned = {topic: {name: [*ids] for name, ids in of.items()} for topic, of in to_json(begins).items()}
    return {
        "nameServer": str(parsed.name_server),
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(to_json(begins)),
        "endingOffsets": json.dumps(to_json(ends)),
        "failOnDataLoss": str(parsed.fail_on_data_loss).lower(),
    }


@dataclass(frozen=True)
class Staged:
    """What a run has put into staging."""

    queues: tuple[QueueSummary, ...] = ()
    last_physical_offset: int | None = None


def stage(lake: LakeWriter, messages: DataFrame) -> Staged:
    """Write messages and their keys to staging. What was written is read back for it: the files themselves say."""
    rows = archive(messages).write.options(**ROW_OPTIONS).partitionBy(*PARTITION_COLUMNS)
    rows.parquet(str(lake.staged_rows))
    paths = [str(path) for path in sorted(lake.staged_rows.glob("*/*/*.parquet"))]
    if not paths:
        return Staged()
    written = read_rows(messages.sparkSession, lake.staged_rows, paths)
    counted = (
        written.groupBy("brokerName", "topic", "queueId")
        .agg(
            F.count("*").alias("rows"),
            F.sum("storeSize").alias("size"),
            F.min("queueOffset").alias("first"),
            F.max("queueOffset").alias("last"),
            F.max("commitLogOffset").alias("commitLogOffset"),
            F.sum(F.coalesce(F.array_size("keys"), F.lit(0)) + 1).alias("keys"),
        )
        .collect()
    )
    write_keys(key_entries(written), sum(row["keys"] for row in counted), lake.staged_keys)
    queues = [
        QueueSummary(row.brokerName, row.topic, row.queueId, row.rows, row.size, row.first, row.last + 1)
        for row in counted
    ]
    queues.sort(key=_place_of)
    return Staged(tuple(queues), max(row.commitLogOffset for row in counted))


def stage_directly(lake: LakeWriter, batches: Iterable[pa.RecordBatch]) -> Staged:
    """Do what `stage` does in this process, with messages of all columns as record batches."""
    parquet_files.write_rows(batches, lake.staged_rows)
    paths = sorted(lake.staged_rows.glob("*/*/*.parquet"))
    if not paths:
        return Staged()
    names = ("brokerName", "topic", "queueId", "storeSize", "queueOffset", "commitLogOffset")
    written = pa.Table.from_batches([batch for path in paths for batch in parquet_files.read_staged_rows(path, names)])
    parquet_files.write_key_entries(parquet_files.staged_key_entries(paths), lake.staged_keys)
    groups = Groups(written, ["brokerName", "topic", "queueId"])
    sizes, offsets = ints(written["storeSize"]), ints(written["queueOffset"])
    numbers = groups.count(), groups.sum(sizes), groups.least(offsets), groups.most(offsets) + 1
    queues = [
        QueueSummary(row["brokerName"], row["topic"], row["queueId"], *counts)
        for row, counts in zip(groups.keys.to_pylist(), np.stack(numbers, 1).tolist(), strict=True)
    ]
    return Staged(tuple(sorted(queues, key=_place_of)), int(ints(written["commitLogOffset"]).max()))


def _stage(spark: AnySession, lake: LakeWriter, options: Mapping[str, str], size: int) -> Staged:
    """Read messages of about `size` bytes by the options of the data source, and stage them."""
    read = parse_read_options(options)
    partitions = reader.plan(read)
    if runs_in_spark(spark, lambda: size):
        return stage(lake, frame_of(resolve_session(spark), partitions, read, tuple(COLUMNS)))
    return stage_directly(lake, (batch for each in partitions for batch in reader.read(each, read, tuple(COLUMNS))))


def _place_of(queue: QueueSummary) -> tuple[str, str, int]:
    return queue.broker_name, queue.topic, queue.queue_id


def _publish(lake: LakeWriter, summary: Summary, staged: Staged, progress: Mapping[str, ArchiveProgress]) -> Summary:
    commit = lake.publish(progress)
    return replace(
        summary,
        queues=staged.queues,
        file_count=len(commit.rows),
        file_size=sum(file.size for file in commit.rows),
        key_count=sum(file.entries for file in commit.keys),
        key_size=sum(file.size for file in commit.keys),
    )


def _known(lake: LakeWriter, name: str, *, is_live: bool) -> ArchiveProgress | None:
    """Return how far a store or a live broker is archived. Raises StoreError where it was archived as the other."""
    known = lake.progress().get(name)
    if known is not None and known.is_live != is_live:
        kinds = ("live", "from its store directory") if known.is_live else ("from its store directory", "live")
        raise StoreError(
            f"{name} was archived {kinds[0]} into {lake.root} and cannot be gone on with {kinds[1]}; "
            f"archive into another lake, or give the store a name of its own"
        )
    return known


def _live_ranges(
    bounds: OffsetRanges, known: Mapping[str, ArchiveProgress | None], lake: LakeWriter, fail_on_data_loss: bool
) -> dict[BrokerQueue, tuple[int, int]]:
    """Return what there is to archive of each queue."""
    ranges = {}
    for origin, (least, most) in bounds.items():
        assert isinstance(origin, BrokerQueue)
        archived = known[origin.broker_name]
        begin = archived.queues.get(origin.topic, {}).get(str(origin.queue_id), least) if archived else least
        if begin > most:
            raise StoreError(
                f"{origin} is archived up to offset {begin} in {lake.root}, but ends at {most}: it was made anew. "
                f"Archive into another lake to go on"
            )
        if begin < least:
            _lost(f"{origin} begins at offset {least}", f"what is before {begin}", lake, fail_on_data_loss)
            begin = least
        if begin < most:
            ranges[origin] = begin, most
    return ranges


def _begin(
    reader: StoreReader, known: ArchiveProgress | None, name: str, lake: LakeWriter, fail_on_data_loss: bool
) -> int:
    """Return where to go on, having made sure that this is the store that was archived up to there."""
    begin = reader.min_physical_offset
    if known is None:
        return begin
    if known.physical_offset < begin:
        what = f"{reader.path} begins at physical offset {begin}"
        _lost(what, f"what is before {known.physical_offset}", lake, fail_on_data_loss)
        return begin
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


def _lost(what: str, archived: str, lake: LakeWriter, fail_on_data_loss: bool) -> None:
    """Raise StoreError for messages that were deleted before they were archived, or warn of them."""
    sentence = f"{what}, but only {archived} is archived in {lake.root}; the messages between are lost"
    if fail_on_data_loss:
        raise StoreError(f"{sentence}. Allow the loss, or archive into another lake, to go on")
    _log.warning("%s", sentence)


def _advanced(known: ArchiveProgress, ends: Mapping[tuple[str, int], int]) -> ArchiveProgress:
    """Return progress with the next queue offsets of these queues, by topic and queue id."""
    queues = {topic: dict(offsets) for topic, offsets in known.queues.items()}
    for (topic, queue_id), end in ends.items():
        queues.setdefault(topic, {})[str(queue_id)] = end
    return replace(known, queues=queues)
