"""Batch reads: options become partitions on the driver, then record batches on the workers."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from rucola.spark.error_translation import without_tracebacks
from rucola.spark.source import log_reader
from rucola.spark.source.log_splits import LogSplit
from rucola.spark.source.options import ReadOptions
from rucola.spark.source.pushdown import apply_filters, filter_ranges
from rucola.spark.source.source_offsets import (
    NO_OFFSETS,
    MessageSource,
    Offsets,
    SourceBounds,
    available_ranges,
    batch_ranges,
    refuse_missing,
    resolve_offsets,
)
from rucola.spark.source.store_source import StoreSource

_log = logging.getLogger(__name__)


def source_of(options: ReadOptions) -> MessageSource:
    """Return the stores or live brokers that the options read."""
    if options.name_server is None:
        return StoreSource(options)
    from rucola.spark.source.live_source import (
        LiveSource,  # imported here, because importing a client slows the start of every Python process of Spark
    )

    return LiveSource(options)


def plan(options: ReadOptions) -> Sequence[InputPartition]:
    """Return the partitions of a batch up to the current ends; RemotingError if brokers are missing, unless allowed."""
    if options.lake is not None:
        return _plan_with_lake(options)
    source = source_of(options)
    bounds = _bounds(source, options)
    ranges = batch_ranges(resolve_offsets(options, source, bounds), bounds)
    if options.tags is not None and not options.tags:
        return []
    return source.plan(filter_ranges(options.queue_filter, ranges))


def _plan_with_lake(options: ReadOptions) -> Sequence[InputPartition]:
    from rucola.spark.source.lake_source import Lake, begins

    lake = Lake(options)
    if not options.has_log:
        lake.check_topics()
        return lake.plan()
    options = lake.options_of_log()
    archived = lake.archived_offsets(options)
    source = source_of(options)
    bounds = _bounds(source, options, archived)
    ranges = available_ranges(options, begins(archived, bounds), bounds)
    return [*lake.plan(), *source.plan(filter_ranges(options.queue_filter, ranges))]


def _bounds(source: MessageSource, options: ReadOptions, known: Offsets = NO_OFFSETS) -> SourceBounds:
    bounds = source.bounds(known)
    refuse_missing(options, bounds)
    for sentence in bounds.describe_missing():
        _log.warning("%s; reading the other brokers", sentence)
    return bounds


def read(partition: InputPartition, options: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one partition as record batches of the columns `names`."""
    if isinstance(partition, LogSplit):
        yield from log_reader.read(partition, options, names)
    elif type(partition) is not InputPartition:  # Spark makes one of the base class if there are no partitions
        if options.lake is not None:
            from rucola.spark.source import lake_source

            if isinstance(partition, lake_source.LakePartition):
                yield from lake_source.read(partition, options, names)
                return
        from rucola.spark.source import pull_partitions

        assert isinstance(partition, pull_partitions.PullPartition)
        yield from pull_partitions.read(partition, options, names)


@without_tracebacks
class RocketMQReader(DataSourceReader):
    """Planner of a batch on the driver, and pickled reader of its partitions on the workers."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._columns = names

    def partitions(self) -> Sequence[InputPartition]:
        found = list(plan(self._options))
        _freeze()
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read(partition, self._options, self._columns)
        _freeze()


@without_tracebacks
class RocketMQPushdownReader(RocketMQReader):
    """A reader that evaluates pushed filters; requires spark.sql.python.filterPushdown.enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._options, left = apply_filters(self._options, filters)
        return left


def _freeze() -> None:
    """Exempt imported modules from the garbage collection by PySpark after each task, which took 40 ms of CPU."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
