"""Rows of a lake encoded as records of the log, thousands at a time: the reverse of `rucola.spark.source.columns`.

A record has the fields of the original, its body and properties, and differs in bytes:

    body         decompressed, and sysFlag says so. One that `bodyError` describes is as stored, and one above
                 `MAX_PLAIN_SIZE` is compressed again
    properties   without what `rucola.message.properties.parse` ignores, and without a final separator
    size, CRC    of these bytes

`encode_as_stored` returns records for the places of the originals.
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
from rucola.message.record import HEAD, MESSAGE_MAGIC, MIN_RECORD_SIZE, body_crcs
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
    return _encode(rows, topic, None)


def encode_as_stored(rows: pa.RecordBatch, topic: str) -> pa.BinaryArray:
    """Return the record of each row, with the size of the original, the column storeSize; rows are of one topic.

    Bodies are compressed again, and separators after the properties make up for what is missing. A record may be
    smaller by at least an empty message. One that cannot have such a size is null.
    """
    sizes = ints(rows["storeSize"])
    records = _encode(rows, topic, sizes)
    missing = sizes - ints(pc.binary_length(records))
    return pc.if_else(mask((missing == 0) | (missing > MIN_RECORD_SIZE)), records, pa.scalar(None, pa.binary()))


def _encode(rows: pa.RecordBatch, topic: str, wanted: Array | None) -> pa.BinaryArray:
    hosts = {field: rows[name].dictionary_encode() for field, name in _HOSTS.items()}
    encoded = {field: [*map(encode_host, each.dictionary.to_pylist())] for field, each in hosts.items()}
    sizes = {field: np.array([*map(len, found)]) for field, found in encoded.items()}
    if any(len({*each.tolist()}) > 1 for each in sizes.values()):  # some have IPv6
        born, store = (sizes[field][ints(each.indices)] for field, each in hosts.items())
        return _encode_apart(rows, topic, wanted, born + 100 * store)
    head = np.empty(len(rows), _head_with_hosts(*(int(each[0]) for each in sizes.values())))
    for field, each in hosts.items():
        head[field] = np.frombuffer(b"".join(encoded[field]), head.dtype[field])[ints(each.indices)]
    sys_flags = ints(rows["sysFlag"]).copy()
    stored_properties = _joined(rows["properties"])
    lengths = ints(pc.binary_length(stored_properties))
    too_long = lengths > MAX_PROPERTIES_SIZE
    topic_field = bytes((len(topic.encode()),)) + topic.encode()
    after = np.empty(len(rows), [("topic", f"V{len(topic_field)}"), ("properties_size", ">i2")])
    after["topic"] = np.void(topic_field)
    room = None if wanted is None else wanted - head.itemsize - after.itemsize - lengths
    bodies = _bodies(rows, sys_flags, room)
    head["body_size"] = body_sizes = ints(pc.binary_length(bodies))
    if room is not None:
        missing = room - body_sizes
        padding = np.clip(missing, 0, np.maximum(MAX_PROPERTIES_SIZE - lengths, 0))
        separators = pc.binary_repeat(pa.scalar(PROPERTY_SEPARATOR.encode()), arrow(padding))
        stored_properties = pc.binary_join_element_wise(stored_properties, separators, _NOTHING)
        too_long |= missing < 0
    stored_properties = _shortened(stored_properties, too_long)
    after["properties_size"] = properties_sizes = ints(pc.binary_length(stored_properties))
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


def _encode_apart(rows: pa.RecordBatch, topic: str, wanted: Array | None, kinds: Array) -> pa.BinaryArray:
    """Return the record of each row, those of each kind encoded for themselves."""
    parts = [
        _encode(rows.filter(mask(kinds == kind)), topic, None if wanted is None else wanted[kinds == kind])
        for kind in np.unique(kinds)
    ]
    numbers = np.empty(len(rows), np.int64)
    numbers[np.argsort(kinds, kind="stable")] = np.arange(len(rows))
    return pa.concat_arrays(parts).take(arrow(numbers))


def times(rows: pa.RecordBatch, name: str) -> Array:
    """Return a column of times as the numbers in the records."""
    raw = rows[f"{name}Raw"]
    return np.where(bools(raw.is_valid()), ints(raw), milliseconds(rows[name]))


def _bodies(rows: pa.RecordBatch, sys_flags: Array, room: Array | None) -> pa.BinaryArray:
    """Return the bodies of records, and correct `sys_flags`; with the room for each, all are compressed again."""
    bodies = rows["body"]
    plain = (sys_flags & sysflag.COMPRESSED != 0) & ~bools(rows["bodyError"].is_valid())
    large = plain if room is not None else plain & (ints(pc.binary_length(bodies)) > MAX_PLAIN_SIZE)
    sys_flags[plain & ~large] &= ~(sysflag.COMPRESSED | sysflag.COMPRESSION_MASK)
    if not large.any():
        return bodies
    again = bodies.to_pylist()
    for number in np.flatnonzero(large).tolist():
        kind = compression_type(int(sys_flags[number]))
        compressed = compress(again[number], kind)
        if room is not None and len(compressed) > room[number]:  # another library made the original
            compressed = compress(again[number], kind, level=9)
        again[number] = compressed
    return strings(again, pa.binary())


def _joined(maps: pa.MapArray) -> pa.BinaryArray:
    pairs = pc.binary_join_element_wise(maps.keys, maps.items, _NAME_VALUE)
    # `keys` and `items` begin with the first row of a slice, as `offsets` does not.
    offsets = ints(maps.offsets)
    lists = pa.ListArray.from_arrays(arrow(offsets - offsets[0]), pairs)
    return pc.binary_join(lists, _PAIRS).cast(pa.binary())


def _shortened(joined: pa.BinaryArray, too_long: Array) -> pa.BinaryArray:
    if not too_long.any():
        return joined
    # Only a text that was no UTF-8 can have grown: each wrong byte is a replacement character of three.
    replaced = pc.replace_substring(joined.cast(pa.string()), "\ufffd", "?").cast(pa.binary())
    return pc.if_else(mask(too_long), replaced, joined)


def _crcs(bodies: pa.BinaryArray) -> Array:
    _, positions, data = bodies.buffers()
    ends = np.frombuffer(positions, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
    return body_crcs(memoryview(data or b""), ends[:-1], ends[1:])
