"""Encoding of rows as messages of a batch request, thousands at a time.

A message of SEND_BATCH_MESSAGE is a head, the body, the size of its properties and these as one string (see
`rucola.message.batch`). Here each part is an Arrow array of all rows, and joining the arrays row by row gives the
messages side by side: a request is a slice of that. It takes a tenth of what a `Message` for each row takes.

The result is what `message_of` (see `sink`) and `rucola.message.batch` make of a row. Rows that these would refuse, or
that do not go in a batch, are left to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.client.producer.send_request import COMPRESS_THRESHOLD
from rucola.message import properties
from rucola.message.properties import MAX_PROPERTIES_SIZE, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rucola.spark.source.arrays import Array, arrow, bools, ints, mask, scalar, strings
from rucola.spark.source.sink import TAKEN_OVER

_HEAD: Final = np.dtype([("size", ">i4"), ("unused", ">i8"), ("flag", ">i4"), ("body_size", ">i4")])
_SIZE: Final = np.dtype(">u2")
_NOTHING: Final = strings([b""], pa.binary())[0]
_UNIQ_KEY: Final = scalar(properties.UNIQ_KEY)
_NAME_VALUE: Final = scalar(NAME_VALUE_SEPARATOR)
_PAIR: Final = scalar(PROPERTY_SEPARATOR)
_LEFT_OUT: Final = strings([name.encode() for name in sorted(properties.RESERVED - TAKEN_OVER)])
"""Properties that the system set."""


@dataclass(frozen=True)
class EncodedMessages:
    """Messages of rows: that of row k is data[offsets[k]:offsets[k+1]], if `is_batched[k]`.

    A row that is not batched must be sent by itself, or cannot be sent at all; its bytes are of no use.
    """

    data: memoryview
    offsets: list[int]
    is_batched: Array
    unique_keys: list[str]


def encode_rows(rows: pa.RecordBatch) -> EncodedMessages:
    """Return the messages of rows that have the columns body, properties, flag and msgId, none of which is null."""
    bodies, unique_keys = rows["body"], rows["msgId"]
    body_sizes = _sizes(bodies)
    is_small = (body_sizes > 0) & (body_sizes < COMPRESS_THRESHOLD)
    if not is_small.all():
        bodies = pc.if_else(mask(is_small), bodies, _NOTHING)
    joined, is_regular = _joined(rows["properties"], unique_keys)
    sizes = _sizes(joined)
    heads = np.zeros(len(rows), _HEAD)
    heads["size"] = _HEAD.itemsize + body_sizes + _SIZE.itemsize + sizes
    heads["flag"] = ints(rows["flag"])
    heads["body_size"] = body_sizes
    parts = [_binary(heads), bodies, _binary(sizes.astype(_SIZE)), joined]
    messages = pc.binary_join_element_wise(*parts, _NOTHING)
    _, offsets, data = messages.buffers()
    return EncodedMessages(
        memoryview(data) if data else memoryview(b""),
        np.frombuffer(offsets, np.int32, len(messages) + 1, messages.offset * 4).tolist(),
        is_small & is_regular & (sizes <= MAX_PROPERTIES_SIZE),
        unique_keys.to_pylist(),
    )


def _joined(maps: pa.MapArray, unique_keys: pa.StringArray) -> tuple[pa.BinaryArray, Array]:
    """Return the property strings with unique keys, and which of them are regular: they come back as they are."""
    offsets = np.frombuffer(maps.buffers()[1], np.int32, len(maps) + 1, maps.offset * 4) if len(maps) else [0, 0]
    names, values = maps.keys[offsets[0] : offsets[-1]], maps.items[offsets[0] : offsets[-1]]
    row = np.repeat(np.arange(len(maps), dtype=np.int32), np.diff(offsets))
    taken = bools(values.is_valid()) & ~bools(pc.is_in(names, _LEFT_OUT))
    is_key = bools(pc.equal(names, _UNIQ_KEY))
    values = pc.if_else(mask(is_key), unique_keys.take(arrow(row)), values)
    if not taken.all():
        names, values, row = names.filter(mask(taken)), values.filter(mask(taken)), row[taken]
        is_key = is_key[taken]
    counts = np.bincount(row, minlength=len(maps))
    segments = pc.binary_join_element_wise(names, values, _NAME_VALUE)
    lists = pa.ListArray.from_arrays(arrow(np.append(0, np.cumsum(counts)).astype(np.int32)), segments)
    joined = pc.binary_join(lists, _PAIR)
    without = np.ones(len(maps), np.bool_)
    without[row[is_key]] = False
    if without.any():
        key = pc.binary_join_element_wise(_UNIQ_KEY, unique_keys, _NAME_VALUE)
        first = pc.binary_join_element_wise(joined, key, _PAIR)
        joined = pc.if_else(mask(without), pc.if_else(mask(counts == 0), key, first), joined)
        counts = counts + without
    return joined.view(pa.binary()), _regular(joined, counts, names, values, row)


def _regular(joined: pa.StringArray, counts: Array, names: pa.Array, values: pa.Array, row: Array) -> Array:
    """Tell which strings hold as many separators as `counts` pairs need, and no empty name or value."""
    found = np.ones(len(counts), np.bool_)
    found[row[(_sizes(names) == 0) | (_sizes(values) == 0)]] = False
    for separator, expected in ((NAME_VALUE_SEPARATOR, counts), (PROPERTY_SEPARATOR, counts - 1)):
        found &= ints(pc.count_substring(joined, separator)) == expected
    return found


def _sizes(strings: pa.Array) -> Array:
    """Return the bytes of each string, of which none is null."""
    return ints(pc.binary_length(strings)).astype(np.int64)


def _binary(elements: np.ndarray[Any, Any]) -> pa.BinaryArray:
    """Return the bytes of each element of a packed array."""
    offsets = np.arange(0, elements.nbytes + 1, elements.itemsize, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(elements), [None, pa.py_buffer(offsets), pa.py_buffer(elements)]
    )
