"""Writing through the data source: rows become messages of a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from rucola.client.sync import EventLoopThread
from rucola.errors import ConfigError
from rucola.spark.source.options import parse_sink_options
from rucola.spark.source.sink import RocketMQWriter
from spark.test_live import read
from support.cluster import cluster
from support.small_store import SmallStore

HEADER = "body binary, topic string"


@pytest.mark.parametrize(
    ("options", "schema", "says"),
    [
        ({"topic": "T"}, HEADER, "option nameServer is missing"),
        ({"nameServer": "h:1", "subscribe": "T"}, HEADER, "no option 'subscribe' for a write; it has nameServer"),
        ({"nameServer": "h:1", "topic": "a b"}, HEADER, "option topic is 'a b'"),
        ({"nameServer": "h:1"}, "body binary", "no topic: give the option topic"),
        ({"nameServer": "h:1"}, "topic string", "without a column body"),
        ({"nameServer": "h:1"}, f"{HEADER}, tag string", "messages have no column tag; they may have topic"),
        ({"nameServer": "h:1"}, f"{HEADER}, flag string", "column flag is string; it must be int"),
    ],
)
def test_what_cannot_be_sent_is_said(options: dict[str, str], schema: str, says: str) -> None:
    columns = StructType()
    for column in schema.split(", "):
        columns.add(*column.split())
    with pytest.raises(ConfigError) as raised:
        RocketMQWriter(parse_sink_options(options), columns)
    assert says in str(raised.value)


@contextmanager
def broker(path: Path, *topics: str) -> Iterator[str]:
    """The name server of a broker with these topics. It runs in a thread: Spark wants the one that made the session."""

    async def start() -> str:
        running = await stack.enter_async_context(cluster(path))
        started = await running.start_broker()
        for topic in topics:
            await running.create_topic(started, topic)
        return running.namesrv

    thread, stack = EventLoopThread("broker"), AsyncExitStack()
    try:
        yield thread.run(start())
    finally:
        thread.run(stack.aclose())
        thread.stop()


def write(rows: DataFrame, namesrv: str, **options: str) -> None:
    rows.write.format("rocketmq").options(nameServer=namesrv, **options).mode("append").save()


@pytest.mark.spark
def test_rows_become_messages(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    rows = [
        Row(topic="T", body="ä", tags="a", keys=["k1", "k2"], properties={"colour": "red", "WAIT": "false"}, flag=7),
        Row(topic="U", body="b", tags=None, keys=None, properties=None, flag=None),
    ]
    schema = "topic string, body string, tags string, keys array<string>, properties map<string,string>, flag int"
    small_store.put("Old", body=b"from a store", TAGS="t", UNIQ_KEY="0" * 32, DELAY="3")

    with broker(tmp_path, "T", "U", "Copy") as namesrv:
        write(spark.createDataFrame(rows, schema), namesrv)
        first, second = sorted(read(namesrv), key=lambda row: row["topic"])
        assert (first["body"], first["tags"], first["keys"], first["flag"]) == ("ä".encode(), "a", ["k1", "k2"], 7)
        assert first["properties"]["colour"] == "red"
        assert "WAIT" not in first["properties"]
        assert (second["topic"], second["body"], second["tags"], second["keys"]) == ("U", b"b", None, None)
        assert len({first["msgId"], second["msgId"]}) == 2
        # What was read is written as it is: the same unique key, without what the system said about it.
        stored = spark.read.format("rocketmq").option("storePath", str(small_store.path)).load()
        write(stored, namesrv, topic="Copy")
        (copy,) = read(namesrv, subscribe="Copy")
        assert (copy["body"], copy["tags"], copy["msgId"]) == (b"from a store", "t", "0" * 32)
        assert "DELAY" not in copy["properties"]
        with pytest.raises(PySparkException, match="messages cannot be overwritten"):
            stored.write.format("rocketmq").options(nameServer=namesrv).mode("overwrite").save()


@pytest.mark.spark
def test_messages_are_held_back(spark: SparkSession, tmp_path: Path) -> None:
    later = "4102444800000"  # 2100
    rows = [("by level", 18, None), ("by time", None, {"TIMER_DELIVER_MS": later}), ("at once", 0, {})]
    schema = "body string, delayLevel int, properties map<string,string>"
    with broker(tmp_path, "T", "Copy") as namesrv:
        write(spark.createDataFrame(rows, schema), namesrv, topic="T")
        (row,) = read(namesrv, subscribe="T")
        assert row["body"] == b"at once"
        store = spark.read.format("rocketmq").options(
            storePath=str(tmp_path / "broker-a"),
            includeSystemTopics="true",
            subscribePattern="SCHEDULE.*|rmq_sys_wheel.*",
        )
        waiting = {bytes(row.body): row for row in store.load().collect()}
        assert waiting.keys() == {b"by level", b"by time"}
        assert waiting[b"by level"].properties["DELAY"] == "18"
        assert waiting[b"by time"].properties["TIMER_DELIVER_MS"] == later
        assert {row.properties["REAL_TOPIC"] for row in waiting.values()} == {"T"}
        # Whatever was held back once, comes at once where it is written again.
        write(store.load(), namesrv, topic="Copy")
        assert {row["body"] for row in read(namesrv, subscribe="Copy")} == {b"by level", b"by time"}


@pytest.mark.spark
def test_a_task_that_fails_gives_an_account(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(0, 300, numPartitions=1).selectExpr("if(id < 250, cast(id as string), null) AS body")

    with broker(tmp_path, "T") as namesrv:
        with pytest.raises(PySparkException) as raised:
            write(rows, namesrv, topic="T")
        assert "row 250 of partition 0 has no body. Before this, brokers acknowledged" in str(raised.value)
        assert "they stay sent" in str(raised.value)
        found = [int(row["body"]) for row in read(namesrv, subscribe="T")]
        assert set(found) <= set(range(250))


@pytest.mark.spark
def test_a_batch_that_is_repeated_has_the_same_ids(spark: SparkSession, tmp_path: Path) -> None:
    """A stream whose last batch is not known to be complete is sent again, and consumers can tell."""
    source = tmp_path / "rows"

    def stream(namesrv: str) -> None:
        (
            spark.readStream.schema("body string")
            .parquet(str(source))
            .writeStream.format("rocketmq")
            .options(nameServer=namesrv, topic="T", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    with broker(tmp_path, "T") as namesrv:
        spark.range(0, 40, numPartitions=2).selectExpr("cast(id as string) AS body").write.parquet(str(source))
        stream(namesrv)
        once = read(namesrv, subscribe="T")
        assert sorted(int(row["body"]) for row in once) == list(range(40))
        assert len({row["msgId"] for row in once}) == 40
        for commit in (tmp_path / "checkpoint" / "commits").glob("*0*"):
            commit.unlink()
        stream(namesrv)
        twice = read(namesrv, subscribe="T")
        assert len(twice) == 80
        assert len({(row["msgId"], row["body"]) for row in twice}) == 40
