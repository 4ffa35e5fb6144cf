"""Properties of a batch of records as Arrow arrays.

A property string is `name 0x01 value`, pairs separated by 0x02. One scan for the separators over all strings of the
batch finds every name and value. Strings that are malformed, have a repeated name, or are not UTF-8, are passed to
`rucola.message.properties.parse` one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from rucola import speed
from rucola.message import properties
from rucola.spark.source.array_conversions import Array, arrow, ints, strings
from rucola.spark.source.byte_ranges import gather, offsets_and_data, replace_rows

_NAME_VALUE: Final = 1
_PAIR: Final = 2


@dataclass(frozen=True)
class PropertyColumns:
    """Properties of a batch: row k has the pairs from offsets[k] to offsets[k+1]. `names` are dictionary-encoded."""

    offsets: Array
    names: pa.DictionaryArray
    values: pa.StringArray

    @cached_property
    def rows(self) -> Array:
        """The row of each pair."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

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
        index[self.rows[pairs]] = pairs
        return self.values.take(arrow(index, index >= 0))

    def rows_with_repeats(self) -> Array:
        """Return the rows in which a name occurs more than once."""
        # With 3 names, name 1 of row 2 is 7; a second 7 next to it is a repeat in row 7 // 3 = 2.
        pair = np.sort(self.rows * len(self.names.dictionary) + ints(self.names.indices))
        repeated = pair[1:][pair[1:] == pair[:-1]]
        return np.unique(repeated // len(self.names.dictionary)) if len(repeated) else repeated


def parse_properties(log: Array, begins: Array, ends: Array) -> PropertyColumns:
    """Parse log[begin:end], ascending and disjoint ranges; the byte before each must belong to no other range."""
    if (columns := _parse_in_c(log, begins, ends)) is not None:
        parsed, irregular = columns
        return _with_irregular(parsed, irregular, [log[begins[row] : ends[row]].tobytes() for row in irregular])
    # 1. Copy each string together with the byte before it, and overwrite that byte by a pair separator. Now every name
    #    follows a 0x02 and every value a 0x01, across the whole batch, and each ends at the next separator:
    #
    #        \x02 K E Y S \x01 k 1 \x02 T A G S \x01 a | \x02 K E Y S \x01 k 2
    #        2            1        2            1        2            1
    #
    #    Clients in other languages end a string with a separator that separates nothing; it is not copied.
    ended = (ends > begins) & (log[ends - 1] == _PAIR)
    offsets, data = offsets_and_data(gather(log, begins - 1, ends - ended))
    data = data.copy()
    data[offsets[:-1]] = _PAIR

    # 2. Find all separators. A zero byte counts as one, too: it is invalid, and so makes its row irregular.
    separators = np.flatnonzero(data <= _PAIR).astype(np.int32)
    kinds = data[separators]
    begin, end = separators + 1, np.append(separators[1:], np.int32(len(data)))
    of_row = np.searchsorted(separators, offsets).astype(np.int32)

    # 3. Gather names and values of the regular rows. A repeated name is only seen then; its row becomes irregular, and
    #    the step is repeated without it.
    irregular = np.concatenate([_malformed_rows(kinds, begin == end, of_row), _undecodable_rows(offsets, data)])
    while True:
        parsed = _gather_pairs(data, begin, end, of_row, irregular)
        repeated = parsed.rows_with_repeats()
        if not len(repeated):
            break
        irregular = np.append(irregular, repeated)
    # 4. Parse the irregular rows one by one.
    irregular = np.unique(irregular)
    return _with_irregular(parsed, irregular, [data[slice(*offsets[row : row + 2])][1:].tobytes() for row in irregular])


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


def _with_irregular(parsed: PropertyColumns, irregular: Array, plain: Sequence[bytes]) -> PropertyColumns:
    if not len(irregular):
        return parsed
    maps = replace_rows(parsed.as_map(), irregular, _maps([properties.parse(string) for string in plain]))
    return PropertyColumns(ints(maps.offsets), maps.keys.dictionary_encode(), maps.items)


def _gather_pairs(data: Array, begin: Array, end: Array, of_row: Array, irregular: Array) -> PropertyColumns:
    """Return the pairs of rows that are not `irregular`; the separators of row k are of_row[k] to of_row[k+1]."""
    chosen: slice | Array = slice(None)
    pairs = of_row // 2
    if len(irregular):
        counts = np.diff(of_row)
        regular = np.ones(len(counts), np.bool_)
        regular[irregular] = False
        chosen = np.repeat(regular, counts)
        pairs = np.append(0, np.cumsum(counts * regular // 2)).astype(np.int32)
    # In regular rows names and values alternate: the text after an even separator is a name.
    some_begin, some_end = begin[chosen], end[chosen]
    names = gather(data, some_begin[0::2], some_end[0::2]).dictionary_encode()
    values = gather(data, some_begin[1::2], some_end[1::2]).view(pa.string())
    names = pa.DictionaryArray.from_arrays(names.indices, names.dictionary.cast(pa.string()))
    return PropertyColumns(pairs, names, values)


def _malformed_rows(kinds: Array, empty: Array, of_row: Array) -> Array:
    """Return the rows that are not 0x02, name, 0x01, value, ...; `empty` marks separators that no text follows."""
    # Usually all rows are regular, which three passes over `kinds` confirm.
    if len(kinds) % 2 == 0 and (kinds[0::2] == _PAIR).all() and (kinds[1::2] == _NAME_VALUE).all() and not empty.any():
        return np.empty(0, np.int64)
    counts = np.diff(of_row)
    row = np.repeat(np.arange(len(counts)), counts)
    expected = _PAIR - ((np.arange(len(kinds)) - of_row[row]) & 1)  # 2, 1, 2, 1, ... from the beginning of each row
    return np.concatenate([np.flatnonzero(counts % 2), row[(kinds != expected) | empty]])


def _undecodable_rows(offsets: Array, data: Array) -> Array:
    if not len(data) or data.max() < 0x80:
        return np.empty(0, np.int64)
    strings = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        rows = [row for row, (i, j) in enumerate(pairwise(offsets.tolist())) if not is_utf8(data[i:j].tobytes())]
        return np.array(rows, np.int64)
    return np.empty(0, np.int64)


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _maps(plain: Sequence[Mapping[str, str]]) -> pa.MapArray:
    offsets = np.cumsum([0, *map(len, plain)], dtype=np.int32)
    names = strings([name.encode() for pairs in plain for name in pairs])
    values = strings([value.encode() for pairs in plain for value in pairs.values()])
    return pa.MapArray.from_arrays(arrow(offsets), names, values)
