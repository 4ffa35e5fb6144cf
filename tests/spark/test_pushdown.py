"""Conditions that are pushed down: the same rows as without, and less that is read."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from rucola.spark.source import batch_reader
from rucola.spark.source.batch_reader import RocketMQPushdownReader
from rucola.spark.source.options import parse_read_options
from support.examples import examples
from support.golden_messages import expected
from support.small_store import SmallStore

pytestmark = pytest.mark.slow

OPERATIONS: dict[type[Filter], Any] = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    In: lambda a, b: a in b,
}
COLUMNS = ("topic", "queueId", "queueOffset", "tags", "storeTimestamp", "commitLogOffset")


def lets_through(each: Filter, row: dict[str, Any]) -> bool:
    """What Spark asks of every row."""
    if isinstance(each, Not):
        value = row[each.child.attribute[0]]
        return value is not None and not lets_through(each.child, row)
    value = row[each.attribute[0]]
    return value is not None and (isinstance(each, IsNotNull) or OPERATIONS[type(each)](value, each.value))


def read(store: Path, filters: list[Filter], **given: str) -> tuple[set[int], int]:
    """The records that a read leaves after Spark has evaluated what the source did not claim, and how many came."""
    options = parse_read_options({"storePath": str(store), "columns": ",".join(COLUMNS), **given})
    narrowed = RocketMQPushdownReader(options, options.columns)
    left = list(narrowed.pushFilters(filters))
    assert all(any(each is given for given in filters) for each in left)
    rows = [row for split in narrowed.partitions() for batch in narrowed.read(split) for row in batch.to_pylist()]
    return {row["commitLogOffset"] for row in rows if all(lets_through(each, row) for each in left)}, len(rows)


def conditions(rows: list[dict[str, Any]]) -> st.SearchStrategy[Filter]:
    """Conditions of which Spark may hand over some, near what is there."""
    times = st.integers(-2, 2).flatmap(
        lambda n: st.sampled_from(rows).map(
            lambda row: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=row["storeTimestamp"], microseconds=n)
        )
    )
    values: dict[str, st.SearchStrategy[Any]] = {
        "topic": st.sampled_from([*sorted({row["topic"] for row in rows}), "Nowhere"]),
        "queueId": st.integers(-1, 4),
        "queueOffset": st.integers(-1, 40),
        "tags": st.sampled_from(["TagA", "TagB", "bad", "none"]),
        "storeTimestamp": times,
    }

    def of_column(name: str) -> st.SearchStrategy[Filter]:
        kinds = st.sampled_from([kind for kind in OPERATIONS if kind is not In])
        compared = st.builds(lambda kind, value: kind((name,), value), kinds, values[name])
        listed = st.builds(lambda some: In((name,), tuple(some)), st.lists(values[name], min_size=1, max_size=3))
        return st.one_of(compared, listed, compared.map(Not), st.just(IsNotNull((name,))))

    return st.sampled_from(sorted(values)).flatmap(of_column)


@settings(max_examples=examples(60))
@given(data=st.data())
def test_pushed_filters_lose_no_matching_row(golden: Path, data: st.DataObject) -> None:
    store = golden / "g1-clean" / "store"
    choices = [
        {},
        {"subscribePattern": "G.*"},
        {"subscribe": "GA,GB", "subExpression": "TagA"},
        {"corruptRecords": "column"},
    ]
    choice = data.draw(st.sampled_from(choices))
    filters = data.draw(st.lists(conditions(expected(golden, "g1-clean")), max_size=4))
    options = parse_read_options({"storePath": str(store), "columns": ",".join(COLUMNS), **choice})
    rows = [
        row
        for split in batch_reader.plan(options)
        for batch in batch_reader.read(split, options, options.columns)
        for row in batch.to_pylist()
    ]
    wanted = {row["commitLogOffset"] for row in rows if all(lets_through(each, row) for each in filters)}
    found, brought = read(store, filters, **choice)
    assert found == wanted
    assert len(wanted) <= brought <= len(rows)


@pytest.mark.parametrize(
    ("filters", "most"),
    [
        ([EqualTo(("topic",), "GA")], 132),
        ([In(("topic",), ("GA", "GB")), LessThan(("queueOffset",), 10)], 60),
        ([EqualTo(("topic",), "GA"), EqualTo(("queueId",), 1), GreaterThanOrEqual(("queueOffset",), 20)], 20),
        ([EqualTo(("topic",), "GA"), EqualTo(("tags",), "TagA")], 50),
        ([EqualTo(("topic",), "Nowhere")], 0),
        ([EqualTo(("tags",), "TagA"), EqualTo(("tags",), "TagB")], 0),
        ([LessThan(("storeTimestamp",), datetime(2000, 1, 1, tzinfo=UTC))], 0),
    ],
)
@pytest.mark.parametrize("choice", [{}, {"subscribePattern": ".*"}])
def test_pushed_filters_skip_rows_that_do_not_match(
    golden: Path, filters: list[Filter], most: int, choice: dict[str, str]
) -> None:
    found, brought = read(golden / "g1-clean" / "store", filters, **choice)
    assert brought == len(found) <= most


@pytest.mark.spark
def test_spark_pushes_filters_to_the_reader(spark: SparkSession, small_store: SmallStore) -> None:
    places = [small_store.put("TU"[n % 2], n % 3, at_ms=1_700_000_000_000 + n, TAGS="AB"[n % 2]) for n in range(30)]
    # A damaged record that is not asked for is not met, so the conditions have gone all the way.
    small_store.overwrite(places[1] + 88, b"X")

    def load() -> Any:
        return spark.read.format("rocketmq").option("pushFilters", "true").load(storePath=str(small_store.path))

    def offsets(condition: str) -> list[int]:
        return sorted(row.commitLogOffset for row in load().where(condition).select("commitLogOffset").collect())

    with pytest.raises(PySparkException, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        load().count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert offsets("topic = 'T'") == places[0::2]
        assert offsets("queueId IN (0, 2) AND tags = 'A'") == [places[n] for n in range(0, 30, 2) if n % 3 != 1]
        assert offsets("storeTimestamp > timestamp_millis(1700000000020) AND queueOffset >= 4") == [
            places[n] for n in range(24, 30)
        ]
        exact = (
            "topic = 'T' AND queueId IN (0, 2) AND queueOffset < 9 AND tags = 'A' AND storeTimestamp >= '2020-01-01'"
        )
        shown = _explained(load().where(f"{exact} AND storeSize > 3"))
        (pushed,) = [line for line in shown.splitlines() if line.startswith("PushedFilters")]
        for column in ("topic", "queueId", "queueOffset", "tags", "storeTimestamp"):
            assert f"({column}," in pushed or f"{column} IN" in pushed, pushed
        (condition,) = [line for line in shown.splitlines() if line.startswith("Condition")]
        assert "storeSize" in condition
        assert "(topic#" not in condition.replace("isnotnull(topic#", "")
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def _explained(frame: DataFrame) -> str:
    with redirect_stdout(io.StringIO()) as shown:
        frame.explain("formatted")
    return shown.getvalue()
