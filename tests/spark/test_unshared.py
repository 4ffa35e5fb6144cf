"""Jobs on a worker that does not have the driver's directories: they are right, or refuse with one sentence.

`python test_unshared.py MASTER FOLDER NAMESRV URL` runs the jobs: with directories that the worker shares, with some
that it does not, and with a lake at URL, in an object store. It prints their results or errors as JSON.
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
from support.servers import RUCOLA
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
    # The worker has access to the catalog by the driver only.
    "archive to an object store": COUNT,
    "compact an object store": COUNT,
    "search an object store": COUNT,
    "audit an object store": COUNT,
    "replay an object store": [COUNT, COUNT],
    "reconcile an object store": 1,
    "rebuild from an object store": COUNT,
}


@pytest.mark.slow
@pytest.mark.spark
def test_jobs_are_right_or_refuse_on_workers_with_other_directories(
    tmp_path: Path, make_sqlite: Callable[[str], OutboxDatabase], table_bucket: TableBucket
) -> None:
    """The worker sees another directory at the path of `private`, with another store of the same size.

    A lake in an object store needs no shared directory.
    """
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
        url, access = f"{table_bucket.url}/a/lake", table_bucket.environment("objects")
        told = run_jobs(master, str(tmp_path), namesrv, url, **access)
        # The command as it is: nothing else is said to the job, and an executor of that worker does it.
        given = "--store", str(store), "--out", str(shared / "by command"), "--master", master, "--json"
        done = subprocess.run([*RUCOLA, "pipeline", "archive", *given], stdout=subprocess.PIPE, text=True, check=True)
        assert json.loads(done.stdout)["rows"] == COUNT
        assert len(list((tmp_path / "cluster" / "work").glob("app-*/0/stderr"))) == 2
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
    assert check(shared / "rebuilt-3") == []


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


def jobs(session: SparkSession, folder: Path, namesrv: str, url: str) -> Iterator[Job]:
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

    # In an object store, of the messages that the first replay has sent to the broker.
    objects = Archive(url, "objects")
    yield "archive to an object store", lambda: archive.run_live(session, namesrv, objects).rows
    yield "compact an object store", lambda: compacted(objects)
    yield "search an object store", lambda: found(session, objects, "Copy")
    yield "audit an object store", lambda: audit.run(session, [objects]).messages
    yield "replay an object store", lambda: replayed(session, objects, namesrv, shared / "ledger-4")
    in_objects = LogSources({"broker-a": store}, [objects])
    yield "reconcile an object store", lambda: missing(session, database, in_objects, shared / "reconciled-3")
    yield "rebuild from an object store", lambda: from_lake(session, objects, shared / "rebuilt-3")
    yield "rebuild from a lake to a private directory", lambda: from_lake(session, lake, private / "rebuilt-2")


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


def from_lake(session: SparkSession, lake: Path | Archive, out: Path) -> int:
    return rebuild.run_from_lake(session, lake, out).kept


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


def main(master: str, folder: str, namesrv: str, url: str) -> None:
    frugal = {"spark.task.maxFailures": "1", "spark.sql.shuffle.partitions": "1"}
    frugal["spark.executor.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    session = local_session("tests", master=master, configuration=frugal, is_short=True)
    told = {}
    for name, job in jobs(session, Path(folder), namesrv, url):
        try:
            told[name] = {"result": job()}
        except MQError as error:
            told[name] = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
