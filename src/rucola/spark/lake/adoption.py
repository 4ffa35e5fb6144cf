"""Adoption of a lake of an earlier version, which had lists of files in JSON in place of tables.

    <lake>/topic=<topic>/date=<date>/*.parquet    messages, without these two columns
    <lake>/_rucola/snapshot.json                  the row and key files, and the progress

The files become files of the tables as they are. A commit that was pending is dropped: its messages are archived again.
Queues that were deleted and created again are found by their offsets, since these progresses do not have them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

import msgspec
import pyarrow.parquet as pq

from rucola.errors import StoreCorrupt
from rucola.files import read_inside
from rucola.spark.lake.archived_queues import COUNTED, CountedMessages, queues_of
from rucola.spark.lake.parquet_files import read_file
from rucola.spark.lake.snapshot import METADATA_DIRECTORY, NO_DAY, ArchiveProgress, check_files, lake_damage
from rucola.spark.lake.tables import Tables, Value, partition_of


class _File(msgspec.Struct):
    path: str
    size: int
    topic: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path)
        if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in self.path:
            raise ValueError(f"path {self.path!r} leads out of the lake")


class _Snapshot(msgspec.Struct):
    rows: list[_File]
    keys: list[_File]
    progress: Mapping[str, ArchiveProgress]


def adopt(root: Path, tables: Tables, progress: Callable[[int, int], None] | None = None) -> None:
    """Make the files of a lake of an earlier version those of its tables; nothing for another lake.

    `progress` gets how many of the files with messages are looked at, and their number.
    Can be repeated after a crash. Raises StoreCorrupt if it is damaged.
    """
    own = root / METADATA_DIRECTORY
    path = own / "snapshot.json"
    try:
        snapshot = msgspec.json.decode(read_inside(root, path), type=_Snapshot)
    except FileNotFoundError:
        return
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise lake_damage(path, 0, f"the file cannot be read: {error}") from error
    check_files(root, (*snapshot.rows, *snapshot.keys))
    if tables.keys.current_snapshot() is None:
        tables.commit(tables.keys, [tables.data_file(tables.keys, file.path, []) for file in snapshot.keys])
    if tables.messages.current_snapshot() is None:
        rows, counted = [], CountedMessages()
        for number, file in enumerate(snapshot.rows):
            if progress is not None:
                progress(number, len(snapshot.rows))
            rows.append(tables.data_file(tables.messages, file.path, _partition(root, file)))
            with suppress(StoreCorrupt):  # readers name the file, and `forget` needs the tables
                for _ in counted.passing(read_file(root, tables.row_file(rows[-1]), COUNTED)):
                    pass
        reached = {
            name: each if each.is_live else replace(each, recreated=_recreated(counted, name))
            for name, each in snapshot.progress.items()
        }
        tables.commit(tables.messages, rows, progress=reached)
    shutil.rmtree(own / "staging", ignore_errors=True)
    for name in ("pending.json", "snapshot.json.bak", "snapshot.json"):
        (own / name).unlink(missing_ok=True)


def _recreated(counted: CountedMessages, name: str) -> dict[str, dict[str, tuple[int, ...]]]:
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for queue in queues_of(counted.counts()):
        if queue.broker_name == name and queue.recreated:
            found.setdefault(queue.topic, {})[str(queue.queue_id)] = queue.recreated
    return found


def _partition(root: Path, file: _File) -> list[Value]:
    day = None if file.date == NO_DAY and _has_no_time(root / file.path) else file.date
    return partition_of(file.topic, day)


def _has_no_time(path: Path) -> bool:
    times = pq.read_table(path, columns=["storeTimestamp"], partitioning=None)["storeTimestamp"]
    return int(times.null_count) > 0
