"""The data source inside Spark: the golden stores as tables, and how errors reach the user."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from rucola.spark.source.columns import SCHEMA
from support.small_store import SmallStore

pytestmark = pytest.mark.spark


def load(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**{"storePath": str(store)} | options).load()


def expected(golden: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (golden / name / "expected.jsonl").read_text().splitlines()]


def millis(moment: datetime) -> int:
    return round(moment.astimezone(UTC).timestamp() * 1000)


def as_expected(row: Row) -> dict[str, Any]:
    """A row in the words of expected.jsonl, as far as it has them."""
    return {
        "commitLogOffset": row.commitLogOffset,
        "topic": row.topic,
        "queueId": row.queueId,
        "queueOffset": row.queueOffset,
        "storeSize": row.storeSize,
        "msgId": row.msgId,
        "offsetMsgId": row.offsetMsgId,
        "storeTimestamp": millis(row.storeTimestamp),
        "bornTimestamp": millis(row.bornTimestamp),
        "bornHost": row.bornHost,
        "storeHost": row.storeHost,
        "sysFlag": row.sysFlag,
        "flag": row.flag,
        "reconsumeTimes": row.reconsumeTimes,
        "preparedTransactionOffset": row.preparedTransactionOffset,
        "properties": row.properties,
        "bodyLength": len(row.body),
        "bodySha256": hashlib.sha256(row.body).hexdigest(),
    }


@pytest.mark.parametrize("name", ["g1-clean", "g2-crash"])
def test_golden_stores_are_tables(spark: SparkSession, golden: Path, name: str) -> None:
    """Found by the module `pyspark_rucola`: nothing registers the source here."""
    rows = load(spark, golden / name / "store", includeSystemTopics="true", minPartitions="3").collect()
    found = {row.commitLogOffset: as_expected(row) for row in rows}
    wanted = {each["commitLogOffset"]: each for each in expected(golden, name)}
    assert len(rows) == len(wanted)
    for address, each in wanted.items():
        assert found[address] == {field: each[field] for field in found[address]}
    for row in rows:
        assert row.tags == row.properties.get("TAGS")
        assert row["keys"] == (row.properties["KEYS"].split() if "KEYS" in row.properties else None)


def test_the_schema_is_the_one_that_spark_expects(spark: SparkSession, small_store: SmallStore) -> None:
    assert to_arrow_schema(load(spark, small_store.path).schema, timezone="UTC").equals(SCHEMA)


def test_columns_are_chosen_by_option_and_by_schema(spark: SparkSession, small_store: SmallStore) -> None:
    small_store.put(body=b"b", TAGS="t")
    assert load(spark, small_store.path, columns="tags,topic").collect() == [Row(tags="t", topic="T")]
    assert "body" not in load(spark, small_store.path, includeBody="false").columns
    given = spark.read.format("rocketmq").option("storePath", str(small_store.path))
    assert given.schema("queueId int, body binary").load().collect() == [Row(queueId=0, body=bytearray(b"b"))]
    with pytest.raises(PySparkException, match="the schema must be queueId int"):
        given.schema("queueId bigint").load().collect()
    with pytest.raises(PySparkException, match="unknown columns in the schema: nope"):
        given.schema("nope int").load().collect()


def test_sql_reads_a_store(spark: SparkSession, golden: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW golden_messages USING rocketmq "
        f"OPTIONS (storePath '{golden / 'g1-clean' / 'store'}', subscribePattern 'G.*|%RETRY%.*')"
    )
    counted = {
        row.topic: row.n
        for row in spark.sql("SELECT topic, count(*) AS n FROM golden_messages GROUP BY topic").collect()
    }
    wanted = [row["topic"] for row in expected(golden, "g1-clean") if row["topic"].startswith(("G", "%RETRY%"))]
    assert counted == {topic: wanted.count(topic) for topic in set(wanted)}
