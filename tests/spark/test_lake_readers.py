"""The same rows in every reader of a lake, row by row, before, during and after commits and compactions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import polars
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

import rucola.spark
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.lake import read_lake
from rucola.spark.session import LazySession
from rucola.spark.source import batch_reader
from rucola.spark.source.options import parse_read_options
from support.rows import canonical, put_all_sorts
from support.small_store import SmallStore

HERE = LazySession("tests", use_spark=False)


def metadata_of(lake: Path) -> str:
    """The table's metadata as an engine finds it that is given the directory."""
    stem = (lake / "metadata" / "version-hint.text").read_text()
    return str(lake / "metadata" / f"{stem}.metadata.json")


def by_source(**given: str) -> list[str]:
    options = parse_read_options(given)
    batches = [b for each in batch_reader.plan(options) for b in batch_reader.read(each, options, options.columns)]
    return canonical(row for batch in batches for row in batch.to_pylist())


def by_pyiceberg(lake: Path) -> list[str]:
    return canonical(StaticTable.from_metadata(metadata_of(lake)).scan().to_arrow().to_pylist())


def by_rest_catalog(lake: Path) -> list[str]:
    with Archive(lake).serve_catalog() as (host, port), RestCatalog("lake", uri=f"http://{host}:{port}") as catalog:
        return canonical(catalog.load_table("rucola.messages").scan().to_arrow().to_pylist())


def by_polars(lake: Path) -> list[str]:
    with warnings.catch_warnings(action="ignore"):  # it plans faster with a plugin
        return canonical(polars.scan_iceberg(metadata_of(lake)).collect().to_dicts())


def by_duckdb(lake: Path) -> list[str]:
    messages = Archive(lake).scan().dataset()
    with duckdb.connect() as connection:
        return canonical(connection.from_arrow(messages).to_arrow_table().to_pylist())


READERS: dict[str, Callable[[Path], list[str]]] = {
    "the data source": lambda lake: by_source(lake=str(lake)),
    "pyiceberg": by_pyiceberg,
    "pyiceberg by a REST catalog": by_rest_catalog,
    "Polars": by_polars,
    "DuckDB": by_duckdb,
}


@pytest.mark.spark
def test_every_reader_has_the_same_rows(
    spark: SparkSession, small_store: SmallStore, golden: Path, tmp_path: Path
) -> None:
    """Of Apache's broker (batches, delayed, transactions, compressed and large bodies, unicode), and odd times."""
    lake = tmp_path / "lake"
    archive.run(HERE, golden / "g1-clean" / "store", lake, broker_name="a")
    for _ in range(2):
        put_all_sorts(small_store)
        archive.run(HERE, small_store.path, lake, broker_name="small")
    rucola.spark.register(spark)
    readers = READERS | {
        "Spark": lambda lake: canonical(row.asDict() for row in read_lake(spark, lake).collect()),
        "the data source in Spark": lambda lake: canonical(
            row.asDict() for row in spark.read.format("rocketmq").option("lake", str(lake)).load().collect()
        ),
    }
    stores = {"a": golden / "g1-clean" / "store", "small": small_store.path}
    wanted = sorted(row for name, path in stores.items() for row in by_source(storePath=str(path), brokerName=name))
    for name, read in readers.items():
        assert read(lake) == wanted, name
    assert Archive(lake).compact(min_files=2).rows > 0
    for name, read in readers.items():
        assert read(lake) == wanted, name
    with warnings.catch_warnings(action="ignore"):  # as by_polars; counts that read no column
        counted = polars.scan_iceberg(metadata_of(lake)).select(polars.len()).collect().item()
    assert counted == len(wanted)
    # What engines need to skip files, row groups and pages.
    table = StaticTable.from_metadata(metadata_of(lake))
    for task in table.scan().plan_files():
        footer = pq.read_metadata(task.file.file_path)
        for group in range(footer.num_row_groups):
            columns = [footer.row_group(group).column(number) for number in range(footer.num_columns)]
            assert all(column.is_stats_set and column.statistics.has_null_count for column in columns)
            filtered = {column.path_in_schema for column in columns if column.bloom_filter_length}
            assert filtered == {"msgId", "keys.list.element"}
    sorted_by = [table.schema().find_column_name(field.source_id) for field in table.sort_order().fields]
    assert sorted_by == ["brokerName", "commitLogOffset"]
    # Partitions and statistics skip no row that a condition asks for.
    for condition, count in (
        ("topic = '007'", 8),
        ("storeTimestamp is null", 6),
        ("storeTimestamp >= '2023-11-15T00:00:00+00:00' and brokerName = 'small'", 6),
        ("storeTimestamp < '2000-01-01T00:00:00+00:00'", 6),
        ("bodyError is not null", 8),
    ):
        assert table.scan(condition).count() == count, condition


def test_readers_see_whole_commits_while_messages_are_archived(small_store: SmallStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    states = []

    def commit() -> None:
        put_all_sorts(small_store)
        states.append(by_source(storePath=str(small_store.path), brokerName="a"))  # before a reader can see it
        archive.run(HERE, small_store.path, lake, broker_name="a")

    def archiving() -> None:
        for _ in range(4):
            commit()
            Archive(lake).compact(min_files=2)

    commit()
    seen = {name: [0] for name in READERS}
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(archiving)
        while not done.done():
            for name, read in READERS.items():
                seen[name].append(states.index(read(lake)))
        done.result()
    for name, read in READERS.items():
        assert seen[name] == sorted(seen[name]), name
        assert states.index(read(lake)) == 4, name
