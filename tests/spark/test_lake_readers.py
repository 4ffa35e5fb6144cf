"""The same rows in every reader of a lake: our own, Spark, pyiceberg and DuckDB, before and after a compaction."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.lake import read_lake
from rucola.spark.session import LazySession
from rucola.spark.source.schema import COLUMNS
from support.rows import canonical, put_all_sorts
from support.small_store import SmallStore

HERE = LazySession("tests", use_spark=False)


def table_of(lake: Path) -> StaticTable:
    """The table as an engine finds it that is given the directory."""
    stem = (lake / "metadata" / "version-hint.text").read_text()
    return StaticTable.from_metadata(str(lake / "metadata" / f"{stem}.metadata.json"))


def in_every_reader(spark: SparkSession, lake: Path) -> dict[str, list[str]]:
    listed = json.loads((lake / "_rucola" / "files.json").read_bytes())["rows"]
    paths = [str(lake / file["path"]) for file in listed]
    with duckdb.connect() as connection:
        rows = connection.read_parquet(paths, hive_partitioning=False).to_arrow_table().to_pylist()
    return {
        "Arrow": canonical(row for batch in Archive(lake).scan().batches(COLUMNS) for row in batch.to_pylist()),
        "Spark": canonical(row.asDict() for row in read_lake(spark, lake).collect()),
        "pyiceberg": canonical(table_of(lake).scan().to_arrow().to_pylist()),
        "DuckDB": canonical(rows),
    }


@pytest.mark.spark
def test_every_reader_has_the_same_rows(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for _ in range(3):
        put_all_sorts(small_store)
        archive.run(HERE, small_store.path, lake)
    before = in_every_reader(spark, lake)
    assert len(before["Arrow"]) == 36
    for name, rows in before.items():
        assert rows == before["Arrow"], name
    assert Archive(lake).compact(min_files=2).rows == 36
    for name, rows in in_every_reader(spark, lake).items():
        assert rows == before["Arrow"], name
    # Partitions and statistics skip no row that a condition asks for.
    table = table_of(lake)
    for condition, count in (
        ("topic = '007'", 12),
        ("storeTimestamp is null", 9),
        ("storeTimestamp >= '2023-11-15T00:00:00+00:00'", 9),
        ("storeTimestamp < '2000-01-01T00:00:00+00:00'", 9),
        ("bodyError is not null", 12),
    ):
        assert table.scan(condition).count() == count, condition
