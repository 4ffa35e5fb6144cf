"""The data source by SQL: tables of the catalog, views, paths; reading and INSERT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from rucola.errors import ConfigError
from rucola.spark.source.data_source import RocketMQSource
from rucola.spark.source.schema import COLUMNS
from support.broker_thread import broker_thread
from support.documents import Document
from support.errors import raises
from support.live_reads import read
from support.small_store import SmallStore

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def catalog(spark: SparkSession) -> Iterator[None]:
    """Nothing of a test stays in the catalog of the session."""
    yield
    for table in ("messages", "other", "flights", "delayed"):
        spark.sql(f"DROP VIEW IF EXISTS {table}") if spark.catalog.tableExists(table) and _is_view(
            spark, table
        ) else None
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def _is_view(spark: SparkSession, table: str) -> bool:
    return spark.catalog.getTable(table).isTemporary


def fill(store: SmallStore) -> None:
    for n in range(6):
        store.put("TU"[n % 2], n % 3, b"body %d" % n, TAGS="ab"[n % 2], KEYS=f"k{n}")


def said(spark: SparkSession, statement: str) -> str:
    with pytest.raises(PySparkException) as raised:
        spark.sql(statement).collect()
    return str(raised.value)


@pytest.mark.parametrize("form", ["OPTIONS (storePath '{}')", "OPTIONS (path '{}')", "LOCATION '{}'"])
def test_a_table_is_a_store(spark: SparkSession, tmp_path: Path, form: str) -> None:
    store = SmallStore(tmp_path / "a störe")
    fill(store)
    spark.sql(f"CREATE TABLE messages USING rocketmq {form.format(store.path)} COMMENT 'all of them'")
    assert spark.table("messages").columns == list(COLUMNS)
    assert spark.sql("SELECT count(*) FROM messages").first() == Row(6)
    rows = spark.sql("SELECT topic, decode(body, 'utf-8') AS text, keys FROM messages WHERE tags = 'a' ORDER BY text")
    assert rows.collect() == [Row("T", f"body {n}", [f"k{n}"]) for n in (0, 2, 4)]
    # Options of the query are added to those of the table.
    assert spark.sql("SELECT count(*) FROM messages WITH (subscribe 'U')").first() == Row(3)
    assert spark.read.option("subscribe", "T").table("messages").count() == 3
    store.put("T")
    assert spark.table("messages").count() == 7


def test_a_path_is_a_store(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    fill(small_store)
    other = SmallStore(tmp_path / "other")
    fill(other)
    reader = spark.read.format("rocketmq")
    assert reader.load(str(small_store.path)).count() == 6
    assert reader.load(f"file://{small_store.path}").count() == 6
    assert reader.load([str(small_store.path), str(other.path)]).count() == 12
    with pytest.raises(PySparkException, match="option path is 's3a://bucket/store'"):
        reader.load("s3a://bucket/store")
    with pytest.raises(PySparkException, match="options storePath and path contradict each other"):
        reader.option("storePath", str(small_store.path)).load(str(other.path))
    with pytest.raises(PySparkException, match="no option 'path' for a write; it has nameServer"):
        spark.range(1).write.format("rocketmq").mode("append").save(str(small_store.path))


def test_a_path_in_sql_is_refused_by_spark(spark: SparkSession, small_store: SmallStore) -> None:
    """Spark reads by path what is a format of files. A view comes nearest."""
    fill(small_store)
    refused = said(spark, f"SELECT * FROM rocketmq.`{small_store.path}`")
    assert "Unsupported data source type for direct query on files: rocketmq" in refused
    spark.sql(f"CREATE TEMPORARY VIEW messages USING rocketmq OPTIONS (path '{small_store.path}')")
    assert spark.sql("SELECT count(*) FROM messages").first() == Row(6)


def test_rows_are_inserted(spark: SparkSession, tmp_path: Path) -> None:
    """By name or in a list of columns; in a table of one topic that need not be said."""
    with broker_thread(tmp_path, "T", "U") as namesrv:
        spark.sql(
            f"CREATE TABLE messages USING rocketmq OPTIONS (nameServer '{namesrv}', topic 'T', producerGroup 'g')"
        )
        spark.sql("INSERT INTO messages (body, keys) VALUES (encode('a', 'utf-8'), array('k1'))")
        spark.sql("INSERT INTO messages BY NAME SELECT encode('b', 'utf-8') AS body, 'red' AS tags")
        rows = spark.sql("SELECT decode(body, 'utf-8') AS text, keys, tags, topic FROM messages ORDER BY text")
        assert rows.collect() == [Row("a", ["k1"], None, "T"), Row("b", None, "red", "T")]
        # All columns by position, as they are read.
        spark.sql("INSERT INTO messages SELECT * FROM messages WHERE tags = 'red'")
        assert [row["body"] for row in read(namesrv, subscribe="T")].count(b"b") == 2
        spark.table("messages").where("tags IS NULL").write.insertInto("messages")
        assert [row["body"] for row in read(namesrv, subscribe="T")].count(b"a") == 2

        # A table of all topics: each row says its own.
        spark.sql(f"CREATE TABLE other USING rocketmq OPTIONS (nameServer '{namesrv}')")
        spark.sql("INSERT INTO other (topic, body) VALUES ('U', encode('c', 'utf-8'))")
        assert [row["body"] for row in read(namesrv, subscribe="U")] == [b"c"]
        assert "has no body" in said(spark, "INSERT INTO other (topic) VALUES ('U')")
        assert "has no topic" in said(spark, "INSERT INTO other (body) VALUES (encode('c', 'utf-8'))")
        assert "Cannot write extra columns `nope`" in said(spark, "INSERT INTO other BY NAME SELECT 1 AS nope")
        assert "not enough data columns" in said(spark, "INSERT INTO other SELECT encode('c', 'utf-8')")
        assert "messages cannot be overwritten" in said(spark, "INSERT OVERWRITE other BY NAME SELECT 'T' AS topic")


def test_a_view_is_read_and_written(spark: SparkSession, tmp_path: Path) -> None:
    """With columns of its own it can have those that only a write knows, such as delayLevel."""
    with broker_thread(tmp_path, "T") as namesrv:
        given = f"USING rocketmq OPTIONS (nameServer '{namesrv}', topic 'T')"
        spark.sql(f"CREATE TEMPORARY VIEW messages {given}")
        spark.sql("INSERT INTO messages (body) VALUES (encode('a', 'utf-8'))")
        assert spark.sql("SELECT decode(body, 'utf-8') FROM messages").collect() == [Row("a")]
        spark.sql(f"CREATE TEMPORARY VIEW other (body string, delayLevel int, keys string) {given}")
        spark.sql("INSERT INTO other VALUES ('b', 0, 'k1 k2')")
        (row,) = (row for row in read(namesrv, subscribe="T") if row["body"] == b"b")
        assert row["keys"] == ["k1", "k2"]


def test_a_table_is_streamed(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    fill(small_store)
    spark.sql(f"CREATE TABLE messages USING rocketmq OPTIONS (path '{small_store.path}', startingOffsets 'earliest')")
    stream = spark.readStream.table("messages").writeStream.format("parquet").trigger(availableNow=True)
    stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "out")).awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 6


def test_options_of_a_table_stay_with_it(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    """Its columns travel with a DataFrame into other writes, which have options of their own."""
    fill(small_store)
    with broker_thread(tmp_path, "T", "U", "Other") as namesrv:
        given = f"(path '{small_store.path}', producerGroup 'g', topic 'T')"
        spark.sql(f"CREATE TABLE messages USING rocketmq OPTIONS {given}")
        rows = spark.table("messages").selectExpr("'U' AS topic", "body")
        rows.write.format("rocketmq").option("nameServer", namesrv).mode("append").save()
        assert len(read(namesrv, subscribe="U")) == 3
        rows = spark.table("messages").select("topic", "body")
        rows.write.format("rocketmq").options(nameServer=namesrv, topic="Other").mode("append").save()
        assert len(read(namesrv, subscribe="Other")) == 3
        assert read(namesrv, subscribe="T") == []


def test_a_stream_into_a_table_names_the_brokers_itself(spark: SparkSession, tmp_path: Path) -> None:
    """Spark gives streams none of the options of a table."""
    spark.range(3).selectExpr("cast(id AS string) AS body").write.parquet(str(tmp_path / "rows"))

    def stream(number: int, **options: str) -> None:
        rows = spark.readStream.schema("body string").parquet(str(tmp_path / "rows")).writeStream.options(**options)
        rows.option("checkpointLocation", str(tmp_path / f"{number}")).trigger(availableNow=True).toTable(
            "messages"
        ).awaitTermination()

    with broker_thread(tmp_path, "T") as namesrv:
        spark.sql(f"CREATE TABLE messages USING rocketmq OPTIONS (nameServer '{namesrv}', topic 'T')")
        with pytest.raises(PySparkException, match="option nameServer is missing"):
            stream(1)
        stream(2, nameServer=namesrv, topic="T")
        assert len(read(namesrv, subscribe="T")) == 3


def test_the_statements_of_the_page_work(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    (block,) = Document.read("docs/spark.md").texts("sql")
    small_store.put("Flights", body=b"one", KEYS="N14228", TAGS="UA")
    small_store.put("Other")
    with broker_thread(tmp_path / "broker", "Flights") as namesrv:
        block = block.replace("/var/rocketmq/store", str(small_store.path)).replace("host:9876", namesrv)
        found = [spark.sql(statement).collect() for statement in block.split(";") if statement.strip()]
        assert sorted(found[1]) == [Row("Flights", 1), Row("Other", 1)]
        assert found[2] == [Row(1)]
        sent = {row["body"]: row for row in read(namesrv, subscribe="Flights")}
        assert sent.keys() == {b"departed", b"one"}
        assert (sent[b"departed"]["keys"], sent[b"one"]["tags"]) == (["N14228"], "UA")


def test_invalid_table_definitions_are_refused(spark: SparkSession, small_store: SmallStore) -> None:
    path = small_store.path
    assert "no option 'storepaht' for a table; it has storePath" in said(
        spark, f"CREATE TABLE messages USING rocketmq OPTIONS (storePaht '{path}')"
    )
    assert "none of the options storePath, nameServer and lake is given" in said(
        spark, "CREATE TABLE messages USING rocketmq"
    )
    assert "a table needs a column" in said(
        spark, f"CREATE TABLE messages USING rocketmq OPTIONS (path '{path}', columns '')"
    )
    assert "/nowhere is not a store directory" in said(
        spark, "CREATE TABLE messages USING rocketmq LOCATION '/nowhere'"
    )
    # With columns, or by a query, Spark keeps the options to itself.
    spark.sql(f"CREATE TABLE messages (body binary) USING rocketmq OPTIONS (path '{path}')")
    advice = "Create it by CREATE TABLE ... USING rocketmq OPTIONS (...) without columns"
    assert advice in said(spark, "SELECT * FROM messages")
    assert advice in said(spark, "INSERT INTO messages VALUES (encode('a', 'utf-8'))")
    assert spark.sql(f"SELECT * FROM messages WITH (storePath '{path}')").collect() == []
    query = "CREATE TABLE other USING rocketmq OPTIONS (nameServer 'h:1', topic 'T') AS SELECT 'a' AS body"
    assert advice in said(spark, query)
    assert not spark.catalog.tableExists("other")
    # A table says less than a query must.
    spark.sql("DROP TABLE messages")
    spark.sql(f"CREATE TABLE messages USING rocketmq OPTIONS (path '{path}')")
    assert "option nameServer is missing" in said(spark, "INSERT INTO messages (body) VALUES (encode('a', 'utf-8'))")


def test_a_read_refuses_the_option_provider() -> None:
    with raises(ConfigError, subject="provider"):
        RocketMQSource({"provider": "parquet", "storePath": "/nowhere"}).schema()
