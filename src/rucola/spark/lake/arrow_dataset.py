"""The messages of a lake as an Arrow dataset, which reads only the columns and row groups that a query needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from rucola.spark.lake.snapshot import RowFile, check_files
from rucola.spark.lake.storage import Storage
from rucola.spark.source.columns import SCHEMA


def dataset_of(storage: Storage, files: Sequence[RowFile]) -> ds.Dataset:
    """Return the messages of these files, with the columns of the data source.

    Conditions on topic and storeTimestamp skip files without opening them. Raises StoreCorrupt if a file is missing or
    truncated.
    """
    check_files(storage, files)
    file_system, paths = storage.file_system([file.path for file in files])
    return ds.FileSystemDataset.from_paths(
        paths,
        schema=SCHEMA,
        format=ds.ParquetFileFormat(
            read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"),
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
        ),
        filesystem=file_system,
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
