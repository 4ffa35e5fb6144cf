"""Compaction: merges a lake's small row and key index files into few large ones.

    rows    files below `SMALL_SIZE` of one topic and day are merged, sorted by broker and physical offset
    keys    runs of similar size are merged into one run (see `key_index.runs_to_merge`)

Both merges are published by one commit, so a reader sees every message exactly once (see `rucola.spark.lake.writer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from rucola.files import local_path
from rucola.spark.lake.data_files import open_parquet
from rucola.spark.lake.key_index import ENTRY_COLUMNS, entries_of, runs_to_merge, write_entries
from rucola.spark.lake.parquet_files import merge_rows, merged_files, read_file
from rucola.spark.lake.snapshot import RowFile, check_exists
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.lake.writer import KEEP_REPLACED_MS, StagedFiles, open_lake

SMALL_SIZE: Final = 16 << 20
"""Row files below this many bytes are candidates for a merge."""

MIN_FILES: Final = 8
"""Default of the small files of a topic and day, or runs of one size, that make a merge worthwhile."""


@dataclass(frozen=True)
class CompactionResult:
    """Numbers of row and key files that a compaction replaced and wrote, and of merged rows."""

    lake: str
    rows: int = 0
    replaced_row_files: int = 0
    row_files: int = 0
    replaced_key_files: int = 0
    key_files: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dict."""
        return {
            "lake": self.lake,
            "rows": self.rows,
            "rowFiles": {"replaced": self.replaced_row_files, "written": self.row_files},
            "keyFiles": {"replaced": self.replaced_key_files, "written": self.key_files},
        }


def small_files(files: Sequence[RowFile], min_files: int) -> list[RowFile]:
    """Return the files below `SMALL_SIZE` of every topic and day with at least `min_files` of them."""
    by_partition: dict[tuple[str, str | None], list[RowFile]] = {}
    for file in files:
        if file.size < SMALL_SIZE:
            by_partition.setdefault((file.topic, file.day), []).append(file)
    return [file for group in by_partition.values() if len(group) >= min_files for file in group]


def run(
    lake: str | Path,
    catalog: str | None = None,
    *,
    min_files: int = MIN_FILES,
    keep_replaced_ms: int = KEEP_REPLACED_MS,
    progress_directory: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CompactionResult:
    """Merge small files of a lake, and delete files replaced more than `keep_replaced_ms` ago.

    `progress` gets how many of the merged files are written, and their number.

    A topic and day, or a size class of key runs, is merged if it has at least `min_files` small files. Raises
    StoreError if there is no lake, LakeInUse if another run is writing.
    """
    _check_exists(lake, catalog)
    with open_lake(lake, catalog, progress_directory=progress_directory, progress=progress) as target:
        before = target.snapshot()
        groups = merged_files(target.storage, small_files(before.rows, min_files))
        merged = [group for group in groups if len(group) > 1]
        rows = [file for group in merged for file in group]
        runs = runs_to_merge(before.keys, min_files)
        keys = [file for file in before.keys if file.run in runs]
        if not rows and not keys:
            target.expire(keep_replaced_ms)
            return CompactionResult(target.location)
        target.begin()
        row_files = []
        for number, group in enumerate(merged):
            if progress is not None:
                progress(number, len(merged))
            row_files.append(merge_rows(target.storage, group, f"{target.run}-{number:05d}.parquet"))
        key_files, entries = target.merge_keys([partial(open_parquet, target.storage, file) for file in keys])
        target.publish(
            StagedFiles(row_files, key_files, sum(file.rows for file in rows), entries),
            replaces=[file.path for file in rows],
            replaced_keys=[file.path for file in keys],
            keep_replaced_ms=keep_replaced_ms,
        )
        counts = len(rows), len(merged), len(keys), len(key_files)
        return CompactionResult(target.location, sum(file.rows for file in rows), *counts)


def reindex(lake: str | Path, catalog: str | None = None, *, progress: Callable[[int, int], None] | None = None) -> int:
    """Rebuild the key index from the messages, and return the number of its entries.

    `progress` gets how many files of messages are read, and their number.

    Raises StoreError if there is no lake, StoreCorrupt if messages are damaged, LakeInUse if another run is writing.
    """
    _check_exists(lake, catalog)
    with open_lake(lake, catalog, checks_keys=False) as target:
        target.begin()
        before = target.snapshot()
        paths = []
        for number, file in enumerate(before.rows):
            if progress is not None:
                progress(number, len(before.rows))
            batches = read_file(target.storage, file, ENTRY_COLUMNS)
            paths.append(f"{target.staging}/{target.run}-{number:05d}.parquet")
            with target.storage.writing(paths[-1]) as stream:
                entries = [entries_of(each, file.topic, file.date) for each in batches]
                write_entries(pa.concat_tables(entries), stream)
        key_files, count = target.merge_entries(paths)
        staged = StagedFiles(keys=key_files, entry_count=count)
        target.publish(staged, replaced_keys=[file.path for file in before.keys])
        return count


def _check_exists(lake: str | Path, catalog: str | None) -> None:
    """Raise StoreError if there is no lake, which `open_lake` would create."""
    if catalog is None:
        check_exists(local_path(lake))
    else:
        read_snapshot(lake, catalog)
