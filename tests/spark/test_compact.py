"""Compaction, and the key index that it and the archive job write."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.lake import read_lake
from rucola.spark.lake.compaction import CompactionResult
from rucola.spark.lake.key_index import key_hash, runs_to_merge
from rucola.spark.lake.snapshot import KeyFile
from rucola.spark.lake.tables import read_snapshot
from support.lake_entries import lake_entries
from support.small_store import SmallStore

MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC


def indexed(lake: Path) -> list[tuple[int, str, int]]:
    """Every entry of the key index: hash, topic, physical offset."""
    return sorted((entry["hash"], entry["topic"], entry["commitLogOffset"]) for entry in lake_entries(lake))


@pytest.mark.spark
def test_small_files_become_one_and_nothing_else_changes(
    spark: SparkSession, small_store: SmallStore, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    wanted = []
    for n in range(3):
        for topic, at_ms in (("T", MIDNIGHT_MS), ("T", MIDNIGHT_MS - 1), ("%RETRY%g", MIDNIGHT_MS)):
            offset = small_store.put(topic, at_ms=at_ms, KEYS=f"é{n} both both", UNIQ_KEY=f"{topic}-{n}")
            wanted += [(key_hash(key), topic, offset) for key in (f"é{n}", "both", f"{topic}-{n}")]
        archive.run(spark, small_store.path, lake)
    wanted.sort()
    assert indexed(lake) == wanted
    before = read_lake(spark, lake).orderBy("commitLogOffset")
    rows = before.collect()
    assert len(rows) == 9
    assert Archive(lake).compact() == CompactionResult(str(lake))  # there is too little of everything
    told: list[tuple[int, int]] = []
    summary = Archive(lake).compact(min_files=2, progress=lambda *counts: told.append(counts))
    assert told == [(number, summary.row_files) for number in range(summary.row_files)]
    assert (summary.rows, summary.replaced_row_files, summary.row_files) == (9, 9, 3)
    assert (summary.replaced_key_files, summary.key_files) == (3, 1)
    snapshot = read_snapshot(lake)
    assert len({(file.topic, file.date) for file in snapshot.rows}) == len(snapshot.rows) == 3
    assert read_lake(spark, lake).orderBy("commitLogOffset").collect() == rows
    assert indexed(lake) == wanted
    assert snapshot.progress[str(small_store.path)].physical_offset == small_store.end
    # Whoever began before still reads the old files, until these have had their time.
    assert before.collect() == rows
    Archive(lake).compact(keep_replaced_ms=0)
    assert {str(path.relative_to(lake)) for path in lake.rglob("*.parquet")} == {
        *(file.path for file in snapshot.rows),
        *(file.path for file in snapshot.keys),
    }


def runs(*entries: int) -> list[KeyFile]:
    """A file for each run, which is numbered from 0 on."""
    return [KeyFile(f"{run}", str(run), count, 0, 0, 0) for run, count in enumerate(entries)]


def test_runs_of_like_size_are_merged() -> None:
    assert runs_to_merge([], 2) == frozenset()
    assert runs_to_merge(runs(5), 2) == frozenset()
    assert runs_to_merge(runs(*[5] * 7), 8) == frozenset()
    assert runs_to_merge(runs(*[5] * 8, 10**7), 8) == frozenset(map(str, range(8)))
    # Nine runs of a size and seven of the next: what the nine become is the eighth.
    assert runs_to_merge(runs(*[100_000] * 9, *[700_000] * 7, 10**8), 8) == frozenset(map(str, range(16)))
    # A run that lies in several files is one.
    files = [KeyFile(f"{n}", "1", 100_000, 0, 0, 0) for n in range(9)]
    assert runs_to_merge(files, 2) == frozenset()


def test_the_number_of_runs_stays_small() -> None:
    """Commits of any size: there are never many runs, and an entry is seldom written again."""
    sizes: dict[str, int] = {}
    written = 0
    for number in range(4000):
        sizes[f"{number}"] = 1000 + number * 7919 % 30_000
        written += sizes[f"{number}"]
        merged = runs_to_merge([KeyFile(run, run, count, 0, 0, 0) for run, count in sizes.items()])
        if merged:
            sizes[f"{number}"] = sum(sizes.pop(run) for run in merged)
            written += sizes[f"{number}"]
        assert len(sizes) <= 32
    assert written <= 8 * sum(sizes.values())
