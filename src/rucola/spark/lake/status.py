"""Figures of a lake's tables, without reading a data file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rucola.files import local_path
from rucola.spark.lake.snapshot import check_exists
from rucola.spark.lake.tables import open_tables

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.snapshots import Snapshot

LATEST: Final = 20


@dataclass(frozen=True)
class ArchivedTopic:
    """Messages, files and bytes of a topic, and the store time of its newest message in ms, None without any."""

    topic: str
    rows: int = 0
    files: int = 0
    size: int = 0
    newest_ms: int | None = None


@dataclass(frozen=True)
class TableCommit:
    """A snapshot: its time in ms, what made it, and the messages it added and left."""

    time_ms: int
    operation: str
    added: int
    rows: int


@dataclass(frozen=True)
class TableStatus:
    """The current state of a lake: its last commit in ms, None without any, and the number of snapshots kept."""

    committed_ms: int | None
    snapshots: int
    key_files: int
    key_size: int
    topics: tuple[ArchivedTopic, ...]
    latest: tuple[TableCommit, ...] = ()
    """The latest snapshots, newest first."""


def table_status(root: str | Path, catalog: str | None = None) -> TableStatus:
    """Read the state of a lake. Raises as `read_snapshot` does."""
    if catalog is None:
        check_exists(local_path(root).absolute())
    with open_tables(root, catalog, reads=True) as tables:
        if tables is None:
            return TableStatus(None, 0, 0, 0, ())
        messages = tables.messages
        number = messages.schema().find_field("storeTimestamp").field_id
        files = tables.files(messages)
        current = messages.current_snapshot()
        keys = tables.files(tables.keys)
        topics: dict[str, list[DataFile]] = {}
        for file in files:
            topics.setdefault(file.partition[1], []).append(file)
        return TableStatus(
            None if current is None else current.timestamp_ms,
            len(messages.metadata.snapshots),
            len(keys),
            sum(file.file_size_in_bytes for file in keys),
            tuple(_topic(topic, of_topic, number) for topic, of_topic in sorted(topics.items())),
            tuple(map(_commit, reversed(messages.metadata.snapshots[-LATEST:]))),
        )


def _commit(snapshot: Snapshot) -> TableCommit:
    found = snapshot.summary
    values = {} if found is None else found.additional_properties
    added, rows = (int(values.get(name, "0")) for name in ("added-records", "total-records"))
    return TableCommit(snapshot.timestamp_ms, "" if found is None else found.operation.value, added, rows)


def _topic(topic: str, files: list[DataFile], stored: int) -> ArchivedTopic:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    bounds = [found for file in files if (found := (file.upper_bounds or {}).get(stored)) is not None]
    newest = max((int(from_bytes(LongType(), each)) // 1000 for each in bounds), default=None)
    rows, size = sum(file.record_count for file in files), sum(file.file_size_in_bytes for file in files)
    return ArchivedTopic(topic, rows, len(files), size, newest)
