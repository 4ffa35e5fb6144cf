"""Messages of a store directory or a lake, for a job: a DataFrame, or record batches made in this process.

Both come from the same code. Of a store the driver plans partitions, which `batch_reader.read` decodes, in Spark's
tasks or one after the other here. Of a lake the snapshot names the files, which Spark or Arrow reads.

Jobs do not read a store through the data source: that would start three more Python processes, to look the source up,
to make it and to plan, each of which imports PySpark from its zip file.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from rucola.errors import StoreError
from rucola.message.record import MIN_RECORD_SIZE
from rucola.spark.jobs.selection import Selection
from rucola.spark.lake import parquet_files, read_lake
from rucola.spark.lake.snapshot import RowFile, check_files, is_lake, read_snapshot
from rucola.spark.session import SMALL_SIZE
from rucola.spark.source import batch_reader
from rucola.spark.source.arrays import mask
from rucola.spark.source.log_splits import LogSplit
from rucola.spark.source.options import QueueFilter, ReadOptions, is_store, parse_read_options
from rucola.spark.source.schema import COLUMNS, ddl
from rucola.spark.source.store_source import StoreSource
from rucola.store.reader import StoreReader

_PARTITION: Final = "number int, partition binary"


def check_source(source: str | Path, selection: Selection) -> None:
    """Raise StoreError unless this is a sound store directory or lake, ConfigError for topics that a store lacks."""
    directory = Path(source).absolute()
    if is_lake(directory):
        check_files(directory, read_snapshot(directory).rows)
        return
    if not is_store(directory):
        raise StoreError(f"{directory} is neither a store directory nor a lake: it holds no commitlog/ and no _rucola/")
    if selection.topics is not None:
        StoreSource(parse_read_options({"storePath": str(directory), **selection.read_options()})).bounds()


@dataclass(frozen=True)
class Messages:
    """What a selection takes of one store directory or lake.

    `options` and `queue_filter` are further ones of the data source; they apply to a store. The constructor raises what
    `check_source` does. A store's end is frozen when it is first asked for.
    """

    source: Path
    selection: Selection = field(default_factory=Selection)
    options: Mapping[str, str] = field(default_factory=dict)
    queue_filter: QueueFilter = field(default_factory=QueueFilter)

    def __post_init__(self) -> None:
        check_source(self.source, self.selection)

    @property
    def is_lake(self) -> bool:
        """Whether the messages are a lake's; otherwise they are a store's."""
        return is_lake(self.source)

    @cached_property
    def _files(self) -> list[RowFile] | None:
        """The files that may hold the messages; None for a store."""
        return self.selection.files_of(read_snapshot(self.source).rows) if self.is_lake else None

    @cached_property
    def _store(self) -> tuple[ReadOptions, Sequence[InputPartition]]:
        """The options of the read of a store, and its partitions."""
        options = parse_read_options({"storePath": str(self.source), **self.selection.read_options(), **self.options})
        options = replace(options, queue_filter=self.queue_filter)
        return options, batch_reader.plan(options)

    def of_queues(self, topics: Iterable[str], queue_ids: Iterable[int]) -> Messages:
        """Return the messages with which a store holds these topics and queues; those of a lake are not narrowed."""
        return replace(self, queue_filter=self.queue_filter.intersect(topics=topics, queue_ids=queue_ids))

    def size(self) -> int:
        """Return about how many bytes of records there are to read."""
        if self._files is not None:
            return parquet_files.estimate_size(self.source, self._files)
        _, partitions = self._store
        return sum(_size_of(partition) for partition in partitions)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the messages in this process; those of a store in the order of its log."""
        if self._files is not None:
            rows = parquet_files.read_rows(self.source, self._files, dict.fromkeys((*names, *self.selection.columns)))
            yield from (_chosen(batch, self.selection, names) for batch in rows)
            return
        options, partitions = self._store
        # The reader has applied all conditions but an expression beside tags.
        rest = Selection(expression=self.selection.expression) if self.selection.tags is not None else Selection()
        columns = tuple(dict.fromkeys((*names, *rest.columns)))
        for partition in partitions:
            yield from (_chosen(batch, rest, names) for batch in batch_reader.read(partition, options, columns))

    def frame(self, session: SparkSession, names: Sequence[str] = tuple(COLUMNS)) -> DataFrame:
        """Return the messages as a DataFrame with these columns, or those that the selection looks at besides."""
        if self._files is not None:
            return self.selection.of(read_lake(session, self.source, self._files))
        options, partitions = self._store
        columns = tuple(dict.fromkeys((*names, "topic", *self.selection.columns)))
        return self.selection.of(frame_of(session, partitions, options, columns))


def _chosen(batch: pa.RecordBatch, selection: Selection, names: Sequence[str]) -> pa.RecordBatch:
    found = selection.matches(batch)
    return (batch if found.all() else batch.filter(mask(found))).select(list(names))


def frame_of(
    session: SparkSession, partitions: Sequence[InputPartition], options: ReadOptions, names: Sequence[str]
) -> DataFrame:
    """Return the messages of some partitions as a DataFrame, each partition in a task of its own."""
    rows = [(number, pickle.dumps(partition)) for number, partition in enumerate(partitions)]
    tasks = session.createDataFrame(rows, _PARTITION).repartitionById(max(len(rows), 1), "number")
    return tasks.mapInArrow(partial(_read, options, tuple(names)), ddl(names))


def _read(options: ReadOptions, names: tuple[str, ...], tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in tasks:
        for pickled in batch["partition"].to_pylist():
            yield from batch_reader.read(pickle.loads(pickled), options, names)


def _size_of(partition: InputPartition) -> int:
    """Return the bytes of the records that a partition of a store reads."""
    assert isinstance(partition, LogSplit)
    if partition.queues is None:
        return partition.end - partition.begin
    least = MIN_RECORD_SIZE * sum(each.end - each.begin for each in partition.queues)
    if least >= SMALL_SIZE:
        return least
    with StoreReader(partition.store) as store:
        return sum(int(store.units(*each)["size"].clip(0).sum()) for each in partition.queues)
