"""Rows encoded as messages of batch requests, thousands at a time.

A message of SEND_BATCH_MESSAGE (see `rucola.message.batch`):

    | size 4 | unused 8 | flag 4 | body size 4 | body | properties size 2 | properties |

Each part is an Arrow array over all rows, and one element-wise join yields the contiguous messages. The result equals
`row_messages.message_of` for each row. Rows that it refuses, or that cannot be in a batch, are not `is_batched`.
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
from rucola.spark.source.array_conversions import Array, arrow, bools, ints, mask, scalar, strings
from rucola.spark.source.row_messages import COPIED_PROPERTIES

_HEAD: Final = np.dtype([("size", ">i4"), ("unused", ">i8"), ("flag", ">i4"), ("body_size", ">i4")])
_SIZE: Final = np.dtype(">u2")
_NOTHING: Final = strings([b""], pa.binary())[0]
_UNIQ_KEY: Final = scalar(properties.UNIQ_KEY)
_NAME_VALUE: Final = scalar(NAME_VALUE_SEPARATOR)
_PAIR: Final = scalar(PROPERTY_SEPARATOR)
_LEFT_OUT: Final = strings([name.encode() for name in sorted(properties.RESERVED - COPIED_PROPERTIES)])


@dataclass(frozen=True)
class EncodedMessages:
    """Encoded rows: row k is data[offsets[k]:offsets[k+1]] if `is_batched[k]`.

    Other rows must be sent as single messages or cannot be sent; their bytes are meaningless.
    """

    data: memoryview
    offsets: list[int]
    is_batched: Array
    unique_keys: list[str]


def encode_rows(rows: pa.RecordBatch) -> EncodedMessages:
    """Encode rows that have the columns body, properties, flag and msgId, all without nulls, and bodyError."""
    bodies, unique_keys = rows["body"], rows["msgId"]
    # 1. Empty bodies are invalid, large ones worth compressing, and those that are as stored have a sysFlag: all of
    # these are sent as single messages.
    body_sizes = _sizes(bodies)
    is_small = (body_sizes > 0) & (body_sizes < COMPRESS_THRESHOLD) & bools(rows["bodyError"].is_null())
    if not is_small.all():
        bodies = pc.if_else(mask(is_small), bodies, _NOTHING)
    # 2. Property strings, with the unique keys.
    joined, is_regular = _joined(rows["properties"], unique_keys)
    sizes = _sizes(joined)
    # 3. Heads of fixed size.
    heads = np.zeros(len(rows), _HEAD)
    heads["size"] = _HEAD.itemsize + body_sizes + _SIZE.itemsize + sizes
    heads["flag"] = ints(rows["flag"])
    heads["body_size"] = body_sizes
    # 4. Join the parts row by row; the result is one buffer with an offset for each row.
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
    """Return property strings with the unique keys, and a mask of those that parse back to the same properties."""
    # 1. Flatten the maps to pairs, each with its row; drop null values and system properties.
    offsets = np.frombuffer(maps.buffers()[1], np.int32, len(maps) + 1, maps.offset * 4) if len(maps) else [0, 0]
    names, values = maps.keys[offsets[0] : offsets[-1]], maps.items[offsets[0] : offsets[-1]]
    row = np.repeat(np.arange(len(maps), dtype=np.int32), np.diff(offsets))
    taken = bools(values.is_valid()) & ~bools(pc.is_in(names, _LEFT_OUT))
    # 2. Replace the unique keys of rows that already have one.
    is_key = bools(pc.equal(names, _UNIQ_KEY))
    values = pc.if_else(mask(is_key), unique_keys.take(arrow(row)), values)
    if not taken.all():
        names, values, row = names.filter(mask(taken)), values.filter(mask(taken)), row[taken]
        is_key = is_key[taken]
    # 3. Join names and values to pairs, and pairs to strings.
    counts = np.bincount(row, minlength=len(maps))
    segments = pc.binary_join_element_wise(names, values, _NAME_VALUE)
    lists = pa.ListArray.from_arrays(arrow(np.append(0, np.cumsum(counts)).astype(np.int32)), segments)
    joined = pc.binary_join(lists, _PAIR)
    # 4. Append the unique key in rows that have none.
    without = np.ones(len(maps), np.bool_)
    without[row[is_key]] = False
    if without.any():
        key = pc.binary_join_element_wise(_UNIQ_KEY, unique_keys, _NAME_VALUE)
        first = pc.binary_join_element_wise(joined, key, _PAIR)
        joined = pc.if_else(mask(without), pc.if_else(mask(counts == 0), key, first), joined)
        counts = counts + without
    return joined.view(pa.binary()), _regular(joined, counts, names, values, row)


def _regular(joined: pa.StringArray, counts: Array, names: pa.Array, values: pa.Array, row: Array) -> Array:
    """Return a mask of strings with separators for exactly `counts` pairs, and no empty name or value."""
    found = np.ones(len(counts), np.bool_)
    found[row[(_sizes(names) == 0) | (_sizes(values) == 0)]] = False
    for separator, expected in ((NAME_VALUE_SEPARATOR, counts), (PROPERTY_SEPARATOR, counts - 1)):
        found &= ints(pc.count_substring(joined, separator)) == expected
    return found


def _sizes(strings: pa.Array) -> Array:
    return ints(pc.binary_length(strings)).astype(np.int64)


def _binary(elements: np.ndarray[Any, Any]) -> pa.BinaryArray:
    offsets = np.arange(0, elements.nbytes + 1, elements.itemsize, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(elements), [None, pa.py_buffer(offsets), pa.py_buffer(elements)]
    )
