"""A lake as a source of batches, alone or together with the log that is archived in it.

**Union.** One commit of the lake decides where the lake ends and the log begins: its files are read, and the log from
the progress of that commit on. The ends of the log are asked for after that, so no message is between both, whatever is
archived or compacted meanwhile. Progress is kept by the names of brokers, which must be the same in lake and log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from rucola.errors import ConfigError, StoreError
from rucola.spark.archive import ALL_DAYS, Archive, ArchivePart, ArchiveProgress
from rucola.spark.source.array_conversions import Array, bools, ints, mask, scalar
from rucola.spark.source.log_boundaries import log_end
from rucola.spark.source.options import QueueFilter, ReadOptions
from rucola.spark.source.row_conditions import RowConditions
from rucola.spark.source.schema import LAST_TIME_MS
from rucola.spark.source.source_offsets import BrokerLog, BrokerQueue, Origin, SourceBounds, is_chosen, is_chosen_topic
from rucola.store.directory_reader import StoreReader


@dataclass
class LakePartition(InputPartition):
    """Files of a lake, or parts of them, that one task reads. Pickled to a worker."""

    part: ArchivePart


class Lake:
    """The messages that the options choose in the current commit of their lake."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.lake is not None
        self._options = options
        self._archive = Archive(options.lake, options.catalog)
        self._scan = self._archive.scan(self._is_chosen_topic, _days(options), keys=options.keys)
        self._progress = self._scan.progress
        self._created_again: set[BrokerQueue] = set()
        """Queues of stores that were deleted and created again since they were archived."""

    def _is_chosen_topic(self, topic: str) -> bool:
        options = self._options
        if options.queue_filter.topics is not None and topic not in options.queue_filter.topics:
            return False
        named = options.named_topics
        return topic in named if named else is_chosen_topic(options, topic)

    def plan(self) -> list[LakePartition]:
        """Return the partitions."""
        return [LakePartition(part) for part in self._scan.parts(self._options.min_partitions)]

    def check_topics(self) -> None:
        """Raise ConfigError for a topic that the options name and that was never archived."""
        for topic in sorted(self._options.named_topics - self._topics()):
            topics = ", ".join(sorted(self._topics())) or "no topic at all"
            raise ConfigError(f"topic {topic!r} is not in {self._archive.path}, which holds {topics}", subject=topic)

    def _topics(self) -> frozenset[str]:
        return self._scan.topics.union(*(each.queues for each in self._progress.values()))

    def options_of_log(self) -> ReadOptions:
        """Return the options with which the log is read. Raises ConfigError if lake and log cannot be compared."""
        options = replace(self._options, archived_topics=self._topics())
        if options.name_server is not None:
            self._check_names_of_brokers()
        for name, path in options.stores.items():
            with StoreReader(path) as reader:
                self._check_store(name, reader)
        if any(name in self._progress and self._progress[name].is_live for name in options.stores):
            # Nothing is known of the physical offsets of what was archived live.
            options = options if options.by_queue else replace(options, pattern=re.compile("(?s).*"))
        if not options.by_queue and options.include_system_topics:
            raise ConfigError(
                "a lake may lack the system topics of a log that is read as a whole; select topics by subscribe or "
                "subscribePattern",
                subject="includeSystemTopics",
            )
        return options

    def _check_names_of_brokers(self) -> None:
        for name, progress in self._progress.items():
            if not progress.is_live and Path(name).is_absolute():
                raise ConfigError(
                    f"{self._archive.path} has the messages of the store {name} under its path, not under the name of "
                    f"its broker, so they cannot be told from those of live brokers; archive with --brokerName, or "
                    f"give the store by storePath instead of nameServer",
                    subject=name,
                )

    def _check_store(self, name: str, reader: StoreReader) -> None:
        known = self._progress.get(name)
        if known is None:
            others = [each for each, progress in self._progress.items() if has_last_record(reader, progress)]
            if others:
                raise ConfigError(
                    f"{self._archive.path} has the messages of {reader.path} under the name {others[0]}; set "
                    f"brokerName to that",
                    subject="brokerName",
                )
        elif not is_archived_store(reader, known):
            raise StoreError(
                f"{self._archive.path} holds messages of another store under the name {name}; give this store, "
                f"{reader.path}, a name of its own by brokerName",
                subject=name,
            )
        elif not known.is_live:
            self._created_again.update(_created_again(name, reader, known))

    def recreated(self) -> dict[BrokerQueue, tuple[int, ...]]:
        """Return, by queue, the physical offsets from which on it was another one, since it was created again."""
        found = {
            BrokerQueue(topic, name, int(queue_id)): begins
            for name, progress in self._progress.items()
            for topic, queues in progress.recreated.items()
            for queue_id, begins in queues.items()
        }
        for queue in self._created_again:
            found[queue] = (*found.get(queue, ()), self._progress[queue.broker_name].physical_offset)
        return found

    def archived_offsets(self, options: ReadOptions) -> dict[Origin, int]:
        """Return the first offset of each log, or chosen queue, that is not in the lake."""
        if not options.by_queue:
            return {
                BrokerLog(name): self._progress[name].physical_offset
                for name in options.stores
                if name in self._progress
            }
        names = self._progress.keys() & options.stores.keys() if options.stores else self._progress.keys()
        offsets = {
            BrokerQueue(topic, name, int(queue_id)): offset
            for name in names
            for topic, queues in self._progress[name].queues.items()
            for queue_id, offset in queues.items()
        }
        offsets |= dict.fromkeys(self._created_again, 0)
        return {queue: offset for queue, offset in offsets.items() if is_chosen(options, queue)}


def begins(archived: dict[Origin, int], bounds: SourceBounds) -> dict[Origin, int]:
    """Return the offset at which each origin of a log is read after a lake; queues of deleted topics are left out."""
    found = {origin: least for origin, (least, _) in bounds.ranges.items()}
    return found | {
        origin: offset for origin, offset in archived.items() if origin in bounds.ranges or origin in bounds.unavailable
    }


def _created_again(name: str, reader: StoreReader, known: ArchiveProgress) -> Iterator[BrokerQueue]:
    """Yield the queues whose last message at an archived queue offset was stored after what was archived."""
    bounds = reader.queues()
    for topic, queues in known.queues.items():
        for queue_id, end in queues.items():
            least, most = bounds.get((topic, int(queue_id)), (0, 0))
            last = min(most, end) - 1
            if last >= least:
                units = reader.units(topic, int(queue_id), last, last + 1)
                if int(units["physical_offset"][0]) >= known.physical_offset:
                    yield BrokerQueue(topic, name, int(queue_id))


def is_archived_store(reader: StoreReader, known: ArchiveProgress) -> bool:
    """Return whether a store is the one that was archived, as far as its log still tells.

    Its log reaches at least to the archived offset, and the last archived record, unless retention has deleted it, is
    still at its offset with the same id.
    """
    if known.physical_offset > log_end(reader):
        return False
    last = known.last_physical_offset
    return last is None or last < reader.min_physical_offset or has_last_record(reader, known)


def has_last_record(reader: StoreReader, known: ArchiveProgress) -> bool:
    """Return whether a store has the last record that was archived at its offset."""
    last = known.last_physical_offset
    if last is None or not reader.min_physical_offset <= last < log_end(reader):
        return False
    try:
        return reader.record(last).msg_id == known.last_msg_id
    except StoreError:
        return False


def read(partition: LakePartition, options: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the chosen messages of one partition as record batches of the columns `names`."""
    times = options.starting_timestamp, options.ending_timestamp
    conditions = RowConditions(options.tags, options.keys, *times, options.expression)
    selects_queues = options.assigned is not None or replace(options.queue_filter, topics=None) != QueueFilter()
    queue_columns = ("topic", "brokerName", "queueId", "queueOffset") if selects_queues else ()
    # A batch without any column has no rows, so that there is at least one.
    needed = dict.fromkeys((*names, *conditions.columns, *queue_columns)) or ("queueId",)
    for batch in partition.part.batches(needed):
        chosen = batch.filter(mask(_queue_mask(batch, options))) if selects_queues else batch
        found = conditions.filter(chosen, names)
        if found.num_rows:
            yield found


def _queue_mask(rows: pa.RecordBatch, options: ReadOptions) -> Array:
    """Return a mask of the rows, all of one topic, of the chosen queues and queue offsets."""
    queues, ids, offsets = options.queue_filter, ints(rows["queueId"]), ints(rows["queueOffset"])
    found = (offsets >= queues.begin_queue_offset) & (offsets < queues.end_queue_offset)
    if queues.queue_ids is not None:
        found &= np.isin(ids, list(queues.queue_ids))
    if options.assigned is not None and len(found):
        topic = rows["topic"][0].as_py()
        assigned = np.zeros(len(found), np.bool_)
        for name, broker, queue_id in options.assigned:
            if name == topic:
                of_broker = True if broker is None else bools(pc.equal(rows["brokerName"], scalar(broker)))
                assigned |= (ids == queue_id) & of_broker
        found &= assigned
    return found


def _days(options: ReadOptions) -> tuple[str, str]:
    begin, end = options.starting_timestamp, options.ending_timestamp
    first, last = ALL_DAYS
    return first if begin is None else _day(begin), last if end is None else _day(end)


def _day(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(min(max(timestamp_ms, 0), LAST_TIME_MS) / 1000, UTC).date().isoformat()
