"""The compaction job: the many small files that archiving leaves become few large ones, rows and key index alike.

    rows    the files below `SMALL_SIZE` of a topic and day are put together, in the order of brokers and logs, to
            files of about `TARGET_SIZE`
    keys    runs of like size become one (see `key_index.runs_to_merge`)

Both are one commit, so that a reader sees every message once, in its old file or in its new one (see
`rucola.spark.lake.writer`). No message is changed, and no other file is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from rucola.spark.errors import translate_spark_errors
from rucola.spark.lake import parquet_files as lake_rows
from rucola.spark.lake import read_lake
from rucola.spark.lake.data_files import PARTITION_COLUMNS, ROW_OPTIONS
from rucola.spark.lake.key_index import read_keys, runs_to_merge, write_keys
from rucola.spark.lake.snapshot import KeyFile, RowFile, read_snapshot
from rucola.spark.lake.writer import KEEP_REPLACED_MS, LakeWriter, open_lake
from rucola.spark.session import AnySession, resolve_session, runs_in_spark

SMALL_SIZE: Final = 16 << 20
TARGET_SIZE: Final = 128 << 20

_ENTRY_SIZE: Final = 64
"""Bytes that an entry of the key index takes in memory, about."""

LEAST_FILES: Final = 8
"""So many small files of a topic and day, or runs of a size, are merged when nobody asks for more."""


@dataclass(frozen=True)
class Summary:
    """What a compaction did: files of rows and of keys that it replaced, and files that it made of them."""

    lake: str
    rows: int = 0
    replaced_row_files: int = 0
    parquet_files: int = 0
    replaced_key_files: int = 0
    key_files: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the summary as values that JSON knows."""
        return {
            "lake": self.lake,
            "rows": self.rows,
            "rowFiles": {"replaced": self.replaced_row_files, "written": self.parquet_files},
            "keyFiles": {"replaced": self.replaced_key_files, "written": self.key_files},
        }


def compact(rows: DataFrame, partitions: int) -> DataFrame:
    """Return rows of the lake such that each topic and day lies in one of the partitions, in the order of its logs."""
    order = *PARTITION_COLUMNS, "brokerName", "commitLogOffset"
    return rows.repartition(partitions, *PARTITION_COLUMNS).sortWithinPartitions(*order)


def small_files(files: Sequence[RowFile], least_files: int) -> list[RowFile]:
    """Return the small files of every topic and day that has so many of them."""
    by_place: dict[tuple[str, str], list[RowFile]] = {}
    for file in files:
        if file.size < SMALL_SIZE:
            by_place.setdefault((file.topic, file.date), []).append(file)
    return [file for group in by_place.values() if len(group) >= least_files for file in group]


@translate_spark_errors()
def run(
    spark: AnySession,
    lake: str | Path,
    *,
    least_files: int = LEAST_FILES,
    keep_replaced_ms: int = KEEP_REPLACED_MS,
) -> Summary:
    """Compact a lake where there are `least_files` to put together, and return what that was.

    Files that an earlier compaction replaced more than `keep_replaced_ms` ago are removed. Raises StoreError where
    there is no lake, or another run is writing to it.
    """
    read_snapshot(lake)  # so that none is made where there is none
    with open_lake(lake) as target:
        before = target.snapshot()
        rows = small_files(before.rows, least_files)
        merged = runs_to_merge(before.keys, least_files)
        keys = [file for file in before.keys if file.run in merged]
        if (rows or keys) and runs_in_spark(spark, partial(_size_of, target.root, rows, keys)):
            _merge(resolve_session(spark), target, rows, keys)
        elif rows or keys:
            lake_rows.merge_rows(target.root, rows, target.staged_rows)
            lake_rows.write_key_entries(lake_rows.read_key_entries(target.root, keys), target.staged_keys)
        if rows or keys or before.replaced:
            replaced = [file.path for file in rows] + [file.path for file in keys]
            commit = target.publish(replaces=replaced, keep_replaced_ms=keep_replaced_ms)
            counts = len(rows), len(commit.rows), len(keys), len(commit.keys)
            return Summary(str(target.root), sum(file.rows for file in rows), *counts)
        return Summary(str(target.root))


def _size_of(root: Path, rows: Sequence[RowFile], keys: Sequence[KeyFile]) -> int:
    """Return about how many bytes are to be merged."""
    return lake_rows.estimate_size(root, rows) + sum(file.entries for file in keys) * _ENTRY_SIZE


def _merge(session: SparkSession, lake: LakeWriter, rows: Sequence[RowFile], keys: Sequence[KeyFile]) -> None:
    """Merge files of rows by topic and day, and files of keys into one run, in Spark."""
    if rows:
        # As many rows to a file as make the target at the size that they have now.
        most_rows = math.ceil(sum(file.rows for file in rows) / sum(file.size for file in rows) * TARGET_SIZE)
        places = {(file.topic, file.date) for file in rows}
        ordered = compact(
            read_lake(session, lake.root, rows), min(len(places), session.sparkContext.defaultParallelism)
        )
        options = {**ROW_OPTIONS, "maxRecordsPerFile": str(most_rows)}
        ordered.write.options(**options).partitionBy(*PARTITION_COLUMNS).parquet(str(lake.staged_rows))
    if keys:
        write_keys(read_keys(session, lake.root, keys), sum(file.entries for file in keys), lake.staged_keys)
