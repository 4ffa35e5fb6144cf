"""Spark over a store: reading all of it, and archiving it to Parquet.

Reading stands beside a data source that hands over as many rows of the same columns, made once and for all;
archiving beside Spark writing the rows of the finished archive once more.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from figures import Aim, Figure, median
from floors import Options
from rucola.spark import columns, source
from rucola.spark.jobs import archive
from rucola.spark.lake import PARTITION_COLUMNS, read_lake
from rucola.spark.schema import ddl
from rucola.spark.session import local_session
from servers import standalone
from stored import check_stored, fill

TOPIC = "BenchArchive"
STORED = 128 * 1024
PARTITIONS = 2


class ReadyRows(DataSource):
    """Rows that are Arrow already: the batch in the file `batch`, handed over `times` times by each partition."""

    @classmethod
    def name(cls) -> str:
        return "bench_ready_rows"

    def schema(self) -> str:
        return ddl(columns.SCHEMA.names)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyRowsReader(self.options["batch"], int(self.options["times"]))


class ReadyRowsReader(DataSourceReader):
    """Reads the batch once and yields it again and again."""

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


def measure(options: Options) -> list[Figure]:
    """Fill a store through a broker, stop it, and let Spark at the directory."""
    count = options.count(STORED)
    rounds = max(2, options.rounds // 2)
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        folder = Path(name)
        with standalone(folder / "store") as broker:
            fill(broker, TOPIC, count)
            check_stored(broker, TOPIC, count)
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where Spark's workers find ReadyRows
        session = local_session("rucola-bench")
        try:
            return [_read(session, folder, count, rounds), _archive(session, folder, count, rounds)]
        finally:
            session.stop()


def _read(session: SparkSession, folder: Path, count: int, rounds: int) -> Figure:
    """All columns of all rows into Spark, which drops them there."""
    messages = session.read.format(source.FORMAT).option("storePath", str(folder / "store")).load()
    found = messages.count()
    if found != count:
        raise RuntimeError(f"{count} messages are stored, and Spark reads {found}")
    batch = messages.limit(columns.BATCH_ROWS).toArrow().cast(columns.SCHEMA).combine_chunks().to_batches()[0]
    path = folder / "batch.arrow"
    with pa.ipc.new_file(path, batch.schema) as file:
        file.write_batch(batch)
    times = max(1, count // batch.num_rows // PARTITIONS)
    session.dataSource.register(ReadyRows)
    ready = session.read.format(ReadyRows.name()).option("batch", str(path)).option("times", times).load()
    ready_s, messages_s = in_turns([lambda: _drop(ready), lambda: _drop(messages)], rounds)
    return Figure(
        "spark_read",
        count / messages_s,
        "rows/s",
        floor=PARTITIONS * times * batch.num_rows / ready_s,
        floor_is="Spark taking rows of the same columns that are Arrow already",
        more_is_better=True,
        more={"MB/s": count * batch["storeSize"][0].as_py() / messages_s / 1e6, "rows": count},
    )


def _archive(session: SparkSession, folder: Path, count: int, rounds: int) -> Figure:
    """The whole job into a new lake, its bookkeeping included."""
    first = archive.run(session, folder / "store", folder / "lake")
    if first.rows != count:
        raise RuntimeError(f"{count} messages are stored, and {first.rows} were archived")
    numbers = itertools.count()

    def archive_all() -> None:
        archive.run(session, folder / "store", folder / f"lake-{next(numbers)}")

    def write_again() -> None:
        rows = read_lake(session, folder / "lake")
        rows.write.partitionBy(*PARTITION_COLUMNS).parquet(str(folder / f"copy-{next(numbers)}"))

    copy_s, archive_s = in_turns([write_again, archive_all], rounds)
    return Figure(
        "archive",
        first.size / archive_s / 1e6,
        "MB/s",
        floor=first.size / copy_s / 1e6,
        floor_is="Spark writing the same rows from ready Parquet",
        more_is_better=True,
        aims=[Aim("ratio", 2)],
        more={"rows/s": count / archive_s, "MB_of_log": first.size / 1e6, "MB_of_Parquet": first.file_size / 1e6},
    )


def _drop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def in_turns(acts: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """The median seconds of each act, done in turns after one round to warm up."""
    seconds: list[list[float]] = []
    for _ in range(rounds + 1):
        seconds.append([])
        for act in acts:
            begin = time.perf_counter()
            act()
            seconds[-1].append(time.perf_counter() - begin)
    return [median(float, column) for column in zip(*seconds[1:], strict=True)]
