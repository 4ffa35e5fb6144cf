"""Spark DataFrames over the messages of a lake."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rucola.files import local_path
from rucola.spark.lake.data_files import FAIL_ON_MISSING_FILES
from rucola.spark.lake.snapshot import RowFile, check_files
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.source.schema import COLUMNS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DDL: Final = ddl(tuple(COLUMNS))
_DATED_DDL: Final = f"{_DDL}, date date"
_DATE: Final = "date_from_unix_date(cast(coalesce(unix_millis(storeTimestamp), 0) div 86400000 as int)) as date"


def read_lake(spark: SparkSession, root: str | Path, files: Sequence[RowFile] | None = None) -> DataFrame:
    """Return archived messages of the current snapshot, by default all, with their columns and `date`.

    The schema is given, because Spark would infer topics such as `007` to be numbers. Raises StoreError if there is no
    lake, StoreCorrupt if a file is missing or truncated.
    """
    root = local_path(root).absolute()
    chosen = read_snapshot(root).rows if files is None else files
    check_files(root, chosen)
    # Files of an earlier version have topic and date in their paths only.
    older = [str(root / file.path) for file in chosen if file.path.startswith("topic=")]
    paths = [str(root / file.path) for file in chosen if not file.path.startswith("topic=")]
    frames = []
    if paths:
        reader = spark.read.schema(_DDL).options(recursiveFileLookup="true", **FAIL_ON_MISSING_FILES)
        frames.append(reader.parquet(*paths).selectExpr("*", _DATE))
    if older:
        reader = spark.read.schema(_DATED_DDL).options(basePath=str(root), **FAIL_ON_MISSING_FILES)
        frames.append(reader.parquet(*older).select(*COLUMNS, "date"))
    return (
        reduce(lambda one, other: one.unionByName(other), frames) if frames else spark.createDataFrame([], _DATED_DDL)
    )
