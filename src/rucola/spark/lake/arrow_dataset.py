"""The messages of a lake as an Arrow dataset, which reads only the columns and row groups that a query needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from rucola.spark.lake.snapshot import RowFile, check_files
from rucola.spark.source.columns import SCHEMA


def dataset_of(root: Path, files: Sequence[RowFile]) -> ds.Dataset:
    """Return the messages of these files, with the columns of the data source.

    Conditions on topic and storeTimestamp skip files without opening them. Raises StoreCorrupt if a file is missing or
    truncated.
    """
    check_files(root, files)
    return ds.FileSystemDataset.from_paths(
        [str(root / file.path) for file in files],
        schema=SCHEMA,
        format=ds.ParquetFileFormat(
            read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"),
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
        ),
        filesystem=LocalFileSystem(),
        partitions=[_partition(file) for file in files],
    )


def _partition(file: RowFile) -> pc.Expression:
    """Return what holds for all rows of a file, from which Arrow takes the topic if the file lacks the column."""
    topic, stored = pc.field("topic") == file.topic, pc.field("storeTimestamp")
    if file.day is None:
        return topic
    begin = datetime.fromisoformat(f"{file.day}T00:00:00+00:00")
    bounds = [pa.scalar(time, SCHEMA.field("storeTimestamp").type) for time in (begin, begin + timedelta(days=1))]
    return topic & (stored >= bounds[0]) & (stored < bounds[1])
