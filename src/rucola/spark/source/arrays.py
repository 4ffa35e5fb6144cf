"""Arrays between numpy, Arrow and Python, where Arrow's own ways are too dear.

Arrow converts all of these as well, but looks for pandas at the first of its conversions, be it of a single string, and
loading that takes every process a fifth of a second or more. Here only buffers are handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def arrow(numbers: Array, valid: Array | None = None) -> pa.Array:
    """Return numbers, in this machine's order of bytes, as an Arrow array that borrows them; null where not valid."""
    buffers = [None if valid is None else _bits(valid), pa.py_buffer(np.ascontiguousarray(numbers))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def mask(kept: Array) -> pa.BooleanArray:
    """Return truth values as an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), len(kept), [None, _bits(kept)])


def _bits(values: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def strings(values: Sequence[bytes], kind: pa.DataType | None = None) -> pa.Array:
    """Return strings, which are UTF-8 unless `kind` is another, as an Arrow array."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind or pa.string(), len(values), buffers)


def scalar(value: str) -> pa.StringScalar:
    """Return a string as a function of Arrow takes it."""
    return strings([value.encode()])[0]


def repeated(value: str, count: int) -> pa.StringArray:
    """Return an array of the same string `count` times."""
    return strings([value.encode()]).take(arrow(np.zeros(count, np.int32)))


def values_of(maps: pa.MapArray, name: str) -> pa.StringArray:
    """Return the value under a name in each map, null in maps without it."""
    return pc.map_lookup(maps, scalar(name), "first")


def ints(array: pa.Array | pa.ChunkedArray) -> Array:
    """Return integers without nulls as numpy has them; they borrow the array's, unless that is of several chunks."""
    array = combined(array)
    _, data = array.buffers()
    kind = np.dtype(str(array.type))
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize) if len(array) else np.empty(0, kind)


def combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column of a table as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)


def bools(array: pa.BooleanArray | pa.ChunkedArray) -> Array:
    """Return truth values as numpy has them; null counts as false."""
    array = combined(array)
    valid, data = array.buffers()
    found = _truths(data, array)
    return found if valid is None else found & _truths(valid, array)


def _truths(bits: pa.Buffer, array: pa.BooleanArray) -> Array:
    if not len(array):
        return np.empty(0, np.bool_)
    found = np.unpackbits(np.frombuffer(bits, np.uint8), count=array.offset + len(array), bitorder="little")
    return found[array.offset :].view(np.bool_)
