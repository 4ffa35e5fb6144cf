"""Selection of the messages that a job takes, from a store or a lake.

A `Selection` is a filter over the columns of `schema.COLUMNS`. It applies to a DataFrame (`of`), to a record batch
(`matches`) and, before anything is read, to the options of the data source (`read_options`) and the files of a lake
(`files_of`).

Every condition that is given must be met; of several topics, tags or keys, one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.pandas.functions import arrow_udf

from rucola.errors import ConfigError
from rucola.message import properties
from rucola.spark.lake.snapshot import RowFile
from rucola.spark.source.arrays import Array, bools, ints, mask, strings, values_of
from rucola.spark.source.option_values import parse_tags, sql92_matcher


@dataclass(frozen=True)
class Selection:
    """Conditions on messages; those that are None ask for nothing.

    `tags` is a subscription such as `TagA || TagB`; `keys` are keys or unique keys. Times are those of storing, in
    milliseconds: `starting_timestamp` is inclusive, `ending_timestamp` exclusive. `expression` is SQL92 over the
    properties (see `rucola.message.sql92`). Raises ConfigError, or InvalidExpression, for what cannot be understood.
    """

    topics: tuple[str, ...] | None = None
    tags: str | None = None
    keys: tuple[str, ...] | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    expression: str | None = None

    def __post_init__(self) -> None:
        begin, end = self.starting_timestamp, self.ending_timestamp
        if begin is not None and end is not None and begin > end:
            raise ConfigError(f"messages stored from {begin} to {end} are asked for, but the first is the later time")
        self._wanted_tags()
        if self.expression is not None:
            sql92_matcher(self.expression)

    def _wanted_tags(self) -> frozenset[str] | None:
        try:
            return None if self.tags is None else parse_tags(self.tags)
        except ValueError as error:
            raise ConfigError(f"tags are {self.tags!r}: {error}") from error

    def read_options(self) -> dict[str, str]:
        """Return the options with which the data source leaves out what is not asked for."""
        found: dict[str, str | int | None] = {
            "subscribe": None if self.topics is None else ",".join(self.topics),
            "subExpression": self.tags,
            "keys": None if self.keys is None else ",".join(self.keys),
            "startingTimestamp": self.starting_timestamp,
            "endingTimestamp": self.ending_timestamp,
        }
        if self.expression is not None and self.tags is None:
            found |= {"subExpression": self.expression, "expressionType": "SQL92"}
        return {name: str(value) for name, value in found.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the conditions that are given, as values that JSON knows."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if value is not None
        }

    def of(self, messages: DataFrame) -> DataFrame:
        """Return the messages that are asked for, with the columns they came with."""
        for condition in self._conditions(by_date="date" in messages.columns):
            messages = messages.where(condition)
        return messages

    def files_of(self, files: Iterable[RowFile]) -> list[RowFile]:
        """Return the files of a lake that may hold messages that are asked for: those of their topics and days."""
        first, last = self.days
        return [
            file for file in files if first <= file.date <= last and (self.topics is None or file.topic in self.topics)
        ]

    @property
    def days(self) -> tuple[str, str]:
        """The first and the last day, as a lake has them, of the messages that are asked for."""
        begin, end = self.starting_timestamp, self.ending_timestamp
        return "" if begin is None else _day(begin).isoformat(), "9999" if end is None else _day(end).isoformat()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `matches` looks at."""
        given = {name for name, value in vars(self).items() if value is not None}
        return tuple(name for name, conditions in _ASKED.items() if given & conditions)

    def matches(self, rows: pa.RecordBatch) -> Array:
        """Tell of each row whether it is asked for, as `of` does, but for its topic."""
        found = np.ones(rows.num_rows, np.bool_)
        if (tags := self._wanted_tags()) is not None:
            found &= _is_in(rows["tags"], tags)
        if self.keys is not None:
            found &= _with_keys(rows, self.keys)
        if self.expression is not None and found.any():
            is_wanted = sql92_matcher(self.expression)
            maps = rows["properties"].filter(mask(found)).to_pylist(maps_as_pydicts="lossy")
            found[found] = [is_wanted(each) for each in maps]
        if self.starting_timestamp is not None:
            found &= ints(rows["storeTimestamp"].view(pa.int64())) >= self.starting_timestamp * 1000
        if self.ending_timestamp is not None:
            found &= ints(rows["storeTimestamp"].view(pa.int64())) < self.ending_timestamp * 1000
        return found

    def _conditions(self, *, by_date: bool) -> Iterator[Column]:
        if self.topics is not None:
            yield F.col("topic").isin(*self.topics)
        if (tags := self._wanted_tags()) is not None:
            yield F.col("tags").isin(*tags)
        if self.keys is not None:
            unique = F.element_at("properties", properties.UNIQ_KEY)
            asked = F.array(*map(F.lit, self.keys))
            yield F.arrays_overlap("keys", asked) | unique.isin(*self.keys)
        if self.expression is not None:
            yield _matches(sql92_matcher(self.expression))(F.col("properties"))
        stored = F.unix_millis("storeTimestamp")
        if self.starting_timestamp is not None:
            yield stored >= self.starting_timestamp
            if by_date:
                yield F.col("date") >= _day(self.starting_timestamp)
        if self.ending_timestamp is not None:
            yield stored < self.ending_timestamp
            if by_date:
                yield F.col("date") <= _day(self.ending_timestamp)


_ASKED: Final = {
    "tags": {"tags"},
    "keys": {"keys"},
    "properties": {"keys", "expression"},
    "storeTimestamp": {"starting_timestamp", "ending_timestamp"},
}
"""The conditions that each column is asked for."""


def _is_in(values: pa.Array, wanted: Iterable[str]) -> Array:
    return bools(pc.is_in(values, strings([each.encode() for each in wanted])))


def _with_keys(rows: pa.RecordBatch, wanted: Iterable[str]) -> Array:
    """Tell which rows have one of these as a key or as their unique key."""
    found = _is_in(values_of(rows["properties"], properties.UNIQ_KEY), wanted)
    hits = _is_in(rows["keys"].flatten(), wanted)
    found[ints(pc.list_parent_indices(rows["keys"]))[hits]] = True
    return found


def _matches(is_wanted: Callable[[Mapping[str, str]], bool]) -> Callable[[Column], Column]:
    """Return the function of Spark that asks this about properties."""

    @arrow_udf("boolean")  # type: ignore[call-overload,untyped-decorator]  # its types know no plain functions
    def ask(maps: pa.Array) -> pa.Array:
        return pa.array([is_wanted(each) for each in maps.to_pylist(maps_as_pydicts="lossy")], pa.bool_())

    asked: Callable[[Column], Column] = ask
    return asked


def _day(timestamp_ms: int) -> date:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).date()
