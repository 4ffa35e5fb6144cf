"""A batch read: from options to partitions on the driver, from partitions to record batches on the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rucola.spark import live, reading
from rucola.spark.live import LiveSource, Pulls
from rucola.spark.options import Options
from rucola.spark.places import Source, batch_ranges
from rucola.spark.planning import StoreSource, Stretch


def source_of(options: Options) -> Source:
    """Return what these options read."""
    return StoreSource(options) if options.name_server is None else LiveSource(options)


def plan(options: Options) -> Sequence[InputPartition]:
    """Return the partitions of a batch. Asks every store or broker where it ends."""
    source = source_of(options)
    return source.plan(batch_ranges(options, source.bounds()))


def read(partition: InputPartition, options: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one partition as record batches of these columns."""
    # Spark makes a partition of its own where nothing is to be read.
    if isinstance(partition, Stretch):
        yield from reading.read(partition, options, names)
    elif isinstance(partition, Pulls):
        yield from live.read(partition, options, names)


class RocketMQReader(DataSourceReader):
    """Plans a read on the driver and carries it out on the workers, which get a pickled copy."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self._options = options
        self._columns = names

    def partitions(self) -> Sequence[InputPartition]:
        return list(plan(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._options, self._columns)
