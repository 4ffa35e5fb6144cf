"""Spark DataFrames over the messages of a lake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rucola.files import local_path
from rucola.spark.lake.data_files import FAIL_ON_MISSING_FILES
from rucola.spark.lake.snapshot import RowFile, check_files, read_snapshot
from rucola.spark.source.schema import COLUMNS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = (*COLUMNS, "date")
_DDL: Final = f"{ddl(tuple(COLUMNS))}, date date"


def read_lake(spark: SparkSession, root: str | Path, files: Sequence[RowFile] | None = None) -> DataFrame:
    """Return archived messages of the current snapshot, by default all, with their columns and `date`.

    The schema is given, because Spark would infer topics such as `007` to be numbers. Raises StoreError if there is no
    lake, StoreCorrupt if a file is missing or truncated.
    """
    root = local_path(root).absolute()
    chosen = read_snapshot(root).rows if files is None else files
    check_files(root, chosen)
    if not chosen:
        return spark.createDataFrame([], _DDL)
    reader = spark.read.schema(_DDL).options(basePath=str(root), **FAIL_ON_MISSING_FILES)
    return reader.parquet(*(str(root / file.path) for file in chosen)).select(*_COLUMNS)
