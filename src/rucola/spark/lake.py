"""The lake: archived messages as Parquet, and how far each store is archived.

    <lake>/topic=<topic>/date=<UTC date of storeTimestamp>/<store>-<physical offset>-<number>.parquet
    <lake>/_rucola/progress.json        how far each store is archived, and each of its queues
    <lake>/_rucola/pending.json         a run that is being published
    <lake>/_rucola/staging/             files of a run that is not published yet
    <lake>/_rucola/lock                 held by the one run that writes

Spark and its like pass over names that begin with `_`, so the lake can be read as one Parquet table at any time.
Topics are escaped in paths as Hive does: `%RETRY%g` is `topic=%25RETRY%25g`.

A run is published once, whenever it is killed. Its files are written to staging and made durable; then `pending.json`
names every file, the place where it goes and the progress it makes, and from then on the run counts. The files are
moved, the progress is written, `pending.json` is removed. The next run begins by doing again what `pending.json`
says, where every step that was done before is left out, and removes what lies in staging without being pending.
While files are moved a reader may see a part of a run, never a row twice.

The lake must be on a file system of this machine that renames atomically.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from rucola.errors import ConfigError, StoreCorrupt, StoreError
from rucola.files import replace_file
from rucola.spark.schema import COLUMNS, ddl

PARTITION_COLUMNS: Final = ("topic", "date")
_COLUMNS: Final = (*COLUMNS, "date")
_DDL: Final = f"{ddl(tuple(COLUMNS))}, date date"


@dataclass(frozen=True)
class Progress:
    """How far one store is archived.

    Every record before `physical_offset` is. `queues` has the next queue offset of each queue, {topic: {queue id as
    text: offset}}. The last archived record is known by its address and msgId, so that another store in the same
    place is noticed.
    """

    physical_offset: int
    last_physical_offset: int | None = None
    last_msg_id: str | None = None
    queues: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Lake:
    """The lake in one directory, for the one who writes to it. Made by `open_lake`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own = root / "_rucola"
        self._progress_path = self._own / "progress.json"
        self._pending_path = self._own / "pending.json"
        self.staging = self._own / "staging"

    def progress(self) -> dict[str, Progress]:
        """Return how far each store is archived, by broker name."""
        return {name: Progress(**entry) for name, entry in _read_json(self._progress_path).items()}

    def publish(self, broker_name: str, begin: int, progress: Progress) -> list[Path]:
        """Make the staged files part of the lake, and `progress` that of the store. Returns the new files.

        `begin` is the physical offset at which the run began; with the name it tells the run from all others.
        """
        staged = sorted(self.staging.glob("*/*/*.parquet"))
        label = f"{zlib.crc32(broker_name.encode()):08x}-{begin:020d}"
        moves = {}
        for number, path in enumerate(staged):
            _sync(path)
            place = path.parent.relative_to(self.staging) / f"{label}-{number:05d}.parquet"
            moves[str(path.relative_to(self.staging))] = str(place)
        everyone = self.progress() | {broker_name: progress}
        pending = {"moves": moves, "progress": {name: asdict(each) for name, each in everyone.items()}}
        replace_file(self._pending_path, json.dumps(pending).encode())
        self.finish()
        return [self.root / place for place in moves.values()]

    def finish(self) -> None:
        """Carry out what is pending, and leave nothing in staging."""
        if self._pending_path.exists():
            pending = _read_json(self._pending_path)
            for source, place in pending["moves"].items():
                path, target = self.staging / source, self.root / place
                if path.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)
                elif not target.exists():
                    raise StoreError(
                        f"{target} of an interrupted run is gone, and so is {path}; the lake is incomplete"
                    )
            for directory in {(self.root / place).parent for place in pending["moves"].values()}:
                _sync(directory)
                _sync(directory.parent)
            _sync(self.root)
            replace_file(self._progress_path, json.dumps(pending["progress"], indent=1).encode())
            self._pending_path.unlink()
        shutil.rmtree(self.staging, ignore_errors=True)


@contextmanager
def open_lake(root: str | Path) -> Iterator[Lake]:
    """Open the lake in a directory for writing, make it if it is new, and finish what an earlier run left.

    Raises ConfigError for what cannot hold a lake, StoreError when another run is writing to it.
    """
    if "://" in str(root):
        raise ConfigError(f"{root} is no local path; the lake must lie on a file system of this machine")
    root = Path(root).absolute()
    own = root / "_rucola"
    if root.exists() and not own.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} holds other things than a lake; give an empty or a new directory")
    own.mkdir(parents=True, exist_ok=True)
    lock = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"another run is writing to {root}; wait until it has ended") from error
        lake = Lake(root)
        lake.finish()
        yield lake
    finally:
        os.close(lock)


def read_lake(spark: SparkSession, root: str | Path) -> DataFrame:
    """Return all archived messages, with the columns of `schema.COLUMNS` and `date`.

    Topics stay text: reading the directory without a schema, Spark would take topics such as `007` for numbers.
    """
    return spark.read.schema(_DDL).parquet(str(root)).select(*_COLUMNS)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StoreCorrupt(path, 0, f"this is no JSON: {error}") from error
    return content


def _sync(path: Path) -> None:
    """Wait until a file's bytes or a directory's names are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
