"""Removal of damaged row files, without which no run could write any longer. Their messages are lost to the lake.

The files themselves stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rucola.errors import StoreError
from rucola.files import local_path
from rucola.spark.lake.snapshot import check_exists
from rucola.spark.lake.storage import Directory, Storage
from rucola.spark.lake.tables import open_tables, range_of
from rucola.spark.lake.writer import open_lake


@dataclass(frozen=True)
class LostMessages:
    """The messages of a row file, by the statistics in the table, since the file may be unreadable.

    Ranges are inclusive, None if unknown; `broker_name` is None also if there are several.
    """

    path: str
    topic: str
    date: str
    rows: int
    broker_name: str | None
    queue_ids: tuple[int, int] | None
    queue_offsets: tuple[int, int] | None


def messages_of_files(root: str | Path, catalog: str | None, names: Sequence[str]) -> list[LostMessages]:
    """Return the messages of row files, given by their paths or URLs. Raises StoreError for any other file."""
    if catalog is None:
        check_exists(local_path(root).absolute())
    chosen = {}
    with open_tables(root, catalog, reads=True) as tables:
        entries = {}
        if tables is not None:
            rows, files = tables.snapshot().rows, tables.files(tables.messages)
            entries = {row_file.path: (row_file, file) for row_file, file in zip(rows, files, strict=True)}
        for name in names:
            path = next((path for path in _paths(tables.storage, name) if path in entries), None) if tables else None
            if tables is None or path is None:
                raise StoreError(f"{root} has no file of messages {name}; name it as the error does", subject=name)
            row_file, file = entries[path]
            broker_names, queue_ids, queue_offsets = (
                range_of(file, tables.messages, column) for column in ("brokerName", "queueId", "queueOffset")
            )
            broker_name = broker_names[0] if broker_names and broker_names[0] == broker_names[1] else None
            chosen[path] = LostMessages(
                path, row_file.topic, row_file.date, row_file.rows, broker_name, queue_ids, queue_offsets
            )
    return list(chosen.values())


def forget(
    root: str | Path, catalog: str | None, lost: Sequence[LostMessages], *, progress_directory: Path | None = None
) -> None:
    """Remove the files of messages in one commit.

    Raises LakeInUse if another run is writing, or has replaced one of the files; afterwards StoreCorrupt if there is
    another damaged file.
    """
    with open_lake(root, catalog, progress_directory=progress_directory, checks_rows=False, checks_keys=False) as lake:
        lake.forget([each.path for each in lost])


def _paths(storage: Storage, name: str) -> Iterator[str]:
    """Yield what a name may mean as a path in the lake."""
    yield name
    yield storage.relative(name) or name
    if isinstance(storage, Directory):
        path = local_path(name)
        yield storage.relative(str(path.parent.resolve() / path.name)) or name
