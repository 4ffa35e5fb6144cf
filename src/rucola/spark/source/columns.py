"""CommitLog records decoded into Arrow columns, thousands at a time, without a Python step for each row.

The fixed bytes of all records are one structured array (`record_layout`), variable parts are gathered by one Arrow call
(`byte_ranges`), and one scan finds all properties (`property_columns`). Irregular values are handled row by row, by
`rucola.message.compression.read_body` and `rucola.message.properties.parse`. The result equals `record.decode`.

A record that contradicts the format or whose CRC is wrong is excluded from the batch and reported as a `DamagedRecord`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rucola.message import properties
from rucola.spark.source.array_conversions import Array, arrow, repeated, strings
from rucola.spark.source.record_layout import BodiesTooLarge, DamagedRecord, Records
from rucola.spark.source.schema import COLUMNS, CORRUPT, LAST_TIME_MS

_log = logging.getLogger(__name__)

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

_TYPES: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": TIMESTAMP,
    "map<string,string>": PROPERTIES,
    "array<string>": pa.list_(pa.field("element", pa.string())),
}

SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])

_NUMBERS: Final = {
    "flag": "flag",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "commitLogOffset": "physical_offset",
    "storeSize": "size",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
}


def decode(
    records: Records, columns: Sequence[str], *, broker_name: str, check_crc: bool = True
) -> Iterator[tuple[pa.RecordBatch, list[DamagedRecord]]]:
    """Yield the named columns, in order, together with the records found damaged.

    Yields several batches if bodies exceed `record_layout.MAX_BODIES_SIZE`. Without the columns `body` and `bodyError`,
    bodies are not examined; a wrong CRC (with `check_crc`) excludes the row.
    """
    damaged: list[DamagedRecord] = []
    made: dict[str, pa.Array] = {}
    if "body" in columns or "bodyError" in columns:
        # 1. Exclude records whose body has the wrong CRC.
        if check_crc:
            wrong = records.body_crcs() != records.heads["body_crc"]
            why = "the body does not match its CRC"
            damaged += [DamagedRecord(int(address), why) for address in records.addresses(wrong)]
            records = records.where(~wrong)
        # 2. Decompress. Bodies that are too large together are decoded in halves, without checking the CRC again.
        try:
            made["body"], errors = records.bodies()
        except BodiesTooLarge:
            first = np.arange(len(records)) < len(records) // 2
            for half in (records.where(first), records.where(~first)):
                for batch, found in decode(half, columns, broker_name=broker_name, check_crc=False):
                    yield batch, damaged + found
                    damaged = []
            return
        # 3. Find the bodies that are as stored.
        made["bodyError"] = pa.nulls(len(records), pa.string())
        if errors:
            _log.warning(
                "%d bodies cannot be decompressed and are returned as stored (column bodyError); the first: %s",
                len(errors), next(iter(errors.values())),
            )  # fmt: skip
            reasons = strings([reason.encode() for reason in errors.values()])
            number = np.full(len(records), -1, np.int32)
            number[list(errors)] = np.arange(len(errors))
            made["bodyError"] = reasons.take(arrow(number, number >= 0))
    # 4. Make the other columns of the records that are left.
    arrays = [made[name] if name in made else _column(name, records, broker_name) for name in columns]
    yield _batch(arrays, columns, len(records)), damaged


def _column(name: str, records: Records, broker_name: str) -> pa.Array:
    match name:
        case "topic":
            return records.topics.dictionary_decode()
        case "properties":
            return records.properties.as_map()
        case "brokerName":
            return repeated(broker_name, len(records))
        case "tags":
            return records.properties.values_of(properties.TAGS)
        case "keys":
            return records.keys()
        case "msgId":
            return records.msg_ids()
        case "offsetMsgId":
            return records.offset_msg_ids()
        case "bornHost":
            return records.hosts("born_host")
        case "storeHost":
            return records.hosts("store_host")
        case "bornTimestamp" | "storeTimestamp":
            # From milliseconds to microseconds; the view changes the type without a copy.
            number, is_time = _milliseconds(name, records)
            if is_time.all():
                return arrow(number * 1000).view(TIMESTAMP)
            return arrow(np.where(is_time, number, 0) * 1000, is_time).view(TIMESTAMP)
        case "bornTimestampRaw" | "storeTimestampRaw":
            number, is_time = _milliseconds(name.removesuffix("Raw"), records)
            return pa.nulls(len(records), pa.int64()) if is_time.all() else arrow(number, ~is_time)
        case _ if name == CORRUPT:
            return pa.nulls(len(records), pa.string())
        case _:
            numbers = records.heads[_NUMBERS[name]]
            return arrow(numbers.astype(numbers.dtype.newbyteorder("=")))


def _milliseconds(name: str, records: Records) -> tuple[Array, Array]:
    number = records.heads[_NUMBERS[name]].astype(np.int64)
    return number, is_time(number)


def is_time(milliseconds: Array) -> Array:
    """Return a mask of the numbers that are a time that the timestamp columns can hold."""
    return (milliseconds >= 0) & (milliseconds <= LAST_TIME_MS)


def corrupt_rows(
    damaged: Sequence[DamagedRecord], columns: Sequence[str], *, broker_name: str, with_offsets: bool = True
) -> pa.RecordBatch:
    """Return one row per damaged record: NULL except brokerName, commitLogOffset (`with_offsets`) and _corrupt."""
    known: dict[str, list[Any]] = {
        "brokerName": [broker_name] * len(damaged),
        CORRUPT: [each.why for each in damaged],
    }
    if with_offsets:
        known["commitLogOffset"] = [each.physical_offset for each in damaged]
    schema = schema_of(columns)
    arrays = [pa.array(known.get(field.name, [None] * len(damaged)), field.type) for field in schema]
    return _batch(arrays, columns, len(damaged))


def _batch(arrays: Sequence[pa.Array], columns: Sequence[str], count: int) -> pa.RecordBatch:
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the fields of these columns in this order; `_corrupt` may be among them."""
    return pa.schema([pa.field(CORRUPT, pa.string()) if name == CORRUPT else SCHEMA.field(name) for name in columns])
