"""Groups of rows and joins of tables, by numpy alone.

Arrow has both in a module whose import loads pandas, which takes longer than a small job.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rucola.spark.source.arrays import Array, arrow, combined, ints


class Groups:
    """The rows of a table, grouped by some of its columns.

    Methods return an array with an element for each group. `keys` has the columns by which rows are grouped, `codes`
    the group of each row, and `firsts` a row of each group; in the order of groups, the rows of group k are from
    edges[k] to edges[k+1].
    """

    def __init__(self, rows: pa.Table, by: Sequence[str]) -> None:
        codes = np.zeros(len(rows), np.int64)
        firsts = np.zeros(min(len(rows), 1), np.int64)
        for name in by:
            encoded = combined(rows[name]).dictionary_encode("encode")
            both = codes * max(len(encoded.dictionary), 1) + ints(encoded.indices)
            _, firsts, codes = np.unique(both, return_index=True, return_inverse=True)
        self.keys = rows.select(list(by)).take(arrow(firsts))
        self.codes, self.firsts = codes, firsts
        self._order = np.argsort(codes, kind="stable")
        self.edges = np.searchsorted(codes[self._order], np.arange(len(firsts) + 1))

    def table(self, **columns: Array | pa.Array) -> pa.Table:
        """Return the keys with these columns behind them."""
        found = self.keys
        for name, values in columns.items():
            found = found.append_column(name, arrow(values) if isinstance(values, np.ndarray) else values)
        return found

    def count(self) -> Array:
        return np.diff(self.edges)

    def sum(self, values: Array) -> Array:
        return np.add.reduceat(values[self._order].astype(np.int64), self.edges[:-1])

    def min(self, values: Array) -> Array:
        return np.minimum.reduceat(values[self._order], self.edges[:-1])

    def max(self, values: Array) -> Array:
        return np.maximum.reduceat(values[self._order], self.edges[:-1])

    def first(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return values.take(arrow(self._order[self.edges[:-1]]))

    def count_distinct(self, rows: pa.Table, names: Sequence[str]) -> Array:
        """Count the different values of these columns; `rows` has them for each row of the table."""
        inner = Groups(rows, names).codes
        both = np.unique(self.codes * (len(rows) + 1) + inner)
        return np.bincount(both // (len(rows) + 1), minlength=len(self.keys))

    def quantile(self, values: Array, share: float) -> Array:
        """Return the least value that so large a share of a group's rows does not exceed."""
        ordered = values[np.lexsort((values, self.codes))]
        return ordered[self.edges[:-1] + np.ceil(share * self.count()).astype(np.int64) - 1]


def join(left: pa.Table, right: pa.Table, by: str) -> pa.Table:
    """Return the pairs of rows that have the same value in a column, with the columns of both; null equals nothing."""
    right = right.filter(right[by].is_valid())
    codes = combined(pa.chunked_array([*left[by].chunks, *right[by].chunks], left[by].type)).dictionary_encode("encode")
    left_codes, right_codes = np.split(ints(codes.indices), [len(left)])
    order = np.argsort(right_codes, kind="stable")
    begin, end = (np.searchsorted(right_codes[order], left_codes, side) for side in ("left", "right"))
    counts = end - begin
    left_rows = np.repeat(np.arange(len(left)), counts)
    within = np.arange(len(left_rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = left.take(arrow(left_rows))
    others = right.drop_columns([by]).take(arrow(order[begin[left_rows] + within]))
    for name in others.column_names:
        found = found.append_column(name, others[name])
    return found
