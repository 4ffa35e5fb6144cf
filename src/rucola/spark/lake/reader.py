"""Spark DataFrames over the messages of a lake."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rucola.files import local_path
from rucola.spark.lake import parquet_files
from rucola.spark.lake.data_files import FAIL_ON_MISSING_FILES
from rucola.spark.lake.snapshot import RowFile, check_files
from rucola.spark.lake.storage import Directory, Storage
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.partition_tasks import partition_tasks, read_partitions
from rucola.spark.session import SMALL_SIZE
from rucola.spark.source.schema import COLUMNS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DDL: Final = ddl(tuple(COLUMNS))
_DATED_DDL: Final = f"{_DDL}, date date"
_DATE: Final = "date_from_unix_date(cast(coalesce(unix_millis(storeTimestamp), 0) div 86400000 as int)) as date"


def read_lake(
    spark: SparkSession,
    root: str | Path | Storage,
    files: Sequence[RowFile] | None = None,
    *,
    catalog: str | None = None,
) -> DataFrame:
    """Return archived messages of the current snapshot, by default all, with their columns and `date`.

    The schema is given, because Spark would infer topics such as `007` to be numbers. Raises StoreError if there is no
    lake, StoreCorrupt if a file is missing or truncated.
    """
    if files is None:
        snapshot = read_snapshot(str(root), catalog)
        return read_lake(spark, snapshot.storage, snapshot.rows)
    storage = root if isinstance(root, Storage) else Directory(local_path(root).absolute())
    check_files(storage, files)
    frames = []
    if isinstance(storage, Directory):
        # Files of an earlier version have topic and date in their paths only.
        older = [storage.place(file.path) for file in files if file.path.startswith("topic=")]
        paths = [storage.place(file.path) for file in files if not file.path.startswith("topic=")]
        if paths:
            reader = spark.read.schema(_DDL).options(recursiveFileLookup="true", **FAIL_ON_MISSING_FILES)
            frames.append(reader.parquet(*paths).selectExpr("*", _DATE))
        if older:
            reader = spark.read.schema(_DATED_DDL).options(basePath=storage.location, **FAIL_ON_MISSING_FILES)
            frames.append(reader.parquet(*older).select(*COLUMNS, "date"))
    elif files:
        # Spark would need the classes of Hadoop for this object store.
        tasks = partition_tasks(spark, _groups(files))
        read = partial(read_partitions, partial(parquet_files.read_rows, storage, names=tuple(COLUMNS)))
        frames.append(tasks.mapInArrow(read, _DDL).selectExpr("*", _DATE))
    return (
        reduce(lambda one, other: one.unionByName(other), frames) if frames else spark.createDataFrame([], _DATED_DDL)
    )


def _groups(files: Sequence[RowFile]) -> list[list[RowFile]]:
    """Return the files by task, of some `SMALL_SIZE` bytes each."""
    groups: list[list[RowFile]] = []
    size = SMALL_SIZE
    for file in files:
        if size + file.size > SMALL_SIZE:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups
