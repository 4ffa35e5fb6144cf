"""Rows of a lake encoded as records of the log, thousands at a time: the reverse of `rucola.spark.source.columns`.

A record has the fields of the original, its body and properties, and differs in bytes:

    body         decompressed, and sysFlag says so. One that `bodyError` describes is as stored, and one above
                 `MAX_PLAIN_SIZE` is compressed again
    properties   without what `rucola.message.properties.parse` ignores, and without a final separator
    size, CRC    of these bytes
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.message import sysflag
from rucola.message.compression import compress, compression_type
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.properties import MAX_PROPERTIES_SIZE, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rucola.message.record import HEAD, MESSAGE_MAGIC, body_crcs
from rucola.spark.source.array_conversions import (
    Array,
    arrow,
    binaries,
    bools,
    ints,
    mask,
    milliseconds,
    scalar,
    strings,
)

NAMES: Final = (
    *("topic", "flag", "body", "properties", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp", "tags"),
    *("commitLogOffset", "sysFlag", "bornHost", "storeHost", "reconsumeTimes", "preparedTransactionOffset"),
    *("bodyError", "bornTimestampRaw", "storeTimestampRaw"),
)
"""The columns that are needed."""

MAX_PLAIN_SIZE: Final = 1 << 20
"""The size from which a body that was compressed is compressed again."""


def _part(begin: str | None, end: str | None) -> np.dtype[np.void]:
    """Return the fields of a record's head after `begin` and before `end`, whose hosts have either length here."""
    names = list(HEAD.names or ())
    chosen = names[0 if begin is None else names.index(begin) + 1 : None if end is None else names.index(end)]
    return np.dtype([(name, HEAD[name]) for name in chosen])


_BEFORE_BORN_HOST: Final = _part(None, "born_host")
_BEFORE_BODY: Final = _part("store_host", None)


def tags_codes(rows: pa.RecordBatch) -> Array:
    """Return the tagsCode of each row."""
    tags = rows["tags"].dictionary_encode()
    codes = np.array([*map(tags_code, tags.dictionary.to_pylist()), 0], np.int64)
    return codes[np.where(bools(tags.indices.is_valid()), ints(tags.indices), len(codes) - 1)]


def encode(rows: pa.RecordBatch) -> pa.BinaryArray:
    """Return the record of each row."""
    sys_flags = ints(rows["sysFlag"]).copy()
    bodies = _bodies(rows, sys_flags)
    sizes = ints(pc.binary_length(bodies))
    stored_properties = _properties(rows["properties"])
    topics, born, store = (_fields(rows[name], kind) for name, kind in _KINDS.items())
    after = [topics, binaries(ints(pc.binary_length(stored_properties)).astype(">i2")), stored_properties]
    tail = np.empty(len(rows), _BEFORE_BODY)
    tail["reconsume_times"] = ints(rows["reconsumeTimes"])
    tail["prepared_transaction_offset"] = ints(rows["preparedTransactionOffset"])
    tail["body_size"] = sizes
    between = [born, binaries(times(rows, "storeTimestamp").astype(">i8")), store, binaries(tail), bodies]
    head = np.empty(len(rows), _BEFORE_BORN_HOST)
    head["magic"] = MESSAGE_MAGIC
    head["size"] = _BEFORE_BORN_HOST.itemsize + sum(ints(pc.binary_length(each)) for each in (*between, *after))
    head["body_crc"] = _crcs(bodies)
    head["queue_id"], head["flag"] = ints(rows["queueId"]), ints(rows["flag"])
    head["queue_offset"], head["physical_offset"] = ints(rows["queueOffset"]), ints(rows["commitLogOffset"])
    head["sys_flag"] = sys_flags
    head["born_timestamp"] = times(rows, "bornTimestamp")
    return pc.binary_join_element_wise(binaries(head), *between, *after, _NOTHING)


_NOTHING: Final = strings([b""], pa.binary())[0]


def _topic_field(topic: str) -> bytes:
    data = topic.encode()
    return bytes((len(data),)) + data


_KINDS: Final = {"topic": _topic_field, "bornHost": encode_host, "storeHost": encode_host}


def _fields(column: pa.Array, encoded: object) -> pa.BinaryArray:
    """Return a column in the encoding of its few distinct values."""
    assert callable(encoded)
    found = column.dictionary_encode()
    return strings([encoded(value) for value in found.dictionary.to_pylist()], pa.binary()).take(found.indices)


def times(rows: pa.RecordBatch, name: str) -> Array:
    """Return a column of times as the numbers in the records."""
    raw = rows[f"{name}Raw"]
    return np.where(bools(raw.is_valid()), ints(raw), milliseconds(rows[name]))


def _bodies(rows: pa.RecordBatch, sys_flags: Array) -> pa.BinaryArray:
    """Return the bodies of records, and correct `sys_flags`."""
    bodies = rows["body"]
    plain = (sys_flags & sysflag.COMPRESSED != 0) & ~bools(rows["bodyError"].is_valid())
    large = plain & (ints(pc.binary_length(bodies)) > MAX_PLAIN_SIZE)
    sys_flags[plain & ~large] &= ~(sysflag.COMPRESSED | sysflag.COMPRESSION_MASK)
    if not large.any():
        return bodies
    again = bodies.to_pylist()
    for number in np.flatnonzero(large).tolist():
        again[number] = compress(again[number], compression_type(int(sys_flags[number])))
    return strings(again, pa.binary())


def _properties(maps: pa.MapArray) -> pa.BinaryArray:
    pairs = pc.binary_join_element_wise(maps.keys, maps.items, scalar(NAME_VALUE_SEPARATOR))
    # `keys` and `items` begin with the first row of a slice, as `offsets` does not.
    offsets = ints(maps.offsets)
    lists = pa.ListArray.from_arrays(arrow(offsets - offsets[0]), pairs)
    joined = pc.binary_join(lists, scalar(PROPERTY_SEPARATOR)).cast(pa.binary())
    too_long = ints(pc.binary_length(joined)) > MAX_PROPERTIES_SIZE
    if not too_long.any():
        return joined
    # Only a text that was no UTF-8 can have grown: each wrong byte is a replacement character of three.
    replaced = pc.replace_substring(joined.cast(pa.string()), "\ufffd", "?").cast(pa.binary())
    return pc.if_else(mask(too_long), replaced, joined)


def _crcs(bodies: pa.BinaryArray) -> Array:
    _, positions, data = bodies.buffers()
    ends = np.frombuffer(positions, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
    return body_crcs(memoryview(data or b""), ends[:-1], ends[1:])
