"""Reading and archiving growing stores: time must grow as the store does, memory must not.

With `--full` the store grows from 1 to 8 GiB of 1 KB records, and is read and archived as a whole at every size, each
time into a new lake; that takes some ten minutes and 20 GB of disk. Otherwise it grows from 128 to 256 MiB, without an
aim.

Memory is the maximum that was resident at once in the driver, in its Java process and in any Python worker, sampled
several times a second. It includes pages of mapped files, which the kernel may reclaim.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from pyspark.sql import SparkSession

from figures import Aim, Figure
from floors import Options
from processes import below, text
from ready import drop
from rucola.spark.jobs import archive
from rucola.spark.session import local_session
from rucola.spark.source import data_source
from written import write

TOPIC = "BenchScale"
RECORD_SIZE = 1024
FULL_SIZES_MIB = (1024, 2048, 4096, 8192)
SIZES_MIB = (128, 256)
MOST_GROWTH = 1.1
_LOOK_INTERVAL_S = 0.1


@dataclass
class Peaks:
    """The maximum resident at once, in MB: the driver, Java, and the largest Python worker."""

    driver: float = 0
    java: float = 0
    worker: float = 0

    def look(self) -> None:
        """Sample this process and its descendants."""
        self.driver = max(self.driver, _resident(os.getpid()))
        for pid in below(os.getpid()):
            name = text(pid, "comm").strip()
            if name == "java":
                self.java = max(self.java, _resident(pid))
            elif name.startswith("python"):
                self.worker = max(self.worker, _resident(pid))


@dataclass
class Act:
    """The seconds and the memory of one job, by MiB of log."""

    name: str
    act: Callable[[], None]
    seconds: dict[int, float] = field(default_factory=dict)
    peaks: dict[int, Peaks] = field(default_factory=dict)

    def run(self, mib: int) -> None:
        with _watched() as self.peaks[mib]:
            begin = time.perf_counter()
            self.act()
            self.seconds[mib] = time.perf_counter() - begin

    def figures(self, aims: list[Aim]) -> list[Figure]:
        """Return seconds per MiB, and memory, of the largest size as multiples of those of the smallest."""
        least, most = min(self.seconds), max(self.seconds)
        first, last = self.peaks[least], self.peaks[most]
        growth = self.seconds[most] / most / (self.seconds[least] / least)
        memory = (last.driver + last.worker) / (first.driver + first.worker)
        span = f"from_{least}_to_{most}_MiB"
        return [
            Figure(
                f"{self.name}_time_a_MiB_{span}",
                growth,
                "x",
                aims=aims,
                more={f"s_at_{mib}_MiB": seconds for mib, seconds in self.seconds.items()},
            ),
            Figure(
                f"{self.name}_memory_{span}",
                memory,
                "x",
                aims=aims,
                more={
                    f"{name}_MB_at_{mib}_MiB": getattr(peaks, name)
                    for mib, peaks in self.peaks.items()
                    for name in ("driver", "worker", "java")
                },
            ),
        ]


def measure(options: Options) -> list[Figure]:
    """Grow a store, and read and archive it at every size."""
    session = local_session("rucola-bench")
    try:
        with TemporaryDirectory(prefix="rucola-bench-") as name:
            if options.is_full:
                return _grow(session, Path(name), FULL_SIZES_MIB, [Aim("value", MOST_GROWTH)])
            return _grow(session, Path(name), SIZES_MIB, [])
    finally:
        session.stop()


def _grow(session: SparkSession, folder: Path, sizes_mib: tuple[int, ...], aims: list[Aim]) -> list[Figure]:
    store, lake = folder / "store", folder / "lake"
    stored = 0

    def read() -> None:
        drop(session.read.format(data_source.FORMAT).option("storePath", str(store)).load())

    def archive_all() -> None:
        summary = archive.run(session, store, lake)
        if summary.rows != stored:
            raise RuntimeError(f"{stored} messages are stored, and {summary.rows} were archived")

    acts = [Act("read", read), Act("archive", archive_all)]
    for mib in (sizes_mib[0], *sizes_mib):  # the first one is a warm-up
        count = mib * (1 << 20) // RECORD_SIZE
        write(store, TOPIC, RECORD_SIZE, count, first=stored)
        stored = count
        os.sync()
        for act in acts:
            act.run(mib)
        shutil.rmtree(lake)
    return [figure for act in acts for figure in act.figures(aims)]


@contextmanager
def _watched() -> Iterator[Peaks]:
    """Yield the peaks of the time in which the block runs."""
    peaks, ended = Peaks(), Event()

    def watch() -> None:
        while not ended.wait(_LOOK_INTERVAL_S):
            peaks.look()

    thread = Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _resident(pid: int) -> float:
    fields = text(pid, "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6 if fields else 0.0
