"""The archive job, in processes that are forked from the run: some are ended by `kill -9` in the middle.

A job archives the store of a broker as its files are at that moment: nothing else of the run happens meanwhile.

Needs the extra `spark`.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final, NamedTuple

import pyiceberg
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow

import rucola
from rucola.errors import MQError, StoreCorrupt
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.lake import compaction, tables  # noqa: F401 - once, before jobs are forked
from rucola.spark.session import LazySession
from rucola.store.directory_reader import StoreReader

WITHOUT_SPARK: Final = LazySession("simulation", use_spark=False)
_PROGRAMS: Final = tuple(str(Path(module.__file__ or "").parent) for module in (rucola, pyiceberg))


class Row(NamedTuple):
    """A message of a log, or of the table."""

    broker: str
    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes


class Archiver:
    """The lake of a run, and the logs that the job has read."""

    def __init__(self, lake: Path, seed: int) -> None:
        self._archive = Archive(lake)
        self._seed = seed
        self._jobs = 0
        self._seen: set[Row] = set()
        self.refused: set[str] = set()
        """Brokers whose log is not the one that was archived before: the job does not go on with it."""
        self.broken: list[str] = []

    def archive(self, broker: str, store: Path, last_call: int = 0) -> str:
        """Archive a store, and return what the job says; it is ended at its call number `last_call`, unless 0."""
        try:
            self._seen |= set(_walk(broker, store))
        except StoreCorrupt as error:  # torn by a power cut, until the broker has recovered it
            return f"the log of {broker} cannot be read: {error}"

        def run() -> str:
            result = archive.run(WITHOUT_SPARK, store, self._archive, broker_name=broker, include_system_topics=True)
            return f"{result.rows} messages of {broker} are archived"

        return self._job(run, broker, last_call)

    def compact(self, last_call: int = 0) -> str:
        """Merge the small files of the lake."""
        if not self._archive.exists:
            return "there is no lake yet"
        return self._job(lambda: f"{self._archive.compact(min_files=2).rows} messages are compacted", "", last_call)

    def _job(self, work: Callable[[], str], broker: str, last_call: int) -> str:
        self._jobs += 1
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            os.urandom = Random(f"{self._seed}/job/{self._jobs}").randbytes  # no two jobs may choose the same names
            try:
                _end_at(last_call)
                said = f"done {work()}"
            except MQError as error:
                said = f"refused {error}"
            except BaseException:
                said = f"failed {traceback.format_exc()}"
            sys.setprofile(None)
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            kind, _, said = file.read().decode().partition(" ")
        os.waitpid(pid, 0)
        match kind:
            case "":
                return "the archive job is ended by kill -9"
            case "refused":
                self.refused.add(broker)
            case "failed":
                self.broken.append(f"archive: {said}")
        return said

    def check(self, stores: Mapping[str, Path]) -> list[str]:
        """The table has each archived message once, and none that the log did not have."""
        if not self._archive.exists:
            return self.broken
        scan = self._archive.scan()
        names = ["brokerName", "commitLogOffset", "topic", "queueId", "queueOffset", "body"]
        counts = Counter(
            Row(*each.values()) for batch in scan.batches(names) for each in batch.select(names).to_pylist()
        )
        broken = list(self.broken)
        broken += [f"archive: {row} is {count} times in the table" for row, count in counts.items() if count > 1]
        broken += [
            f"archive: {row} is in the table, and never was in the log" for row in sorted({*counts} - self._seen)
        ]
        for broker, progress in scan.progress.items():
            if broker not in self.refused:
                log = {row for row in _walk(broker, stores[broker]) if row.physical_offset < progress.physical_offset}
                table = {row for row in counts if row.broker == broker}
                broken += [f"archive: {row} is in the log, and not in the table" for row in sorted(log - table)]
                begin = min(log).physical_offset if log else progress.physical_offset
                gone = sorted(row for row in table - log if row.physical_offset >= begin)
                broken += [f"archive: {row} is in the table, and no more in the log" for row in gone]
        return broken


def _walk(broker: str, store: Path) -> Iterator[Row]:
    with StoreReader(store) as reader:
        for each in reader.walk():
            yield Row(broker, each.physical_offset, each.topic, each.queue_id, each.queue_offset, each.body)


def _end_at(call: int) -> None:
    """Let `kill -9` end this process at that call of a function of the program or of pyiceberg; 0 for none."""

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal call
        if event == "call" and frame.f_code.co_filename.startswith(_PROGRAMS):
            call -= 1
            if not call:
                signal.raise_signal(signal.SIGKILL)

    if call:
        sys.setprofile(called)
