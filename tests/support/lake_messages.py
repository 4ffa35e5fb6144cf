"""Messages for a lake alone, and their files."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.manifest import DataFile

from rucola.spark.lake.parquet_files import write_row_file
from rucola.spark.lake.tables import Tables, partition_of
from rucola.spark.source.columns import SCHEMA

MIDNIGHT_US = 1_700_006_400_000_000  # 2023-11-15 00:00 UTC


def messages(offsets: Iterable[int]) -> pa.RecordBatch:
    """One message for each physical offset, in two topics."""
    numbers = dict.fromkeys(
        ("flag", "sysFlag", "reconsumeTimes", "preparedTransactionOffset", "queueId", "storeSize"), 0
    )
    times = dict.fromkeys(("bornTimestamp", "storeTimestamp"), MIDNIGHT_US)
    hosts = dict.fromkeys(("bornHost", "storeHost"), "127.0.0.1:10911")
    rows = [
        {
            **dict.fromkeys(SCHEMA.names), **numbers, **times, **hosts,
            "topic": f"T{offset % 2}", "body": b"body", "brokerName": "a", "queueOffset": offset,
            "properties": [("UNIQ_KEY", f"U{offset}")], "msgId": f"U{offset}", "commitLogOffset": offset,
        }
        for offset in offsets
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def added(own: Tables, name: str, offsets: Iterable[int]) -> list[DataFile]:
    """Write messages of one topic, and return their file."""
    path = f"data/{name}.parquet"
    with own.storage.writing(path) as stream:
        write_row_file(pa.Table.from_batches([messages(offsets)]), stream)
    return [own.data_file(own.messages, path, partition_of(f"T{next(iter(offsets)) % 2}", "2023-11-15"))]
