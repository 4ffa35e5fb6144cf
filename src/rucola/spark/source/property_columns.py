"""Properties of a batch of records as Arrow arrays.

The accelerator parses the strings of a batch in one call. Strings that are malformed, have a repeated name, or are not
UTF-8, and without the accelerator all, are passed to `rucola.message.properties.parse` one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from rucola import speed
from rucola.message import properties
from rucola.spark.source.array_conversions import Array, arrow, ints, strings
from rucola.spark.source.byte_ranges import replace_rows


@dataclass(frozen=True)
class PropertyColumns:
    """Properties of a batch: row k has the pairs from offsets[k] to offsets[k+1]. `names` are dictionary-encoded."""

    offsets: Array
    names: pa.DictionaryArray
    values: pa.StringArray

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {name: code for code, name in enumerate(self.names.dictionary.to_pylist())}

    def as_map(self) -> pa.MapArray:
        """Return the column `properties`, one map per row."""
        return pa.MapArray.from_arrays(arrow(self.offsets), self.names.dictionary_decode(), self.values)

    def values_of(self, name: str) -> pa.StringArray:
        """Return the value of one property per row, null if the row lacks it."""
        code = self._codes.get(name, -1)
        # The pairs are of rows 0 0 1 2 2, and TAGS is in pairs 1 and 4: `index` is 1 -1 4, where -1 becomes null.
        pairs = np.flatnonzero(ints(self.names.indices) == code)
        index = np.full(len(self.offsets) - 1, -1, np.int32)
        index[np.searchsorted(self.offsets, pairs, "right") - 1] = pairs
        return self.values.take(arrow(index, index >= 0))


def parse_properties(log: Array, begins: Array, ends: Array) -> PropertyColumns:
    """Parse log[begin:end] for each range."""
    if (columns := _parse_in_c(log, begins, ends)) is None:
        return _of_maps(_maps(_strings(log, begins, ends)))
    parsed, irregular = columns
    if not len(irregular):
        return parsed
    maps = _maps(_strings(log, begins[irregular], ends[irregular]))
    return _of_maps(replace_rows(parsed.as_map(), irregular, maps))


def _strings(log: Array, begins: Array, ends: Array) -> list[bytes]:
    data = memoryview(log)  # type: ignore[arg-type]  # an array is a buffer
    return [bytes(data[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _parse_in_c(log: Array, begins: Array, ends: Array) -> tuple[PropertyColumns, Array] | None:
    """Return the properties of the regular rows, and the irregular rows; None without the accelerator."""
    if speed.parse_properties is None:
        return None
    found = speed.parse_properties(log, np.ascontiguousarray(begins), np.ascontiguousarray(ends))
    if found is None:
        return None
    offsets, names, codes, value_offsets, values, irregular = found
    count = len(codes) // 4
    indices = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(codes)])
    texts = pa.StringArray.from_buffers(count, pa.py_buffer(value_offsets), pa.py_buffer(values))
    parsed = PropertyColumns(
        np.frombuffer(offsets, np.int32), pa.DictionaryArray.from_arrays(indices, strings(names)), texts
    )
    return parsed, np.frombuffer(irregular, np.int64)


def _of_maps(maps: pa.MapArray) -> PropertyColumns:
    return PropertyColumns(ints(maps.offsets), maps.keys.dictionary_encode(), maps.items)


def _maps(found: Sequence[bytes]) -> pa.MapArray:
    plain = [properties.parse(string) for string in found]
    offsets = np.cumsum([0, *map(len, plain)], dtype=np.int32)
    names = strings([name.encode() for pairs in plain for name in pairs])
    values = strings([value.encode() for pairs in plain for value in pairs.values()])
    return pa.MapArray.from_arrays(arrow(offsets), names, values)
