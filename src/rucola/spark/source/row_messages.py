"""Messages made from the rows of a write or a replay.

docs/spark.md describes the columns of a row, of which only `body` is required. Other columns of `schema.COLUMNS` are
ignored, so that rows can be written as they were read.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from rucola.client import Message
from rucola.client.producer.send_request import ALONE, COMPRESS_THRESHOLD
from rucola.errors import ConfigError, InvalidMessage
from rucola.message import properties, sysflag
from rucola.message.batch import HEAD
from rucola.spark.source.array_conversions import Array, arrow, binaries, bools, ints, mask, scalar, strings
from rucola.spark.source.options import SinkOptions
from rucola.spark.source.schema import COLUMNS

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "flag": ("int",),
    "delayLevel": ("int",),
    "msgId": ("string",),
    "shardingKey": ("string",),
    "queueId": ("int", "bigint"),
    "brokerName": ("string",),
    "bodyError": ("string",),
    "sysFlag": ("int", "bigint"),
}

COPIED_PROPERTIES: Final = frozenset({properties.KEYS, properties.TAGS, properties.UNIQ_KEY})
"""System properties that are copied from the column `properties`."""


_OMITTED: Final = strings(
    [name.encode() for name in sorted({*properties.RESERVED} - {properties.KEYS, properties.TAGS})]
)
_PAIRS: Final = "^[^\x01\x02]+\x01[^\x01\x02]+(\x02[^\x01\x02]+\x01[^\x01\x02]+)*$"
_ALONE: Final = f"\x02(({'|'.join(sorted(ALONE))})\x01|{properties.TAGS}\x01[^\x02]*[|][|])"
_BEFORE_NAME: Final = scalar(properties.PROPERTY_SEPARATOR)
_AFTER_NAME: Final = scalar(properties.NAME_VALUE_SEPARATOR)
_UNIQUE_KEY: Final = scalar(properties.UNIQ_KEY + properties.NAME_VALUE_SEPARATOR)
_NO_TEXT: Final = scalar("")
_NO_BYTES: Final = strings([b""], pa.binary())[0]
_NO_BODY: Final = pa.nulls(1, pa.binary())[0]


def check_schema(options: SinkOptions, schema: StructType) -> None:
    """Raise ConfigError unless rows of this schema can be messages."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "body" not in kinds:
        raise ConfigError(f"rows without a column body cannot be messages; they have {', '.join(kinds) or 'none'}")
    if options.topic is None and "topic" not in kinds:
        raise ConfigError("no topic: give the option topic, or rows with a column topic")
    for name, kind in kinds.items():
        if name not in _TYPES and name not in COLUMNS:
            raise ConfigError(f"messages have no column {name}; they may have {', '.join(_TYPES)}")
        if name in _TYPES and kind not in _TYPES[name]:
            raise ConfigError(f"column {name} is {kind}; it must be {' or '.join(_TYPES[name])}", subject=name)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch, with maps as dicts, in a fifth of the time that Arrow needs."""
    columns = {
        field.name: _dicts(batch[field.name]) if pa.types.is_map(field.type) else batch[field.name].to_pylist()
        for field in batch.schema
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _dicts(maps: pa.MapArray) -> list[dict[str, str | None] | None]:
    """The maps of a column; a third of the cost of `to_pylist`."""
    edges = maps.offsets.to_numpy().tolist()
    names, values = (each.to_numpy(zero_copy_only=False).tolist() for each in (maps.keys, maps.items))
    found: list[dict[str, str | None] | None] = [
        dict(zip(names[begin:end], values[begin:end], strict=True)) for begin, end in itertools.pairwise(edges)
    ]
    if maps.null_count:
        for index in np.flatnonzero(maps.is_null().to_numpy(zero_copy_only=False)).tolist():
            found[index] = None
    return found


def row_name(row: Mapping[str, Any], number: int, partition: int) -> str:
    """Return the name of a row for errors: its number in the task, and its keys or msgId."""
    keys = row.get("keys")
    words = keys if isinstance(keys, str) else " ".join(key for key in keys or () if key is not None)
    known = f"keys {words!r}" if words else f"msgId {row['msgId']}" if row.get("msgId") else ""
    return f"row {number} of partition {partition}{f' with {known}' if known else ''}"


def message_of(row: Mapping[str, Any], topic: str | None, number: int, partition: int) -> Message:
    """Return the message of a row, for `topic` or else the row's topic; InvalidMessage names the row."""
    topic, body = topic or row.get("topic"), row["body"]
    if topic is None or body is None:
        missing = "topic" if topic is None else "body"
        raise InvalidMessage(f"{row_name(row, number, partition)} has no {missing}")
    own = {
        name: value
        for name, value in (row.get("properties") or {}).items()
        if value is not None and (name not in properties.RESERVED or name in COPIED_PROPERTIES)
    }
    message = Message(
        topic,
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags"),
        keys=row.get("keys"),
        properties=own,
        flag=row.get("flag") or 0,
        body_flags=sysflag.body_flags(row.get("sysFlag") or 0) if row.get("bodyError") is not None else 0,
    )
    if row.get("msgId"):
        message.unique_key = row["msgId"]
    message.delay_level = row.get("delayLevel") or 0
    return message


def encode_parts(rows: pa.RecordBatch) -> pa.BinaryArray:
    """Return the message of each row as part of a batch (`message.batch`); null for one that needs its own request.

    Messages are those of `message_of` for a topic that may have batches, with the unique key as first property. A row
    from which `message_of` makes none is null as well.
    """
    joined, is_usual = _join_properties(rows["properties"], rows["msgId"])
    body_sizes, joined_sizes = (ints(pc.fill_null(pc.binary_length(each), 0)) for each in (rows["body"], joined))
    is_usual &= (body_sizes > 0) & (body_sizes < COMPRESS_THRESHOLD) & ~bools(rows["bodyError"].is_valid())
    is_usual &= joined_sizes <= properties.MAX_PROPERTIES_SIZE
    head = np.zeros(len(rows), HEAD)
    head["size"] = HEAD.itemsize + body_sizes + 2 + joined_sizes
    head["flag"], head["body_size"] = ints(rows["flag"]), body_sizes
    bodies = rows["body"] if is_usual.all() else pc.if_else(mask(is_usual), rows["body"], _NO_BODY)
    sizes = binaries(joined_sizes.astype(">i2"))
    return pc.binary_join_element_wise(binaries(head), bodies, sizes, joined.cast(pa.binary()), _NO_BYTES)


def _join_properties(maps: pa.MapArray, unique_keys: pa.StringArray) -> tuple[pa.StringArray, Array]:
    """Return the properties of messages as `properties.join` does, and whether they are valid and may be in a batch."""
    names, values = maps.keys, maps.items
    kept = bools(values.is_valid()) & ~bools(pc.is_in(names, _OMITTED))
    pairs = pc.binary_join_element_wise(_BEFORE_NAME, names.filter(mask(kept)), _NO_TEXT)
    pairs = pc.binary_join_element_wise(pairs, values.filter(mask(kept)), _AFTER_NAME)
    offsets = ints(maps.offsets)
    # `keys` and `items` begin with the first row of a slice, as `offsets` does not.
    edges = np.concatenate([np.zeros(1, np.int32), np.cumsum(kept, dtype=np.int32)])[offsets - offsets[0]]
    lists = pc.binary_join(pa.ListArray.from_arrays(arrow(edges), pairs), _NO_TEXT)
    joined = pc.binary_join_element_wise(_UNIQUE_KEY, unique_keys, lists, _NO_TEXT)
    count = ints(pc.fill_null(pc.count_substring(joined, properties.PROPERTY_SEPARATOR), -1))
    is_usual = (count == np.diff(edges)) & bools(pc.match_substring_regex(joined, _PAIRS))
    return joined, is_usual & ~bools(pc.match_substring_regex(joined, _ALONE))
