"""The floor of a read by Spark: a data source whose rows are Arrow already."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rucola.spark.session import local_session
from rucola.spark.source import columns, record_layout
from rucola.spark.source.schema import ddl

PARTITIONS = 2


class ReadyRows(DataSource):
    """The batch in the file `batch`, yielded `times` times by each partition."""

    @classmethod
    def name(cls) -> str:
        return "bench_ready_rows"

    def schema(self) -> str:
        return ddl(columns.SCHEMA.names)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyRowsReader(self.options["batch"], int(self.options["times"]))


class ReadyRowsReader(DataSourceReader):
    """Reads the batch once and yields it repeatedly."""

    def __init__(self, path: str, times: int) -> None:
        self._path = path
        self._times = times

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(self._path) as file:
            batch = file.get_batch(0)
        for _ in range(self._times):
            yield batch


def session_with_floor() -> SparkSession:
    """Return a session with the data source `ReadyRows`."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the import of this module by workers
    session = local_session("rucola-bench")
    session.dataSource.register(ReadyRows)
    return session


def ready_rows(session: SparkSession, messages: DataFrame, count: int, path: Path) -> tuple[DataFrame, int]:
    """Return about `count` rows, repetitions of the first of `messages`, and their number; `path` gets the batch."""
    batch = messages.limit(record_layout.BATCH_ROWS).toArrow().cast(columns.SCHEMA).combine_chunks().to_batches()[0]
    with pa.ipc.new_file(path, batch.schema) as file:
        file.write_batch(batch)
    times = max(1, count // batch.num_rows // PARTITIONS)
    ready = session.read.format(ReadyRows.name()).option("batch", str(path)).option("times", times).load()
    return ready, PARTITIONS * times * batch.num_rows


def drop(rows: DataFrame) -> None:
    """Read all rows and columns into Spark, which drops them."""
    rows.write.format("noop").mode("overwrite").save()
