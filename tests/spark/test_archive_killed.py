"""The archive job under kill -9, of its driver and of its workers: nothing is missing then, and nothing is there twice.

What a kill between any two steps of a commit leaves is in test_lake; here the processes are whole, with a runtime
that outlives its driver for a while.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.lake.snapshot import Snapshot
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.session import LazySession
from support.lake_entries import lake_entries
from support.processes import wait_for
from support.small_store import SmallStore
from support.waiting import DEADLINE_S

HERE = LazySession("tests", use_spark=False)

# Where this directory is on the path of a worker, the worker dies behind its first batch while there is a file `kill`.
DYING_WORKER = """
import os, signal, sys

if "rucola.spark.worker_daemon" in sys.orig_argv:
    from rucola.spark.source import log_reader

    def read(*arguments, whole=log_reader.read):
        for batch in whole(*arguments):
            yield batch
            if os.path.exists(KILL):
                os.unlink(KILL)
                os.kill(os.getpid(), signal.SIGKILL)

    log_reader.read = read
"""

# Loses a worker, goes on, and then dies itself when Spark has begun to write, or at the latest when it is done.
DYING_DRIVER = """
import os, signal, sys, threading, time
from pathlib import Path
from rucola.errors import StoreError
from rucola.spark.jobs import archive
from rucola.spark.lake.writer import LakeWriter
from rucola.spark.session import local_session
from rucola.spark.lake.tables import read_snapshot

store, lake, kill = map(Path, sys.argv[1:])
spark = local_session("killed", cores=2, is_short=True)
try:
    archive.run(spark, store, lake)
except StoreError as error:
    print(error)
assert read_snapshot(lake).number == 0
assert not kill.exists()

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

def look():
    while next(lake.glob("data/**/*.parquet"), None) is None:
        time.sleep(0.01)
    die()

LakeWriter.publish = die
threading.Thread(target=look, daemon=True).start()
archive.run(spark, store, lake)
"""

# The command as it is, which dies behind two commits in the middle of the next.
DYING_COMMAND = """
import os, signal
from rucola.cli.main import main
from rucola.spark.lake.tables import Tables

def commit(tables, table, *arguments, whole=Tables.commit):
    whole(tables, table, *arguments)
    if table is tables.keys and tables.snapshot().number == 2:
        os.kill(os.getpid(), signal.SIGKILL)

Tables.commit = commit
main(prog_name="rucola")
"""


def assert_all_once(lake: Path, places: list[int]) -> None:
    batches = Archive(lake).scan().batches(["commitLogOffset"])
    assert sorted(offset for batch in batches for offset in batch[0].to_pylist()) == places
    # Entries of a run that was killed before its messages counted are there twice.
    assert {entry["commitLogOffset"] for entry in lake_entries(lake)} == {*places}


def put(store: SmallStore, count: int) -> list[int]:
    return [store.put("T", n % 3, KEYS=f"k{n}", UNIQ_KEY=f"U{store.end}") for n in range(count)]


@pytest.mark.spark
def test_an_archive_survives_kills_of_worker_and_driver(small_store: SmallStore, tmp_path: Path) -> None:
    lake, kill = tmp_path / "lake", tmp_path / "kill"
    places = put(small_store, 400)
    kill.touch()
    (tmp_path / "sitecustomize.py").write_text(f"KILL = {str(kill)!r}\n{DYING_WORKER}")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", DYING_DRIVER, str(small_store.path), str(lake), str(kill)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert "Python worker exited unexpectedly" in done.stdout
    assert read_snapshot(lake).number == 0
    assert not (lake / "_rucola" / "progress.json").exists()
    assert archive.run(HERE, small_store.path, lake).rows == len(places)
    assert archive.run(HERE, small_store.path, lake).rows == 0
    assert_all_once(lake, places)


@pytest.mark.slow
def test_a_continuous_archive_survives_a_kill(small_store: SmallStore, tmp_path: Path) -> None:
    """Messages keep coming; the driver is killed in the middle of its third commit."""
    lake = tmp_path / "lake"
    places = put(small_store, 50)
    arguments = ["pipeline", "archive", "--store", str(small_store.path), "--out", str(lake), "--every", "0"]

    def state() -> Snapshot:
        return read_snapshot(lake) if (lake / "_rucola").is_dir() else Snapshot()

    with subprocess.Popen([sys.executable, "-c", DYING_COMMAND, *arguments], stdout=subprocess.DEVNULL) as process:
        try:
            for number in (1, 2):
                wait_for(lambda number=number: state().number >= number, process)  # type: ignore[misc]
                places += put(small_store, 50)
            assert process.wait(DEADLINE_S) == -signal.SIGKILL
        finally:
            process.kill()
    assert state().number == 2
    archived = state().progress[str(small_store.path)].physical_offset
    published = json.loads((lake / "_rucola" / "progress.json").read_bytes())
    assert published[str(small_store.path)]["physical_offset"] <= archived
    places += put(small_store, 5)
    archive.run(HERE, small_store.path, lake)
    assert archive.run(HERE, small_store.path, lake).rows == 0
    assert_all_once(lake, places)
