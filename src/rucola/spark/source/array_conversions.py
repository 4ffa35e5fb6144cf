"""Conversions between numpy, Arrow and Python that do not import pandas (0.2 s), as Arrow's own ones do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def arrow(numbers: Array, valid: Array | None = None) -> pa.Array:
    """Return native-endian numbers as an Arrow array without copying; elements that are not `valid` are null."""
    buffers = [None if valid is None else _bits(valid), pa.py_buffer(np.ascontiguousarray(numbers))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def mask(kept: Array) -> pa.BooleanArray:
    """Return booleans as an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), len(kept), [None, _bits(kept)])


def _bits(values: Array) -> pa.Buffer:
    # Arrow stores booleans and validity as bits, the first element in the lowest bit.
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def strings(values: Sequence[bytes], kind: pa.DataType | None = None) -> pa.Array:
    """Return strings as an Arrow array of type `kind`, by default UTF-8 strings."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind or pa.string(), len(values), buffers)


def binaries(values: Array) -> pa.BinaryArray:
    """Return the bytes of each number, or structure of numbers."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.binary(values.itemsize), len(values), [None, buffer]).cast(pa.binary())


def scalar(value: str) -> pa.StringScalar:
    """Return a string as an Arrow scalar, as arguments of Arrow functions require."""
    return strings([value.encode()])[0]


def repeated(value: str, count: int) -> pa.StringArray:
    """Return an array with the same string `count` times."""
    return strings([value.encode()]).take(arrow(np.zeros(count, np.int32)))


def values_of(maps: pa.MapArray, name: str) -> pa.StringArray:
    """Return the value of a name in each map, null for maps without it."""
    return pc.map_lookup(maps, scalar(name), "first")


def ints(array: pa.Array | pa.ChunkedArray) -> Array:
    """Return integers without nulls as a numpy array. Copies only if there are several chunks."""
    array = combined(array)
    _, data = array.buffers()
    kind = np.dtype(str(array.type))
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize) if len(array) else np.empty(0, kind)


def milliseconds(times: pa.Array | pa.ChunkedArray) -> Array:
    """Return timestamps as milliseconds since 1970, null as 0."""
    found = combined(times).cast(pa.timestamp("us", "UTC")).view(pa.int64())
    return np.where(bools(found.is_valid()), ints(found), 0) // 1000


def combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column of a table as one array, copied if it has several chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:  # which `combine_chunks` copies
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)


def bools(array: pa.BooleanArray | pa.ChunkedArray) -> Array:
    """Return booleans as a numpy array, null as false."""
    array = combined(array)
    valid, data = array.buffers()
    found = _truths(data, array)
    return found if valid is None else found & _truths(valid, array)


def _truths(bits: pa.Buffer, array: pa.BooleanArray) -> Array:
    if not len(array):
        return np.empty(0, np.bool_)
    found = np.unpackbits(np.frombuffer(bits, np.uint8), count=array.offset + len(array), bitorder="little")
    return found[array.offset :].view(np.bool_)
