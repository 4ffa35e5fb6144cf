"""Rows of a lake encoded as records of the log, thousands at a time: the reverse of `rucola.spark.source.columns`.

A record has the fields of the original, its body and properties, and differs in bytes:

    body         decompressed, and sysFlag says so. One that `bodyError` describes is as stored, and one above
                 `MAX_PLAIN_SIZE` is compressed again
    properties   without what `rucola.message.properties.parse` ignores, and without a final separator
    size, CRC    of these bytes
"""

from __future__ import annotations

from functools import lru_cache
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
    *("flag", "body", "properties", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp", "tags"),
    *("commitLogOffset", "sysFlag", "bornHost", "storeHost", "reconsumeTimes", "preparedTransactionOffset"),
    *("bodyError", "bornTimestampRaw", "storeTimestampRaw"),
)
"""The columns that are needed."""

MAX_PLAIN_SIZE: Final = 1 << 20
"""The size from which a body that was compressed is compressed again."""


_HOSTS: Final = {"born_host": "bornHost", "store_host": "storeHost"}


@lru_cache
def _head_with_hosts(born_size: int, store_size: int) -> np.dtype[np.void]:
    """Return the fields before the body of a record whose hosts have these sizes."""
    sizes = {"born_host": born_size, "store_host": store_size}
    return np.dtype([(name, f"V{sizes[name]}" if name in sizes else HEAD[name]) for name in HEAD.names or ()])


def tags_codes(rows: pa.RecordBatch) -> Array:
    """Return the tagsCode of each row."""
    tags = rows["tags"].dictionary_encode()
    codes = np.array([*map(tags_code, tags.dictionary.to_pylist()), 0], np.int64)
    return codes[np.where(bools(tags.indices.is_valid()), ints(tags.indices), len(codes) - 1)]


def encode(rows: pa.RecordBatch, topic: str) -> pa.BinaryArray:
    """Return the record of each row, all of one topic."""
    hosts = {field: rows[name].dictionary_encode() for field, name in _HOSTS.items()}
    encoded = {field: [*map(encode_host, each.dictionary.to_pylist())] for field, each in hosts.items()}
    sizes = {field: np.array([*map(len, found)]) for field, found in encoded.items()}
    if any(len({*each.tolist()}) > 1 for each in sizes.values()):  # some have IPv6
        born, store = (sizes[field][ints(each.indices)] for field, each in hosts.items())
        return _encode_apart(rows, topic, born + 100 * store)
    head = np.empty(len(rows), _head_with_hosts(*(int(each[0]) for each in sizes.values())))
    for field, each in hosts.items():
        head[field] = np.frombuffer(b"".join(encoded[field]), head.dtype[field])[ints(each.indices)]
    sys_flags = ints(rows["sysFlag"]).copy()
    bodies = _bodies(rows, sys_flags)
    stored_properties = _properties(rows["properties"])
    topic_field = bytes((len(topic.encode()),)) + topic.encode()
    after = np.empty(len(rows), [("topic", f"V{len(topic_field)}"), ("properties_size", ">i2")])
    after["topic"] = np.void(topic_field)
    after["properties_size"] = properties_sizes = ints(pc.binary_length(stored_properties))
    head["body_size"] = body_sizes = ints(pc.binary_length(bodies))
    head["size"] = head.itemsize + body_sizes + after.itemsize + properties_sizes
    head["magic"] = MESSAGE_MAGIC
    head["body_crc"] = _crcs(bodies)
    head["queue_id"], head["flag"] = ints(rows["queueId"]), ints(rows["flag"])
    head["queue_offset"], head["physical_offset"] = ints(rows["queueOffset"]), ints(rows["commitLogOffset"])
    head["sys_flag"] = sys_flags
    head["born_timestamp"], head["store_timestamp"] = times(rows, "bornTimestamp"), times(rows, "storeTimestamp")
    head["reconsume_times"] = ints(rows["reconsumeTimes"])
    head["prepared_transaction_offset"] = ints(rows["preparedTransactionOffset"])
    return pc.binary_join_element_wise(binaries(head), bodies, binaries(after), stored_properties, _NOTHING)


_NOTHING: Final = strings([b""], pa.binary())[0]
_NAME_VALUE: Final = scalar(NAME_VALUE_SEPARATOR)
_PAIRS: Final = scalar(PROPERTY_SEPARATOR)


def _encode_apart(rows: pa.RecordBatch, topic: str, kinds: Array) -> pa.BinaryArray:
    """Return the record of each row, those of each kind encoded for themselves."""
    parts = [encode(rows.filter(mask(kinds == kind)), topic) for kind in np.unique(kinds)]
    numbers = np.empty(len(rows), np.int64)
    numbers[np.argsort(kinds, kind="stable")] = np.arange(len(rows))
    return pa.concat_arrays(parts).take(arrow(numbers))


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
    pairs = pc.binary_join_element_wise(maps.keys, maps.items, _NAME_VALUE)
    # `keys` and `items` begin with the first row of a slice, as `offsets` does not.
    offsets = ints(maps.offsets)
    lists = pa.ListArray.from_arrays(arrow(offsets - offsets[0]), pairs)
    joined = pc.binary_join(lists, _PAIRS).cast(pa.binary())
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
