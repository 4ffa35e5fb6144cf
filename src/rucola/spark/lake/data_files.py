"""Data files of a lake: layout, opening, and entries in a snapshot.

Row files have messages, partitioned by topic and UTC date; key files have the key index. An entry is made from the
footer alone. Readers skip files by its range of commitLogOffset or hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from rucola.spark.lake.snapshot import KeyFile, RowFile, check_file, lake_damage

PARTITION_COLUMNS: Final = ("topic", "date")
"""Columns that are the directory names of a row file, which does not contain them."""

ROW_GROUP_SIZE: Final = 4 << 20
"""Approximate bytes. Small, because a search by key reads one row group per message that it finds."""
FAIL_ON_MISSING_FILES: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options with which Spark reads data files; they override the session's settings."""


def row_file_entry(path: Path, lake_path: str) -> RowFile:
    """Return the snapshot entry of the row file at `path`, which is going to be at `lake_path` in the lake."""
    topic, date = topic_and_date(Path(lake_path))
    footer = pq.read_metadata(path)
    bounds = column_bounds(footer, "commitLogOffset")
    return RowFile(lake_path, topic, date, footer.num_rows, path.stat().st_size, *bounds)


def key_file_entry(path: Path, lake_path: str, run: int) -> KeyFile:
    """Return the snapshot entry of the key file at `path`, which is going to be at `lake_path` in the lake."""
    footer = pq.read_metadata(path)
    return KeyFile(lake_path, run, footer.num_rows, path.stat().st_size, *column_bounds(footer, "hash"))


def topic_and_date(path: Path) -> tuple[str, str]:
    """Return topic and date of a row file, parsed from `.../topic=<topic>/date=<date>/<file>`."""
    topic, date = (unquote(part.partition("=")[2]) for part in path.parts[-3:-1])
    return topic, date


@contextmanager
def open_parquet(root: Path, file: RowFile | KeyFile) -> Iterator[pq.ParquetFile]:
    """Open a data file, with checksums verified.

    Raises StoreCorrupt if it is missing, unreadable or of another size.
    """
    path = root / file.path
    check_file(root, path, file.size)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, coerce_int96_timestamp_unit="us") as opened:
            yield opened
    except (pa.ArrowException, OSError) as error:
        raise lake_damage(root, path, 0, f"the file cannot be read: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def column_bounds(footer: pq.FileMetaData, column: str) -> tuple[int, int]:
    """Return the minimum and maximum of an integer column of a file that has rows."""
    ranges = row_group_bounds(footer, column)
    return min(least for least, _ in ranges), max(most for _, most in ranges)


def row_group_bounds(footer: pq.FileMetaData, column: str) -> list[tuple[Any, Any]]:
    """Return a column's minimum and maximum in each row group, from the footer's statistics."""
    index = next(number for number, name in enumerate(footer.schema.names) if name == column)
    statistics: list[Any] = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    return [(each.min, each.max) for each in statistics]
