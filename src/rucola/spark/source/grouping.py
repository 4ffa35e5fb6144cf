"""Group-by and inner join in numpy: an import of `pyarrow.acero` loads pandas, which needs longer than a small job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rucola.spark.source.array_conversions import Array, arrow, combined, ints


class Groups:
    """The rows of a table, grouped by the values of some columns.

    Aggregates return an array with one element per group. `keys` has a row per group, `codes` the group of each row,
    `firsts` one row of each group; rows of group k are edges[k] to edges[k+1] once the rows are sorted by group. The
    topics [b, a, b] give keys [b, a], codes [0, 1, 0] and edges [0, 2, 3].
    """

    def __init__(self, rows: pa.Table, by: Sequence[str]) -> None:
        codes = np.zeros(len(rows), np.int64)
        firsts = np.zeros(min(len(rows), 1), np.int64)
        # Each column refines the groups of the columns before it: (code so far, code in this column) becomes one
        # number, and np.unique renumbers the numbers that occur, which also keeps them small enough for int64.
        for name in by:
            encoded = combined(rows[name]).dictionary_encode("encode")
            both = codes * max(len(encoded.dictionary), 1) + ints(encoded.indices)
            _, firsts, codes = np.unique(both, return_index=True, return_inverse=True)
        self.keys = rows.select(list(by)).take(arrow(firsts))
        self.codes, self.firsts = codes, firsts
        self._order = np.argsort(codes, kind="stable")
        self.edges = np.searchsorted(codes[self._order], np.arange(len(firsts) + 1))

    def table(self, **columns: Array | pa.Array) -> pa.Table:
        """Return the keys with these columns appended; each needs one value per group."""
        found = self.keys
        for name, values in columns.items():
            found = found.append_column(name, arrow(values) if isinstance(values, np.ndarray) else values)
        return found

    def count(self) -> Array:
        """Return the number of rows of each group."""
        return np.diff(self.edges)

    def sum(self, values: Array) -> Array:
        """Return the sum of `values` in each group, as int64."""
        return np.add.reduceat(values[self._order].astype(np.int64), self.edges[:-1])

    def min(self, values: Array) -> Array:
        """Return the smallest of `values` in each group."""
        return np.minimum.reduceat(values[self._order], self.edges[:-1])

    def max(self, values: Array) -> Array:
        """Return the largest of `values` in each group."""
        return np.maximum.reduceat(values[self._order], self.edges[:-1])

    def first(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the value of each group's first row in the order of the table."""
        return values.take(arrow(self._order[self.edges[:-1]]))

    def count_distinct(self, rows: pa.Table, names: Sequence[str]) -> Array:
        """Count the distinct combinations of the columns `names` of `rows`, which is aligned with the grouped table."""
        inner = Groups(rows, names).codes
        both = np.unique(self.codes * (len(rows) + 1) + inner)
        return np.bincount(both // (len(rows) + 1), minlength=len(self.keys))

    def quantile(self, values: Array, share: float) -> Array:
        """Return the smallest value that at least `share` (0 to 1) of a group's rows do not exceed."""
        ordered = values[np.lexsort((values, self.codes))]
        return ordered[self.edges[:-1] + np.ceil(share * self.count()).astype(np.int64) - 1]


def join(left: pa.Table, right: pa.Table, by: str) -> pa.Table:
    """Return the inner join of two tables on the column `by`; null matches nothing.

    Both columns get one dictionary, and the right rows are sorted by code: each left row matches a range of them.
    `left_rows` repeats each left row once per match, and `within` counts the matches: with counts [2, 0, 1] they are
    [0, 0, 2] and [0, 1, 0].
    """
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
