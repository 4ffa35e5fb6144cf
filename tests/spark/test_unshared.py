"""Jobs on a worker that does not have the driver's directories: they are right, or refuse with one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, table_export
from rucola.spark.jobs.table_export import TableSource
from rucola.spark.lake.snapshot import progress_path
from rucola.spark.session import LazySession
from rucola.store.tools.check import check
from support import unshared_jobs
from support.broker_thread import broker_thread
from support.database_fixtures import initialized
from support.databases import OutboxDatabase
from support.reconciled import put_stub
from support.small_store import SmallStore
from support.spark_cluster import spark_cluster

COUNT = 60
ENTRIES = 2 * COUNT
"""Of the key index: each message has a unique key and a key."""

RIGHT: dict[str, Any] = {
    "archive": COUNT,
    "replay": [COUNT, COUNT],
    "rebuild": True,
    "reconcile": 1,
    "audit": 2 * COUNT,
    "data source": COUNT,
    "search": COUNT,
    "compact": [COUNT, ENTRIES],
    "repair": [COUNT, ENTRIES],
}


@pytest.mark.slow
@pytest.mark.spark
def test_jobs_are_right_or_refuse_on_workers_with_other_directories(
    tmp_path: Path, make_sqlite: Callable[[str], OutboxDatabase]
) -> None:
    """The worker sees another directory at the path of `private`, with another store of the same size."""
    shared, private, other = (tmp_path / name for name in ("shared", "private", "other"))
    for directory in (shared, private, other):
        directory.mkdir()
    store = filled_store(shared / "store", at_ms=1_700_000_000_000)
    shutil.copytree(store, private / "store")
    filled_store(other / "store", at_ms=1_700_000_000_001)
    here = LazySession("tests", use_spark=False)
    archive.run(here, store, private / "lake")
    db = initialized(make_sqlite("private/business.db"))
    put_stub(db, "LOST", broker="broker-a", queue_id=0, queue_offset=5)
    db.close()
    table_export.write(TableSource(db.url), private / "export")
    progress = progress_path(private / "lake").read_bytes()

    with (
        broker_thread(tmp_path / "broker", "Copy") as namesrv,
        spark_cluster(tmp_path / "cluster", {private: other}) as master,
    ):
        done = subprocess.run(
            [sys.executable, unshared_jobs.__file__, master, str(tmp_path), namesrv],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(unshared_jobs.__file__).parents[1])},
            text=True,
            check=True,
        )
    told = json.loads(done.stdout)
    assert {name: each.get("result", each) for name, each in told.items() if "private" not in name} == RIGHT
    refused = {name: each for name, each in told.items() if "private" in name}
    assert [(name, each) for name, each in refused.items() if each.get("error") != "DirectoryNotShared"] == []
    for each in refused.values():
        assert str(private) in each["message"]
        assert "\n" not in each["message"]
    # Nothing that is refused has moved any progress, and nothing was sent by a task that could not record it.
    assert Archive(private / "new").progress() == {}
    assert not (private / "new" / "_rucola" / "progress.json").exists()
    assert Archive(shared / "wrong").progress() == {}
    assert progress_path(private / "lake").read_bytes() == progress
    assert archive.run(here, store, private / "new").rows == COUNT
    assert {found.path.name for found in check(shared / "store")} == {"checkpoint"}  # a store of files without one


def filled_store(path: Path, at_ms: int) -> Path:
    store = SmallStore(path)
    for number in range(COUNT):
        store.put("T", number % 3, at_ms=at_ms, UNIQ_KEY=f"M{number:02d}", KEYS=f"k{number}")
    return path
