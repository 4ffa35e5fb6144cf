"""Data files of a lake: their schema, layout and opening.

Row files have messages of one topic and UTC day; key files have the key index.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from rucola.errors import StoreError
from rucola.spark.lake.snapshot import KeyFile, RowFile, check_files, file_damage
from rucola.spark.lake.storage import ObjectStore, Storage, storage_of
from rucola.spark.source.columns import SCHEMA

ROW_GROUP_SIZE: Final = 4 << 20
"""Approximate bytes. Small, because a search by key reads one row group per message that it finds."""

FAIL_ON_MISSING_FILES: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options with which Spark reads data files; they override the session's settings."""

MAX_LONG: Final = 2**63 - 1

_NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = {
    ord(character): f"%{ord(character):02X}" for character in [*map(chr, range(1, 0x20)), "\x7f", *"\"#%'*/:=?\\{[]^"]
}
"""Characters that Hive and Spark escape in names of partition directories."""


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the ids of Iceberg's columns: those of the fields in order, then those inside of them."""
    inner = count(len(schema) + 1)

    def numbered(field: pa.Field, number: int) -> pa.Field:
        return field.with_metadata({b"PARQUET:field_id": str(number).encode()})

    fields = []
    for number, field in enumerate(schema, 1):
        kind = field.type
        if pa.types.is_map(kind):
            kind = pa.map_(numbered(kind.key_field, next(inner)), numbered(kind.item_field, next(inner)))
        elif pa.types.is_list(kind):
            kind = pa.list_(numbered(kind.value_field, next(inner)))
        fields.append(numbered(field.with_type(kind), number))
    return pa.schema(fields)


MESSAGES: Final = with_field_ids(SCHEMA)
"""The columns of a row file."""


def partition_directory(topic: str, day: str | None) -> str:
    """Return the directory of the messages of a topic and UTC day, None for those without storeTimestamp."""
    return f"topic={topic.translate(_ESCAPED)}/date={day or _NO_DAY}"


def topic_and_day(path: str) -> tuple[str, str | None]:
    """Return topic and day of a row file, parsed from `.../topic=<topic>/date=<date>/<file>`."""
    topic, day = (unquote(part.partition("=")[2]) for part in path.split("/")[-3:-1])
    return topic, None if day == _NO_DAY else day


@contextmanager
def open_parquet(
    root: Path | Storage, file: RowFile | KeyFile, footer: pq.FileMetaData | None = None
) -> Iterator[pq.ParquetFile]:
    """Open a data file, with checksums verified. A footer that was read before, with its size, saves half of a read.

    Raises StoreCorrupt if it is missing, unreadable or of another size, StoreError if an object store does not answer.
    """
    storage = storage_of(root)
    try:
        if footer is None:
            check_files(storage, [file])
        with (
            storage.reading(file.path) as source,
            pq.ParquetFile(
                source, metadata=footer, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
            ) as opened,
        ):
            yield opened
    except (pa.ArrowException, OSError) as error:
        place, why = storage.place(file.path), f"the file cannot be read: {first_line(error)}"
        if isinstance(storage, ObjectStore) and isinstance(error, OSError):
            raise StoreError(f"{place}: {why}", subject=place) from error
        raise file_damage(storage, file, 0, why) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def row_group_bounds(footer: pq.FileMetaData, column: str) -> list[tuple[Any, Any]]:
    """Return an unsigned column's range in each row group, from the footer's statistics."""
    index = next(number for number, name in enumerate(footer.schema.names) if name == column)
    statistics: list[Any] = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    # Other engines may compact files without statistics.
    return [(each.min, each.max) if each is not None and each.has_min_max else (0, MAX_LONG) for each in statistics]
