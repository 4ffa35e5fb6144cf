"""Filter that selects the messages of a job, in a store or a lake.

A `Selection` is a conjunction of conditions, in four equivalent forms: options of the data source, the scan of an
archive, conditions on a DataFrame, and conditions on the rows of a record batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.pandas.functions import arrow_udf

from rucola.errors import ConfigError
from rucola.message import properties
from rucola.spark.archive import ALL_DAYS
from rucola.spark.source.option_values import parse_tags, sql92_matcher
from rucola.spark.source.row_conditions import RowConditions


@dataclass(frozen=True)
class Selection:
    """Conditions on messages; None means no condition. Any one of the topics or keys may match.

    `tags` is a subscription such as `TagA || TagB`; `keys` are keys or unique keys. Timestamps are store timestamps in
    milliseconds, half-open. Raises ConfigError for invalid tags or times, InvalidExpression for an invalid SQL92
    filter.
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
            raise ConfigError(f"the selection begins at {begin}, after its end at {end}")
        self._tag_set()
        if self.expression is not None:
            sql92_matcher(self.expression)

    def _tag_set(self) -> frozenset[str] | None:
        try:
            return None if self.tags is None else parse_tags(self.tags)
        except ValueError as error:
            raise ConfigError(f"tags are {self.tags!r}: {error}") from error

    def read_options(self) -> dict[str, str]:
        """Return options of the data source for as many conditions as possible: of tags and SQL92 only the tags."""
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
        """Return the conditions that are not None as a JSON-serializable dict."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if value is not None
        }

    def filter(self, messages: DataFrame) -> DataFrame:
        """Return the matching rows of a DataFrame, with all its columns."""
        for condition in self._conditions(by_date="date" in messages.columns):
            messages = messages.where(condition)
        return messages

    @property
    def days(self) -> tuple[str, str]:
        """The first and the last day as ISO 8601, unbounded as in `ALL_DAYS`."""
        begin, end = self.starting_timestamp, self.ending_timestamp
        first, last = ALL_DAYS
        return first if begin is None else _day(begin).isoformat(), last if end is None else _day(end).isoformat()

    @property
    def rows(self) -> RowConditions:
        """The conditions on rows; topics are none, since files and queues are pruned by topic."""
        times = self.starting_timestamp, self.ending_timestamp
        return RowConditions(self._tag_set(), self.keys, *times, self.expression)

    def _conditions(self, *, by_date: bool) -> Iterator[Column]:
        if self.topics is not None:
            yield F.col("topic").isin(*self.topics)
        if (tags := self._tag_set()) is not None:
            yield F.col("tags").isin(*tags)
        if self.keys is not None:
            unique = F.element_at("properties", properties.UNIQ_KEY)
            asked = F.array(*map(F.lit, self.keys))
            yield F.arrays_overlap("keys", asked) | unique.isin(*self.keys)
        if self.expression is not None:
            yield _property_filter(sql92_matcher(self.expression))(F.col("properties"))
        stored = F.unix_millis("storeTimestamp")
        if self.starting_timestamp is not None:
            yield stored >= self.starting_timestamp
            # The date is implied by the timestamp; as a partition column it lets Spark skip whole directories.
            if by_date:
                yield F.col("date") >= _day(self.starting_timestamp)
        if self.ending_timestamp is not None:
            yield stored < self.ending_timestamp
            if by_date:
                yield F.col("date") <= _day(self.ending_timestamp)


def _property_filter(is_wanted: Callable[[Mapping[str, str]], bool]) -> Callable[[Column], Column]:
    @arrow_udf("boolean")  # type: ignore[call-overload,untyped-decorator]  # its types know no plain functions
    def evaluate(maps: pa.Array) -> pa.Array:
        return pa.array([is_wanted(each) for each in maps.to_pylist(maps_as_pydicts="lossy")], pa.bool_())

    udf: Callable[[Column], Column] = evaluate
    return udf


def _day(timestamp_ms: int) -> date:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).date()
