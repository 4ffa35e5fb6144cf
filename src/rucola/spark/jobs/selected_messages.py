"""Selected messages of a store directory or lake, as a DataFrame or in-process record batches.

Jobs do not read a store through the registered data source, for which Spark would start three more Python processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from rucola.errors import StoreError
from rucola.files import local_path
from rucola.message.record import MIN_RECORD_SIZE
from rucola.spark.archive import Archive, ArchiveScan
from rucola.spark.jobs.selection import Selection
from rucola.spark.partition_tasks import partition_tasks, read_partitions
from rucola.spark.session import SMALL_SIZE
from rucola.spark.source import batch_reader
from rucola.spark.source.log_splits import LogSplit
from rucola.spark.source.options import QueueFilter, ReadOptions, is_store, parse_read_options
from rucola.spark.source.row_conditions import RowConditions
from rucola.spark.source.schema import COLUMNS, ddl
from rucola.spark.source.store_source import StoreSource
from rucola.store.directory_reader import StoreReader

Batches: TypeAlias = Iterator[pa.RecordBatch]
T = TypeVar("T")
ReadPartition: TypeAlias = Callable[[InputPartition], Batches]


def source_of(source: str | Path | Archive) -> Path | Archive:
    """Return a source with an absolute path."""
    return source if isinstance(source, Archive) else local_path(source).absolute()


def check_source(source: str | Path | Archive, selection: Selection) -> None:
    """Raise StoreError unless this is an intact store or lake, ConfigError if a store lacks a selected topic."""
    archive = Archive(source)
    if archive.exists:
        archive.verify()
        return
    directory = Path(archive.path)
    if not is_store(directory):
        raise StoreError(
            f"{directory} is neither a store directory nor a lake: it holds no commitlog/ and no _rucola/",
            subject=directory,
        )
    if selection.topics is not None:
        StoreSource(parse_read_options({"storePath": str(directory), **selection.read_options()})).bounds()


@dataclass(frozen=True)
class SelectedMessages:
    """The selected messages of one store directory or lake; raises the errors of `check_source`.

    `options` and `queue_filter` apply to stores only. The first read fixes the end of a store, so that all reads agree;
    `dataclasses.replace` returns an instance that looks at the source again.
    """

    source: Path | Archive
    selection: Selection = field(default_factory=Selection)
    options: Mapping[str, str] = field(default_factory=dict)
    queue_filter: QueueFilter = field(default_factory=QueueFilter)

    def __post_init__(self) -> None:
        check_source(self.source, self.selection)

    @property
    def is_lake(self) -> bool:
        """Whether the source is a lake."""
        return Archive(self.source).exists

    @cached_property
    def _scan(self) -> ArchiveScan | None:
        return Archive(self.source).scan(self.selection.topics, self.selection.days) if self.is_lake else None

    @cached_property
    def _store(self) -> tuple[ReadOptions, Sequence[InputPartition]]:
        options = parse_read_options({"storePath": str(self.source), **self.selection.read_options(), **self.options})
        options = replace(options, queue_filter=self.queue_filter)
        return options, batch_reader.plan(options)

    def last_split(self) -> LogSplit | None:
        """Return the last split of a store; None for a lake, and if there is nothing to read."""
        partitions = () if self.is_lake else self._store[1]
        last = partitions[-1] if partitions else None
        return last if isinstance(last, LogSplit) else None

    def narrow_to_queues(self, topics: Iterable[str], queue_ids: Iterable[int]) -> SelectedMessages:
        """Restrict a store to these topics and queue ids; a lake is returned unrestricted."""
        return replace(self, queue_filter=self.queue_filter.intersect(topics=topics, queue_ids=queue_ids))

    def size(self) -> int:
        """Estimate the bytes of records to read."""
        if self._scan is not None:
            return self._scan.size
        _, partitions = self._store
        return sum(_size_of(partition) for partition in partitions)

    def batches(self, names: Sequence[str]) -> Batches:
        """Read the columns `names` in this process, without Spark. Messages of a store come in log order."""
        if self._scan is not None:
            conditions = self.selection.rows
            rows = self._scan.batches(dict.fromkeys((*names, *conditions.columns)))
            return (conditions.filter(batch, names) for batch in rows)
        return chain.from_iterable(map(self._read_partition(names), self._store[1]))

    def frame(self, session: SparkSession, names: Sequence[str] = tuple(COLUMNS)) -> DataFrame:
        """Return a DataFrame with the columns `names`."""
        if self._scan is not None:
            return self.selection.filter(self._scan.rows(session)).select(*names)
        return map_partitions(session, self._store[1], self._read_partition(names), ddl(names))

    def map(
        self, session: SparkSession, names: Sequence[str], function: Callable[[Batches], Batches], columns: str
    ) -> DataFrame:
        """Return what a function makes of the messages of each task; `columns` is its schema."""
        if self._scan is not None:
            return self.frame(session, names).mapInArrow(function, columns)
        read = partial(_mapped, function, self._read_partition(names))
        return map_partitions(session, self._store[1], read, columns)

    def _read_partition(self, names: Sequence[str]) -> ReadPartition:
        # The reader applies every condition except an SQL92 expression that is combined with tags: the data source
        # takes one subExpression, and tags have precedence (see Selection.read_options).
        rest = RowConditions(expression=self.selection.expression if self.selection.tags is not None else None)
        return partial(_read_partition, self._store[0], rest, tuple(names))


def _read_partition(
    options: ReadOptions, rest: RowConditions, names: Sequence[str], partition: InputPartition
) -> Batches:
    columns = tuple(dict.fromkeys((*names, *rest.columns)))
    return (rest.filter(batch, names) for batch in batch_reader.read(partition, options, columns))


def _mapped(function: Callable[[Batches], Batches], read: ReadPartition, partition: InputPartition) -> Batches:
    return function(read(partition))


def map_partitions(
    session: SparkSession, partitions: Sequence[T], read: Callable[[T], Batches], columns: str
) -> DataFrame:
    """Return what `read` makes of these partitions as a DataFrame with one task per partition."""
    return partition_tasks(session, partitions).mapInArrow(partial(read_partitions, read), columns)


def _size_of(partition: InputPartition) -> int:
    """Return the bytes of records in a partition of a store, or a lower bound if that is large already."""
    assert isinstance(partition, LogSplit)
    if partition.queues is None:
        return partition.end - partition.begin
    # Reading the units of every queue takes longer than planning; it is only done when the answer is in doubt.
    least = MIN_RECORD_SIZE * sum(each.end - each.begin for each in partition.queues)
    if least >= SMALL_SIZE:
        return least
    with StoreReader(partition.store) as store:
        return sum(int(store.units(*each)["size"].clip(0).sum()) for each in partition.queues)
