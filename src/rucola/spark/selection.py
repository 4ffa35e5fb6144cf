"""Which messages a job takes: the same question for a store and for a lake.

A `Selection` is a filter over the columns of `schema.COLUMNS`, so it holds wherever the rows come from. What the data
source can leave out by itself it is told besides (`read_options`), and of a lake only the days that matter are read.

Every condition that is given must be met; of several topics, tags or keys, one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.pandas.functions import arrow_udf

from rucola.errors import ConfigError, StoreError
from rucola.message import properties
from rucola.spark.lake import read_lake
from rucola.spark.options import is_store, matching, parse, parse_tags
from rucola.spark.planning import StoreSource
from rucola.spark.session import Spark, session_of
from rucola.spark.snapshot import check_files, is_lake, read_snapshot
from rucola.spark.source import FORMAT


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
            matching(self.expression)

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
            yield _matches(matching(self.expression))(F.col("properties"))
        stored = F.unix_millis("storeTimestamp")
        if self.starting_timestamp is not None:
            yield stored >= self.starting_timestamp
            if by_date:
                yield F.col("date") >= _day(self.starting_timestamp)
        if self.ending_timestamp is not None:
            yield stored < self.ending_timestamp
            if by_date:
                yield F.col("date") <= _day(self.ending_timestamp)


def _matches(is_wanted: Callable[[Mapping[str, str]], bool]) -> Callable[[Column], Column]:
    """Return the function of Spark that asks this about properties."""

    @arrow_udf("boolean")  # type: ignore[call-overload,untyped-decorator]  # its types know no plain functions
    def ask(maps: pa.Array) -> pa.Array:
        return pa.array([is_wanted(each) for each in maps.to_pylist(maps_as_pydicts="lossy")], pa.bool_())

    asked: Callable[[Column], Column] = ask
    return asked


def _day(timestamp_ms: int) -> date:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).date()


def check_source(source: str | Path, selection: Selection) -> None:
    """Raise StoreError unless this is a sound store directory or lake, ConfigError for topics that a store lacks."""
    directory = Path(source).absolute()
    if is_lake(directory):
        check_files(directory, read_snapshot(directory).rows)
        return
    if not is_store(directory):
        raise StoreError(f"{directory} is neither a store directory nor a lake: it holds no commitlog/ and no _rucola/")
    if selection.topics is not None:
        StoreSource(parse({"storePath": str(directory), **selection.read_options()})).bounds()


def messages_of(
    spark: Spark, source: str | Path, selection: Selection, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return what is asked for of a store directory or a lake, whichever `source` is.

    `options` are further ones for the data source, heeded for a store. Raises what `check_source` does.
    """
    check_source(source, selection)
    directory, session = Path(source).absolute(), session_of(spark)
    if is_lake(directory):
        return selection.of(read_lake(session, directory))
    given = {"storePath": str(directory), **selection.read_options(), **(options or {})}
    return selection.of(session.read.format(FORMAT).options(**given).load())
