"""Archive job: appends new messages of a store or live brokers to the lake, and their keys to the key index.

**Stores.** A run archives the complete records from the physical offset after the last archived one to the end of the
log at its start; the store may be in use. A store is identified by its name, by default its path. To detect a different
store under the same name, a run compares the last archived record with the log.

**Live brokers.** A run archives each queue of a brokerName from its next queue offset to its end at the start of the
run. To detect a topic that was deleted and created again, it compares the store time of one archived message of each
topic with the broker's. deleteOnlyArchived cannot rely on it, because queue offsets say nothing about the broker's log.

Messages and progress are published in one commit (`rucola.spark.archive`); to continue after a crash, call the job
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rucola.errors import StoreError
from rucola.files import local_path
from rucola.spark.archive import Archive, ArchivedQueue, ArchiveProgress, ArchiveWriter, StagedMessages
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.jobs.progress import ProgressCallback
from rucola.spark.partition_tasks import partition_tasks, read_partitions
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.source import batch_reader
from rucola.spark.source.array_conversions import ints
from rucola.spark.source.lake_source import is_archived_store
from rucola.spark.source.log_boundaries import log_end
from rucola.spark.source.options import ReadOptions, is_store, parse_read_options
from rucola.spark.source.schema import COLUMNS
from rucola.spark.source.source_offsets import BrokerQueue, OffsetRanges, is_chosen, refuse_missing
from rucola.store.directory_reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from rucola.spark.source.live_source import LiveSource

_log = logging.getLogger(__name__)

_REMEDY = "allow missing brokers"

_MESSAGE_SIZE = 1024
"""Assumed bytes of a live broker's message, whose size is unknown before it is pulled."""


@dataclass(frozen=True)
class ArchiveResult:
    """Messages and files that a run added to the lake.

    Row files and key index files have a count and a size in bytes; key_count counts entries. `source` is the store
    directory or the name servers; live brokers have no physical offsets. `missing` has a sentence for each live broker
    that was left out.
    """

    source: str
    lake: str
    begin_physical_offset: int | None = None
    end_physical_offset: int | None = None
    queues: tuple[ArchivedQueue, ...] = ()
    file_count: int = 0
    file_size: int = 0
    key_count: int = 0
    key_size: int = 0
    missing: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Archived messages."""
        return sum(queue.rows for queue in self.queues)

    @property
    def size(self) -> int:
        """Bytes of archived records."""
        return sum(queue.size for queue in self.queues)

    @property
    def rows_by_topic(self) -> dict[str, int]:
        """Archived messages by topic, in alphabetical order."""
        rows: dict[str, int] = {}
        for queue in sorted(self.queues, key=lambda queue: queue.topic):
            rows[queue.topic] = rows.get(queue.topic, 0) + queue.rows
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dict."""
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


def check_store(store: str | Path) -> None:
    """Raise StoreError unless this is a store directory."""
    directory = local_path(store).absolute()
    if not is_store(directory):
        raise StoreError(f"{directory} is not a store directory: it holds no commitlog/")


@translate_spark_errors()
def run(
    spark: AnySession,
    store: str | Path,
    lake: str | Path | Archive,
    *,
    broker_name: str | None = None,
    include_system_topics: bool = False,
    corrupt_records: str = "fail",
    fail_on_data_loss: bool = True,
    progress: ProgressCallback | None = None,
) -> ArchiveResult:
    """Archive the new messages of a store directory, or on an error nothing.

    For the options see `rucola.spark.source.options`. Without Spark, `progress` gets the bytes of the log that are
    archived, and all of this run; before that, the files of a lake of an earlier version. Raises StoreError if `store`
    is no store, is damaged, or is not the one archived under this name before; ConfigError if the lake cannot be used.
    """
    check_store(store)
    directory = local_path(store).absolute()
    name = broker_name or str(directory)
    with Archive(lake).open(progress=progress) as target, StoreReader(directory) as reader:
        known = _archived_progress(target, name, is_live=False)
        # Read the end before any message: later records belong to the next run.
        begin, end = _resume_offset(reader, known, name, target, fail_on_data_loss), log_end(reader)
        result = ArchiveResult(str(directory), str(target.path), begin, end)
        if begin == end:
            return result
        options = {
            "storePath": str(directory),
            "brokerName": name,
            "startingCommitLogOffset": str(begin),
            "endingCommitLogOffset": str(end),
            "includeSystemTopics": str(include_system_topics).lower(),
            "corruptRecords": corrupt_records,
            "failOnDataLoss": str(fail_on_data_loss).lower(),
        }
        read = parse_read_options(options)
        report = _reporter(progress, end - begin, lambda batch: int(ints(batch["storeSize"]).sum()))
        added = _append(spark, target, read, batch_reader.plan(read), end - begin, report)
        # The range may consist of system topics: move the progress to `end` even if no message was appended.
        ends = {(queue.topic, queue.queue_id): queue.end_queue_offset for queue in added.queues}
        reached = _with_recreated(known or ArchiveProgress(begin), added.queues)
        reached = _advance(replace(reached, physical_offset=end), ends)
        if added.last_physical_offset is not None:
            # The id of the last archived record lets the next run recognise the store (see _resume_offset).
            last = reader.record(added.last_physical_offset)
            reached = replace(reached, last_physical_offset=last.physical_offset, last_msg_id=last.msg_id)
        return replace(result, queues=added.queues, **target.commit({name: reached})._asdict())


@translate_spark_errors()
def run_live(
    spark: AnySession,
    name_server: str,
    lake: str | Path | Archive,
    *,
    include_system_topics: bool = False,
    fail_on_data_loss: bool = True,
    fail_on_missing_broker: bool = True,
    required_brokers: Collection[str] = (),
    progress: ProgressCallback | None = None,
) -> ArchiveResult:
    """Archive the new messages of all brokers registered at these name servers, or on an error nothing.

    Without Spark, `progress` gets how many messages are archived, and all of this run. Raises StoreError if
    unarchived messages were deleted or a queue was recreated; RemotingError without name servers or for a missing
    broker (required or archived before), which without `fail_on_missing_broker` is named in the result.
    """
    from rucola.spark.source.live_source import LiveSource  # imported here: archiving a store needs no client

    chosen = {
        "nameServer": name_server,
        "includeSystemTopics": str(include_system_topics).lower(),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "failOnMissingBroker": str(fail_on_missing_broker).lower(),
        **({"requiredBrokers": ",".join(required_brokers)} if required_brokers else {}),
    }
    parsed = parse_read_options(chosen)
    with LiveSource(parsed) as source:
        refuse_missing(parsed, source.bounds(), _REMEDY)  # before opening the archive, which would create it
        return _archive_live(spark, source, parsed, name_server, lake, progress)


def _archive_live(
    spark: AnySession,
    source: LiveSource,
    parsed: ReadOptions,
    name_server: str,
    lake: str | Path | Archive,
    progress: ProgressCallback | None,
) -> ArchiveResult:
    with Archive(lake).open(progress=progress) as target:
        # Ask again under the lock: another run may have archived since, and the queues that the lake has have to be
        # looked up even if their brokers are no longer registered.
        archived_queues = _archived_queues(target).items()
        found = source.bounds({queue: offset for queue, offset in archived_queues if is_chosen(parsed, queue)})
        refuse_missing(parsed, found, _REMEDY)
        result = ArchiveResult(name_server, str(target.path), missing=tuple(found.describe_missing()))
        names = sorted({origin.broker_name for origin in found.ranges})
        known = {name: _archived_progress(target, name, is_live=True) for name in names}
        ranges = _live_ranges(found.ranges, known, target, parsed.fail_on_data_loss)
        if not ranges:
            return result
        _refuse_recreated(source, found.ranges, ranges, known, target)
        # One message of each topic: its last in the queue that has the most new ones.
        chosen_queues = {
            (queue.broker_name, queue.topic): queue for queue in sorted(ranges, key=lambda q: _size(ranges[q]))
        }
        last = source.store_times({queue: ranges[queue][1] - 1 for queue in chosen_queues.values()})
        # From here on the client is not used: its connections may be closed before a long run ends.
        partitions, messages = source.plan(dict(ranges.items())), sum(map(_size, ranges.values()))
        report = _reporter(progress, messages, len)
        added = _append(spark, target, parsed, partitions, messages * _MESSAGE_SIZE, report)
        reached = {}
        for name, archived in known.items():
            upto = {
                (origin.topic, origin.queue_id): end
                for origin, (_, end) in ranges.items()
                if origin.broker_name == name
            }
            advanced = _advance(archived or ArchiveProgress(0, is_live=True), upto)
            seen = {
                queue.topic: (queue.queue_id, ranges[queue][1] - 1, time_ms)
                for queue, time_ms in last.items()
                if queue.broker_name == name and time_ms is not None
            }
            reached[name] = replace(advanced, messages={**advanced.messages, **seen})
        return replace(result, queues=added.queues, **target.commit(reached)._asdict())


def _archived_queues(lake: ArchiveWriter) -> dict[BrokerQueue, int]:
    return {
        BrokerQueue(topic, name, int(queue_id)): offset
        for name, progress in lake.progress().items()
        if progress.is_live
        for topic, queues in progress.queues.items()
        for queue_id, offset in queues.items()
    }


def _append(
    spark: AnySession,
    lake: ArchiveWriter,
    read: ReadOptions,
    partitions: Sequence[InputPartition],
    size: int,
    report: Callable[[pa.RecordBatch], None],
) -> StagedMessages:
    """Append the messages of partitions, with Spark if `size`, in bytes, is large; otherwise `report` gets them."""
    names = tuple(COLUMNS)
    if runs_in_spark(spark, lambda: size):
        tasks = partition_tasks(resolve_session(spark), partitions)
        by_name = partial(batch_reader.read, options=read, names=names)
        return lake.append_in_spark(tasks, partial(read_partitions, by_name))

    def batches() -> Iterator[pa.RecordBatch]:
        for each in partitions:
            for batch in batch_reader.read(each, read, names):
                yield batch
                report(batch)

    return lake.append(batches())


def _reporter(
    progress: ProgressCallback | None, total: int, size_of: Callable[[pa.RecordBatch], int]
) -> Callable[[pa.RecordBatch], None]:
    """Return what counts batches that are archived, and tells `progress`."""
    done = 0

    def report(batch: pa.RecordBatch) -> None:
        nonlocal done
        if progress is not None:
            done += size_of(batch)
            progress(done, total)

    return report


def _archived_progress(lake: ArchiveWriter, name: str, *, is_live: bool) -> ArchiveProgress | None:
    """Return the archive progress of a store or live broker; StoreError if it was archived in the other way."""
    known = lake.progress().get(name)
    if known is not None and known.is_live != is_live:
        kinds = ("live", "from its store directory") if known.is_live else ("from its store directory", "live")
        raise StoreError(
            f"{name} was archived {kinds[0]} into {lake.path} and cannot be continued {kinds[1]}; "
            f"archive into another lake, or give the store a name of its own"
        )
    return known


def _live_ranges(
    bounds: OffsetRanges, known: Mapping[str, ArchiveProgress | None], lake: ArchiveWriter, fail_on_data_loss: bool
) -> dict[BrokerQueue, tuple[int, int]]:
    # A queue on a broker spans [least, most). With the archived offset `begin`, there are four cases:
    #   begin > most            the queue has fewer messages than the lake: it was deleted and created again
    #   begin < least           messages were deleted before they were archived
    #   begin == most           nothing new
    #   least <= begin < most   archive [begin, most)
    ranges = {}
    for origin, (least, most) in bounds.items():
        assert isinstance(origin, BrokerQueue)
        archived = known[origin.broker_name]
        begin = archived.queues.get(origin.topic, {}).get(str(origin.queue_id), least) if archived else least
        if begin > most:
            raise StoreError(
                f"{origin} is archived up to offset {begin} in {lake.path}, but ends at {most}: it was recreated. "
                f"Archive into another lake to continue"
            )
        if begin < least:
            _report_loss(f"{origin} begins at offset {least}", f"its part before {begin}", lake, fail_on_data_loss)
            begin = least
        if begin < most:
            ranges[origin] = begin, most
    return ranges


def _refuse_recreated(
    source: LiveSource,
    bounds: OffsetRanges,
    ranges: Mapping[BrokerQueue, tuple[int, int]],
    known: Mapping[str, ArchiveProgress | None],
    lake: ArchiveWriter,
) -> None:
    """Raise StoreError if a topic does not have the message that it had, though its queues are as long."""
    places: dict[BrokerQueue, tuple[int, int]] = {}
    for name, topic in {(queue.broker_name, queue.topic) for queue in ranges}:
        archived = known[name]
        if archived is not None and topic in archived.messages:
            queue_id, *place = archived.messages[topic]
            if (queue := BrokerQueue(topic, name, queue_id)) in bounds:
                places[queue] = place[0], place[1]
    for queue, found_ms in source.store_times({queue: offset for queue, (offset, _) in places.items()}).items():
        offset, time_ms = places[queue]
        if found_ms not in (None, time_ms):
            raise StoreError(
                f"{queue} is archived up to offset {offset + 1} in {lake.path}, and has another message before it: it "
                f"was recreated. Archive into another lake to continue"
            )


def _size(offsets: tuple[int, int]) -> int:
    return offsets[1] - offsets[0]


def _resume_offset(
    reader: StoreReader, known: ArchiveProgress | None, name: str, lake: ArchiveWriter, fail_on_data_loss: bool
) -> int:
    """Return the physical offset to continue at; StoreError if this is not the store that was archived before."""
    begin = reader.min_physical_offset
    if known is None:
        return begin
    if known.physical_offset < begin:
        what = f"{reader.path} begins at physical offset {begin}"
        _report_loss(what, f"its part before {known.physical_offset}", lake, fail_on_data_loss)
        return begin
    other = (
        f"{lake.path} holds messages of another store under the name {name}; archive into another lake, "
        f"or give this store a name of its own"
    )
    if not is_archived_store(reader, known):
        raise StoreError(other)
    return known.physical_offset


def _report_loss(what: str, archived: str, lake: ArchiveWriter, fail_on_data_loss: bool) -> None:
    """Raise StoreError, or log a warning, for messages that were deleted before they were archived."""
    sentence = f"{what}, but only {archived} is archived in {lake.path}; the messages between are lost"
    if fail_on_data_loss:
        raise StoreError(f"{sentence}. Allow the loss, or archive into another lake, to continue")
    _log.warning("%s", sentence)


def _with_recreated(known: ArchiveProgress, added: Iterable[ArchivedQueue]) -> ArchiveProgress:
    """Return the progress with the places where queues begin that were deleted and created again."""
    recreated = {topic: dict(queues) for topic, queues in known.recreated.items()}
    for queue in added:
        end = known.queues.get(queue.topic, {}).get(str(queue.queue_id), 0)
        begins = (*((queue.first_physical_offset,) if queue.begin_queue_offset < end else ()), *queue.recreated)
        if begins:
            of_topic = recreated.setdefault(queue.topic, {})
            of_topic[str(queue.queue_id)] = (*of_topic.get(str(queue.queue_id), ()), *begins)
    return replace(known, recreated=recreated)


def _advance(known: ArchiveProgress, ends: Mapping[tuple[str, int], int]) -> ArchiveProgress:
    queues = {topic: dict(offsets) for topic, offsets in known.queues.items()}
    for (topic, queue_id), end in ends.items():
        queues.setdefault(topic, {})[str(queue_id)] = end
    return replace(known, queues=queues)
