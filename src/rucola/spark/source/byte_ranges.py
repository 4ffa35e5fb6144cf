"""Vectorised access to byte ranges of a buffer, for a whole batch in a constant number of numpy or Arrow calls."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from rucola.spark.source.array_conversions import Array, arrow, strings

_HEX: Final = np.frombuffer(np.arange(1 << 16, dtype=np.uint16).tobytes().hex().upper().encode(), np.uint32)
"""The four hexadecimal digits of every 16-bit value, as one uint32: `_HEX[v]` are the bytes `%02X%02X`."""


def fields_at(log: Array, positions: Array, dtype: np.dtype[Any]) -> Array:
    """Copy the fields at `positions`; `everywhere` is a view of the log with an element at every byte (stride 1)."""
    if not len(positions):
        return np.empty(0, dtype)
    # As opaque bytes an element is copied three times as fast as field by field.
    unstructured = np.dtype(f"V{dtype.itemsize}")
    everywhere = np.ndarray((len(log) - dtype.itemsize + 1,), unstructured, log, strides=(1,))
    return everywhere[positions].view(dtype)


def gather(log: Array, begins: Array, ends: Array) -> pa.BinaryArray:
    """Return log[begin:end] for each range, as one Arrow array with contiguous data.

    The ranges must be ascending and disjoint. Element k of an Arrow binary array is data[offsets[k]:offsets[k+1]]. With
    the log itself as data and the alternating bounds as offsets, every second element is a range. Ranges [2:4] and
    [7:9]:

        log        . . A A b b b C C .
        offsets        0   2     5   7        relative to the first range
        elements       AA  bbb   CC           range, gap, range
        take [0, 2]    AA        CC
    """
    if not len(begins):
        return strings([], pa.binary())
    start, stop = int(begins[0]), int(ends[-1])
    # Row k of this array has the bounds of range k; flattened, it is the offsets buffer.
    offsets = np.empty((len(begins), 2), np.int32)
    offsets[:, 0], offsets[:, 1] = begins - start, ends - start
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(log[start:stop])]
    ranges_and_gaps = pa.Array.from_buffers(pa.binary(), 2 * len(begins) - 1, buffers)
    return ranges_and_gaps.take(arrow(np.arange(0, 2 * len(begins), 2, dtype=np.int32)))


def hexadecimal(packed: Array) -> pa.StringArray:
    """Return each element of a packed array, of an even size, as upper-case hexadecimal: b"\\x0a\\x1b" is "0A1B"."""
    digits = _HEX[packed.view(np.uint16)]
    offsets = np.arange(0, digits.nbytes + 1, packed.itemsize * 2, dtype=np.int32)
    return pa.StringArray.from_buffers(len(packed), pa.py_buffer(offsets), pa.py_buffer(digits))


def replace_rows(array: pa.Array, rows: Array, values: pa.Array) -> pa.Array:
    """Return a copy of `array` in which the elements at `rows` are `values`."""
    # Append the values, then take them in place of the old elements.
    order = np.arange(len(array))
    order[rows] = np.arange(len(array), len(array) + len(rows))
    return pa.concat_arrays([array, values]).take(arrow(order))
