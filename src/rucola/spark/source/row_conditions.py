"""Conditions on messages that are rows of record batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.message import properties
from rucola.spark.source.array_conversions import Array, bools, ints, mask, milliseconds, strings, values_of
from rucola.spark.source.option_values import sql92_matcher


@dataclass(frozen=True)
class RowConditions:
    """A conjunction of conditions; None means no condition. Any one of the tags or keys may match.

    Timestamps are store timestamps in milliseconds, half-open; a number that is no time is in no range of times.
    """

    tags: Collection[str] | None = None
    keys: Collection[str] | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    expression: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `matches` needs."""
        found = []
        if self.tags is not None:
            found.append("tags")
        if self.keys is not None:
            found.append("keys")
        if self.keys is not None or self.expression is not None:
            found.append("properties")
        if self._is_timed:
            found.append("storeTimestamp")
        return tuple(found)

    @property
    def _is_timed(self) -> bool:
        return self.starting_timestamp is not None or self.ending_timestamp is not None

    def matches(self, rows: pa.RecordBatch) -> Array:
        """Return a mask of the matching rows."""
        found = np.ones(rows.num_rows, np.bool_)
        if self.tags is not None:
            found &= _is_in(rows["tags"], self.tags)
        if self.keys is not None:
            found &= _has_key(rows, self.keys)
        if self._is_timed:
            stored = milliseconds(rows["storeTimestamp"])
            found &= bools(rows["storeTimestamp"].is_valid())
            if self.starting_timestamp is not None:
                found &= stored >= self.starting_timestamp
            if self.ending_timestamp is not None:
                found &= stored < self.ending_timestamp
        if self.expression is not None and found.any():
            # Properties become Python dicts only for rows that meet the cheaper conditions.
            is_wanted = sql92_matcher(self.expression)
            maps = rows["properties"].filter(mask(found)).to_pylist(maps_as_pydicts="lossy")
            found[found] = [is_wanted(each) for each in maps]
        return found

    def filter(self, rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return the columns `names` of the matching rows."""
        found = self.matches(rows)
        return (rows if found.all() else rows.filter(mask(found))).select(list(names))


def _is_in(values: pa.Array, wanted: Collection[str]) -> Array:
    return bools(pc.is_in(values, strings([each.encode() for each in wanted])))


def _has_key(rows: pa.RecordBatch, wanted: Collection[str]) -> Array:
    found = _is_in(values_of(rows["properties"], properties.UNIQ_KEY), wanted)
    # The keys of all rows are compared in one flat array; the parent indices lead from a hit to its row.
    hits = _is_in(rows["keys"].flatten(), wanted)
    found[ints(pc.list_parent_indices(rows["keys"]))[hits]] = True
    return found
