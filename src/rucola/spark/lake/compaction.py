"""Compaction: merges a lake's small row and key index files into few large ones.

    rows    files below `SMALL_SIZE` of one topic and day are merged, sorted by broker and physical offset, into files
            of about `TARGET_SIZE`
    keys    runs of similar size are merged into one run (see `key_index.runs_to_merge`)

Both merges are published by one commit, so a reader sees every message exactly once (see `rucola.spark.lake.writer`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.lake import parquet_files as row_files
from rucola.spark.lake import read_lake
from rucola.spark.lake.data_files import PARTITION_COLUMNS, ROW_OPTIONS
from rucola.spark.lake.key_index import read_keys, runs_to_merge, write_keys
from rucola.spark.lake.snapshot import KeyFile, RowFile, read_snapshot
from rucola.spark.lake.writer import KEEP_REPLACED_MS, LakeWriter, open_lake
from rucola.spark.session import AnySession, resolve_session, runs_in_spark
from rucola.spark.shared_files import write_parquet

SMALL_SIZE: Final = 16 << 20
"""Row files below this many bytes are candidates for a merge."""

TARGET_SIZE: Final = 128 << 20
"""Size in bytes at which a merged row file is completed."""

_ENTRY_SIZE: Final = 64

MIN_FILES: Final = 8
"""Default of the small files of a topic and day, or runs of one size, that make a merge worthwhile."""


@dataclass(frozen=True)
class CompactionResult:
    """Numbers of row and key files that a compaction replaced and wrote, and of merged rows."""

    lake: str
    rows: int = 0
    replaced_row_files: int = 0
    row_files: int = 0
    replaced_key_files: int = 0
    key_files: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dict."""
        return {
            "lake": self.lake,
            "rows": self.rows,
            "rowFiles": {"replaced": self.replaced_row_files, "written": self.row_files},
            "keyFiles": {"replaced": self.replaced_key_files, "written": self.key_files},
        }


def compact(rows: DataFrame, partitions: int) -> DataFrame:
    """Repartition rows by topic and day, each partition sorted by broker and physical offset."""
    order = *PARTITION_COLUMNS, "brokerName", "commitLogOffset"
    return rows.repartition(partitions, *PARTITION_COLUMNS).sortWithinPartitions(*order)


def small_files(files: Sequence[RowFile], min_files: int) -> list[RowFile]:
    """Return the files below `SMALL_SIZE` of every topic and day with at least `min_files` of them."""
    by_partition: dict[tuple[str, str], list[RowFile]] = {}
    for file in files:
        if file.size < SMALL_SIZE:
            by_partition.setdefault((file.topic, file.date), []).append(file)
    return [file for group in by_partition.values() if len(group) >= min_files for file in group]


@translate_spark_errors()
def run(
    spark: AnySession,
    lake: str | Path,
    *,
    min_files: int = MIN_FILES,
    keep_replaced_ms: int = KEEP_REPLACED_MS,
) -> CompactionResult:
    """Merge small files of a lake, and delete files replaced more than `keep_replaced_ms` ago.

    A topic and day, or a size class of key runs, is merged if it has at least `min_files` small files. Raises
    StoreError if there is no lake, LakeInUse if another run is writing.
    """
    read_snapshot(lake)  # raises if there is no lake; open_lake would create one
    with open_lake(lake) as target:
        before = target.snapshot()
        rows = small_files(before.rows, min_files)
        merged = runs_to_merge(before.keys, min_files)
        keys = [file for file in before.keys if file.run in merged]
        if (rows or keys) and runs_in_spark(spark, partial(_size_of, target.root, rows, keys)):
            _merge(resolve_session(spark), target, rows, keys)
        elif rows or keys:
            row_files.merge_rows(target.root, rows, target.staged_rows)
            row_files.write_key_entries(row_files.read_key_entries(target.root, keys), target.staged_keys)
        if rows or keys or before.replaced:
            commit = target.publish(
                replaces=[*(file.path for file in rows), *(file.path for file in keys)],
                rows=sum(file.rows for file in rows),
                entries=sum(file.entries for file in keys),
                keep_replaced_ms=keep_replaced_ms,
            )
            counts = len(rows), len(commit.rows), len(keys), len(commit.keys)
            return CompactionResult(str(target.root), sum(file.rows for file in rows), *counts)
        return CompactionResult(str(target.root))


def _size_of(root: Path, rows: Sequence[RowFile], keys: Sequence[KeyFile]) -> int:
    return row_files.estimate_size(root, rows) + sum(file.entries for file in keys) * _ENTRY_SIZE


def _merge(session: SparkSession, lake: LakeWriter, rows: Sequence[RowFile], keys: Sequence[KeyFile]) -> None:
    if rows:
        # Spark limits files by rows, not bytes: estimate the rows of TARGET_SIZE from the average row of the input.
        most_rows = math.ceil(sum(file.rows for file in rows) / sum(file.size for file in rows) * TARGET_SIZE)
        places = {(file.topic, file.date) for file in rows}
        ordered = compact(
            read_lake(session, lake.root, rows), min(len(places), session.sparkContext.defaultParallelism)
        )
        options = {**ROW_OPTIONS, "maxRecordsPerFile": str(most_rows)}
        write_parquet(ordered, lake.staged_rows, partition_by=PARTITION_COLUMNS, **options)
    if keys:
        write_keys(read_keys(session, lake.root, keys), sum(file.entries for file in keys), lake.staged_keys)
