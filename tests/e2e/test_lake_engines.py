"""An engine of its own with a lake: DuckDB's extension `iceberg`, at the version that PyPI has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from support.client_programs import PROGRAMS
from support.rows import canonical, put_all_sorts
from support.servers import server
from support.small_store import SmallStore


@pytest.fixture(scope="session")
def duckdb_iceberg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with DuckDB and its extensions."""
    directory = tmp_path_factory.mktemp("duckdb")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--target", directory]
    lock = PROGRAMS / "duckdb" / "requirements.lock"
    done = subprocess.run([*pip, *options, "-r", lock], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"pip could not install DuckDB's extensions:\n{done.stderr[-2000:]}")
    return directory


def test_duckdb_attaches_a_lake(duckdb_iceberg: Path, tmp_path: Path) -> None:
    """By `rucola lake serve` and by the directory it has the rows of the data source, before and after a compaction."""
    lake, store = tmp_path / "lake", SmallStore(tmp_path / "store")
    for _ in range(2):
        put_all_sorts(store)
        archive.run(LazySession("tests", use_spark=False), store.path, lake, broker_name="a")
    Archive(lake).derive({}, every_topic=True)
    with server("lake", "serve", "--lake", lake, "--listen", "127.0.0.1:0", log=tmp_path / "log") as serving:
        ready, _, address = serving.first_line.strip().rpartition("=")
        assert ready == "rucola ready http"
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, PROGRAMS / "duckdb" / "reader.py", lake, f"http://{address}", tmp_path],
                env={"PYTHONPATH": str(duckdb_iceberg), "HOME": str(tmp_path)},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout) == {"topic": 8, "refused": [True, True]}
            rows = Archive(lake).scan().dataset().to_table()
            for way in ("directory", "catalog"):
                read = pq.read_table(tmp_path / f"{way}.parquet").cast(rows.schema)
                assert canonical(read.to_pylist()) == canonical(rows.to_pylist()), way
            Archive(lake).compact(min_files=2)
        assert serving.stop() == 0
