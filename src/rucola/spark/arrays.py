"""Arrays between numpy, Arrow and Python, where Arrow's own ways are too dear.

Arrow converts all of these as well, but looks for pandas at the first of its conversions, and loading that takes every
worker a second or two. Here only buffers are handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

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


def ints(array: pa.Array | pa.ChunkedArray) -> Array:
    """Return integers without nulls as numpy has them; they borrow the array's, unless that is of several chunks."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    _, data = array.buffers()
    kind = np.dtype(str(array.type))
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize) if len(array) else np.empty(0, kind)


def bools(array: pa.BooleanArray) -> Array:
    """Return truth values as numpy has them; null counts as false."""
    if array.null_count:
        array = array.fill_null(False)
    _, data = array.buffers()
    if not len(array):
        return np.empty(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(np.bool_)
