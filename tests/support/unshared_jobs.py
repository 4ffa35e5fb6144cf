"""All jobs on a cluster, once with directories that the worker shares, and once with some that it does not.

`python unshared_jobs.py MASTER FOLDER NAMESRV` prints what each job did as JSON: its result, or its error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rucola import spark as rucola_spark
from rucola.errors import MQError
from rucola.spark.archive import Archive
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.jobs import archive, audit, rebuild, reconcile, replay, search
from rucola.spark.jobs.reconciled_log import LogSources
from rucola.spark.jobs.replay import ReplayOptions
from rucola.spark.jobs.selection import Selection
from rucola.spark.jobs.table_export import TableSource
from rucola.spark.lake.snapshot import read_snapshot
from rucola.spark.session import local_session
from rucola.store.tools.rebuild import rebuild as rebuild_here

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
    yield "compact a private lake", lambda: Archive(private / "lake").compact(min_files=1).rows
    yield "compact", lambda: compacted(session, lake)
    yield "repair a private lake", lambda: repaired(session, private / "lake")
    yield "repair", lambda: repaired(session, lake)
    yield "reconcile a private export", lambda: missing(session, private / "export", logs, shared / "reconciled-2")


def replayed(session: SparkSession, source: Path, namesrv: str, ledger: Path) -> tuple[int, int]:
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


def found(session: SparkSession, lake: Path) -> int:
    return len(search.run(session, lake, Selection(topics=("T",))).messages)


def compacted(session: SparkSession, lake: Path) -> tuple[int, int]:
    result = Archive(lake).compact(min_files=1)
    return result.rows, sum(file.entries for file in read_snapshot(lake).keys)


def repaired(session: SparkSession, lake: Path) -> tuple[int, int]:
    for name in ("snapshot.json", "snapshot.json.bak"):
        (lake / "_rucola" / name).unlink(missing_ok=True)
    result = Archive(lake).repair()
    return result.rows, sum(file.entries for file in read_snapshot(lake).keys)


def main(master: str, folder: str, namesrv: str) -> None:
    frugal = {"spark.task.maxFailures": "1", "spark.sql.shuffle.partitions": "1"}
    frugal["spark.executor.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    session = local_session("tests", master=master, configuration=frugal, is_short=True)
    told = {}
    for name, job in jobs(session, Path(folder), namesrv):
        try:
            told[name] = {"result": job()}
        except MQError as error:
            told[name] = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
