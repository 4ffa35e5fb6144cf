"""Group-by in numpy: an import of `pyarrow.acero` loads pandas, which needs longer than a small job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rucola.spark.source.array_conversions import Array, arrow, combined, ints


class Groups:
    """The rows of a table, grouped by the values of some columns.

    Aggregates return an array with one element per group. `keys` has a row per group, `codes` the group of each row,
    `firsts` one row of each group; `order` has the rows of group k from edges[k] to edges[k+1]. The topics [b, a, b]
    give keys [b, a], codes [0, 1, 0], order [0, 2, 1] and edges [0, 2, 3].
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
        self.order = np.argsort(codes, kind="stable")
        self.edges = np.searchsorted(codes[self.order], np.arange(len(firsts) + 1))

    def table(self, **columns: Array | pa.Array) -> pa.Table:
        """Return the keys with these columns appended; each needs one value per group."""
        found = self.keys
        for name, values in columns.items():
            found = found.append_column(name, arrow(values) if isinstance(values, np.ndarray) else values)
        return found

    def numbers(self) -> list[list[int]]:
        """Return the numbers of the rows of each group, in ascending order."""
        return [rows.tolist() for rows in np.split(self.order, self.edges[1:-1])]

    def count(self) -> Array:
        """Return the number of rows of each group."""
        return np.diff(self.edges)

    def sum(self, values: Array) -> Array:
        """Return the sum of `values` in each group, as int64."""
        return np.add.reduceat(values[self.order].astype(np.int64), self.edges[:-1])

    def min(self, values: Array) -> Array:
        """Return the smallest of `values` in each group."""
        return np.minimum.reduceat(values[self.order], self.edges[:-1])

    def max(self, values: Array) -> Array:
        """Return the largest of `values` in each group."""
        return np.maximum.reduceat(values[self.order], self.edges[:-1])
