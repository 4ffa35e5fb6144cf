"""Jobs on a worker that does not have the driver's directories: they are right, or refuse with one sentence.

`python test_unshared.py MASTER FOLDER NAMESRV` runs the jobs, once with directories that the worker shares, and once
with some that it does not, and prints what each did as JSON: its result, or its error. With a URL, the lake is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rucola import spark as rucola_spark
from rucola.errors import MQError
from rucola.spark.archive import Archive
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.jobs import archive, audit, rebuild, reconcile, replay, search, table_export
from rucola.spark.jobs.reconciled_log import LogSources
from rucola.spark.jobs.replay import ReplayOptions
from rucola.spark.jobs.selection import Selection
from rucola.spark.jobs.table_export import TableSource
from rucola.spark.lake.snapshot import progress_path
from rucola.spark.session import LazySession, local_session
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import rebuild as rebuild_here
from support.broker_thread import broker_thread
from support.database_fixtures import initialized
from support.databases import OutboxDatabase
from support.object_store import TableBucket
from support.reconciled import put_stub
from support.small_store import SmallStore
from support.spark_cluster import spark_cluster

COUNT = 60

RIGHT: dict[str, Any] = {
    "archive": COUNT,
    "replay": [COUNT, COUNT],
    "rebuild": True,
    "reconcile": 1,
    "audit": 2 * COUNT,
    "data source": COUNT,
    "search": COUNT,
}
IN_AN_OBJECT_STORE: dict[str, Any] = {
    "replay": [COUNT, COUNT],
    "archive to an object store": COUNT,
    "compact an object store": COUNT,
    "search an object store": COUNT,
    "audit an object store": COUNT,
    "replay an object store": [COUNT, COUNT],
    "reconcile an object store": 1,
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
        told = run_jobs(master, str(tmp_path), namesrv)
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


@pytest.mark.slow
@pytest.mark.spark
def test_a_lake_in_an_object_store_needs_no_shared_directory(
    tmp_path: Path, make_sqlite: Callable[[str], OutboxDatabase], table_bucket: TableBucket
) -> None:
    """The worker has another directory at the path of `private`, and no access to the catalog but by the driver."""
    shared, private, other = (tmp_path / name for name in ("shared", "private", "other"))
    for directory in (shared, private, other):
        directory.mkdir()
    filled_store(shared / "store", at_ms=1_700_000_000_000)
    db = initialized(make_sqlite("private/business.db"))
    put_stub(db, "LOST", broker="broker-a", queue_id=0, queue_offset=5)
    db.close()
    with (
        broker_thread(tmp_path / "broker", "Copy") as namesrv,
        spark_cluster(tmp_path / "cluster", {private: other}) as master,
    ):
        told = run_jobs(
            master, str(tmp_path), namesrv, f"{table_bucket.url}/a/lake", **table_bucket.environment("objects")
        )
    assert {name: each.get("result", each) for name, each in told.items()} == IN_AN_OBJECT_STORE


def run_jobs(*arguments: str, **environment: str) -> dict[str, Any]:
    """Run this file as a program, and return what it tells."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[1])},
        text=True,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def filled_store(path: Path, at_ms: int) -> Path:
    store = SmallStore(path)
    for number in range(COUNT):
        store.put("T", number % 3, at_ms=at_ms, UNIQ_KEY=f"M{number:02d}", KEYS=f"k{number}")
    return path


Job = tuple[str, Callable[[], Any]]


def jobs(session: SparkSession, folder: Path, namesrv: str) -> Iterator[Job]:
    """Each job with the name of what is shared. `private` directories are the driver's; the worker has others there."""
    shared, private = folder / "shared", folder / "private"
    store, lake = shared / "store", shared / "lake"

    # What is written.
    yield "archive to a private lake", lambda: archive.run(session, store, private / "new").rows
    yield "archive", lambda: archive.run(session, store, lake).rows
    yield "replay by a private ledger", lambda: replayed(session, store, namesrv, private / "ledger")
    yield "replay", lambda: replayed(session, store, namesrv, shared / "ledger")
    yield "rebuild to a private directory", lambda: rebuild.run(session, store, private / "rebuilt").units
    yield "rebuild", lambda: rebuilt(session, store, shared)
    database = TableSource(f"sqlite:///{private / 'business.db'}")  # only the driver reads it
    logs = LogSources({"broker-a": store})
    yield "reconcile to a private directory", lambda: missing(session, database, logs, private / "reconciled")
    yield "reconcile", lambda: missing(session, database, logs, shared / "reconciled")

    # What is read.
    yield "archive a private store", lambda: archive.run(session, private / "store", shared / "wrong").rows
    yield "replay a private store", lambda: replayed(session, private / "store", namesrv, shared / "ledger-2")
    yield "rebuild a private store", lambda: rebuild.run(session, private / "store", shared / "rebuilt-2").units
    yield "audit a private store", lambda: audit.run(session, [private / "store"]).messages
    yield "audit", lambda: audit.run(session, [store, lake]).messages
    yield "data source of a private store", lambda: read(session, private / "store")
    yield "data source", lambda: read(session, store)
    yield "search a private lake", lambda: found(session, private / "lake")
    yield "search", lambda: found(session, lake)
    yield "replay a private lake", lambda: replayed(session, private / "lake", namesrv, shared / "ledger-3")
    yield "reconcile a private export", lambda: missing(session, private / "export", logs, shared / "reconciled-2")


def jobs_in_an_object_store(session: SparkSession, folder: Path, namesrv: str, url: str) -> Iterator[Job]:
    """Each job that writes or reads a lake, after one that sends the messages of a store to the broker."""
    shared, store, objects = folder / "shared", folder / "shared" / "store", Archive(url, "objects")
    database = TableSource(f"sqlite:///{folder / 'private' / 'business.db'}")
    yield "replay", lambda: replayed(session, store, namesrv, shared / "ledger")
    yield "archive to an object store", lambda: archive.run_live(session, namesrv, objects).rows
    yield "compact an object store", lambda: compacted(objects)
    yield "search an object store", lambda: found(session, objects, "Copy")
    yield "audit an object store", lambda: audit.run(session, [objects]).messages
    yield "replay an object store", lambda: replayed(session, objects, namesrv, shared / "ledger-4")
    yield (
        "reconcile an object store",
        lambda: missing(session, database, LogSources({"broker-a": store}, [objects]), shared / "reconciled-3"),
    )


def compacted(lake: Archive) -> int:
    lake.compact(min_files=1)
    return sum(len(batch) for batch in lake.scan().batches(["queueOffset"]))


def replayed(session: SparkSession, source: Path | Archive, namesrv: str, ledger: Path) -> tuple[int, int]:
    result = replay.run(session, source, ReplayOptions(namesrv, ledger, "Copy"))
    return result.sent, result.acknowledged


def rebuilt(session: SparkSession, store: Path, shared: Path) -> bool:
    rebuild.run(session, store, shared / "rebuilt")
    rebuild_here(store, shared / "expected")
    return files(shared / "rebuilt") == files(shared / "expected")


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def missing(session: SparkSession, tables: TableSource | Path, logs: LogSources, out: Path) -> int:
    return reconcile.run(session, tables, logs, out).count("never_stored")


def read(session: SparkSession, store: Path) -> int:
    rucola_spark.register(session)
    with translate_spark_errors():
        return session.read.format("rocketmq").option("storePath", str(store)).load().count()


def found(session: SparkSession, lake: Path | Archive, topic: str = "T") -> int:
    return len(search.run(session, lake, Selection(topics=(topic,))).messages)


def main(master: str, folder: str, namesrv: str, url: str | None = None) -> None:
    frugal = {"spark.task.maxFailures": "1", "spark.sql.shuffle.partitions": "1"}
    frugal["spark.executor.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    session = local_session("tests", master=master, configuration=frugal, is_short=True)
    told = {}
    chosen = (
        jobs(session, Path(folder), namesrv)
        if url is None
        else jobs_in_an_object_store(session, Path(folder), namesrv, url)
    )
    for name, job in chosen:
        try:
            told[name] = {"result": job()}
        except MQError as error:
            told[name] = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
