"""Rows reach brokers that die meanwhile, in the order of their keys; rows that no broker can take are named."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rucola.client import MessageQueue
from rucola.client.producer.queue_selectors import select_by_hash
from rucola.errors import ConfigError, MQError
from rucola.spark.source.options import parse_sink_options
from rucola.spark.source.sink import RocketMQWriter, SinkTaskResult, report_result
from support.broker_thread import broker_thread
from support.errors import raises
from support.live_reads import Row, read, write
from support.ports import free_ports
from support.servers import server
from support.small_store import SmallStore
from support.waiting import wait_until


def by_queue(rows: list[Row]) -> dict[int, list[Row]]:
    """The rows of each queue, in its order."""
    found: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["queueOffset"]):
        found.setdefault(row["queueId"], []).append(row)
    return found


def first_seen(rows: list[Row]) -> list[int]:
    """The numbers in the bodies of these rows, without those that came again."""
    return list(dict.fromkeys(int(row["body"]) for row in rows))


# -- brokers that are away ---------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_rows_are_written_after_a_broker_restart(spark: SparkSession, tmp_path: Path) -> None:
    """Broker and name server are killed in the middle of a write, and started again. Order per key holds."""
    count, restarted = 12_000, tmp_path / "restarted"

    def last_rows_later(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while batch["id"][0].as_py() >= count - 1000 and not restarted.exists():
                time.sleep(0.05)  # in a worker, which does not have the modules of the tests
            yield batch

    rows = (
        spark.range(0, count, numPartitions=1)
        .mapInArrow(last_rows_later, "id long")
        .selectExpr("cast(id AS string) AS body", "if(id % 2 = 0, concat('k', id % 7), null) AS shardingKey")
    )
    ports = dict(zip(("--namesrv-port", "--broker-port"), map(str, free_ports(2, 1)), strict=True))
    serving = ["standalone", "--store", tmp_path / "broker", *itertools.chain(*ports.items())]
    with ExitStack() as stack:
        running = stack.enter_context(server(*serving, log=tmp_path / "first"))
        namesrv, _ = running.addresses()
        write(spark.createDataFrame([("0",)], "body string"), namesrv, topic="T")

        def restart() -> None:
            try:
                wait_until(lambda: stored(namesrv) > 2000)
                running.process.kill()
                running.process.wait()
                stack.enter_context(server(*serving, log=tmp_path / "second"))
            finally:
                restarted.touch()

        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        try:
            with ThreadPoolExecutor(1) as pool:
                done = pool.submit(restart)
                write(rows, namesrv, topic="T")
                done.result()
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        found = by_queue(read(namesrv, subscribe="T"))
        assert {number for of_queue in found.values() for number in first_seen(of_queue)} == set(range(count))
        queues = set()
        for queue_id, of_queue in found.items():
            numbers = [number for number in first_seen(of_queue) if number and number % 2 == 0]
            for key in range(7):
                of_key = [number for number in numbers if number % 7 == key]
                assert of_key == sorted(of_key)
            queues |= {(number % 7, queue_id) for number in numbers}
        assert len(queues) == 7, "one queue a key"


def stored(namesrv: str) -> int:
    try:
        return len(read(namesrv, subscribe="T", columns="queueId"))
    except MQError:
        return 0


@pytest.mark.spark
def test_a_broker_that_stays_down_ends_the_write(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(0, 10, numPartitions=1).selectExpr("cast(id AS string) AS body")
    with server(
        "standalone", "--store", tmp_path, "--namesrv-port", "0", "--broker-port", "0", log=tmp_path / "log"
    ) as running:
        namesrv, _ = running.addresses()
        write(rows, namesrv, topic="T")
        running.process.kill()
        running.process.wait()
        with pytest.raises(PySparkException) as raised:
            write(rows, namesrv, topic="T", deliveryTimeoutMs="300")
    assert re.search(
        r"no name server answers: .* Before this, brokers acknowledged 0 messages of the task", str(raised.value)
    )
    with raises(ConfigError, subject="deliveryTimeoutMs"):
        parse_sink_options({"nameServer": "h:1", "deliveryTimeoutMs": "-1"})


# -- which queue -------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_keys_and_ids_decide_the_queue(spark: SparkSession, tmp_path: Path) -> None:
    with broker_thread(tmp_path, "T", "U") as namesrv:
        rows = spark.range(0, 100, numPartitions=2).selectExpr(
            "cast(id AS string) AS body", "if(id < 50, concat('k', id % 10), null) AS shardingKey", "id % 6 AS queueId"
        )
        write(rows, namesrv, topic="T")
        queues = [MessageQueue("T", "broker-a", number) for number in range(4)]
        for row in read(namesrv, subscribe="T"):
            number = int(row["body"])
            wanted = select_by_hash(f"k{number % 10}")(queues).queue_id if number < 50 else number % 6 % 4
            assert row["queueId"] == wanted
        # What was read is written to like queues; without a wish every queue gets its share.
        copied = spark.read.format("rocketmq").options(nameServer=namesrv, subscribe="T").load()
        write(copied, namesrv, topic="U")
        before = {row["msgId"]: row["queueId"] for row in read(namesrv, subscribe="T")}
        assert {row["msgId"]: row["queueId"] for row in read(namesrv, subscribe="U")} == before
        write(spark.range(0, 400, numPartitions=1).selectExpr("concat('x', id) AS body"), namesrv, topic="U")
        even = [row for row in read(namesrv, subscribe="U") if row["body"].startswith(b"x")]
        assert [len(each) for each in by_queue(even).values()] == [100] * 4
        with pytest.raises(PySparkException, match=r"row 0 of partition 0 has the queueId -1; it must not be negative"):
            write(spark.sql("SELECT 'a' AS body, -1 AS queueId"), namesrv, topic="T")


@pytest.mark.slow
@pytest.mark.parametrize(("column", "kind"), [("queueId", "string"), ("shardingKey", "int"), ("brokerName", "int")])
def test_a_column_of_another_type_is_refused(column: str, kind: str, spark: SparkSession) -> None:
    schema = spark.createDataFrame([], f"body string, {column} {kind}").schema
    with raises(ConfigError, subject=column):
        RocketMQWriter(parse_sink_options({"nameServer": "h:1", "topic": "T"}), schema)


# -- rows that are no messages -----------------------------------------------------------------------------------------

INVALID = {
    "no topic": (("body", None, "k1 k2"), "row 3 of partition 0 with keys 'k1 k2' has no topic"),
    "no body": ((None, "T", "k1 k2"), "row 3 of partition 0 with keys 'k1 k2' has no body"),
    "an empty body": (("", "T", "k1"), "row 3 of partition 0 with keys 'k1': a message for topic T has an empty body"),
    "no name of a topic": (("a", "a b", None), "row 3 of partition 0: the topic 'a b' contains other characters"),
}


def rows_with(spark: SparkSession, invalid: tuple[str | None, ...]) -> DataFrame:
    valid = [(str(n), "T", None) for n in range(6)]
    return spark.createDataFrame([*valid[:3], invalid, *valid[3:]], "body string, topic string, keys string").coalesce(
        1
    )


@pytest.mark.spark
def test_an_invalid_row_is_named_or_skipped(spark: SparkSession, tmp_path: Path) -> None:
    with broker_thread(tmp_path, "T") as namesrv:
        for number, (invalid, sentence) in enumerate(INVALID.values(), 1):
            with pytest.raises(PySparkException) as raised:
                write(rows_with(spark, invalid), namesrv)
            assert sentence in str(raised.value).splitlines()[1]
            write(rows_with(spark, invalid), namesrv, invalidRows="skip")
            bodies = [row["body"] for row in read(namesrv, subscribe="T")]
            assert set(bodies) == {b"%d" % n for n in range(6)}
            assert len(bodies) >= 6 * number
    with raises(ConfigError, subject="invalidRows"):
        parse_sink_options({"nameServer": "h:1", "invalidRows": "drop"})


def test_skipped_rows_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        report_result(
            "batch 7",
            [
                SinkTaskResult({"T": 4}, skipped=2, first_skip_reason="row 3 has no body"),
                SinkTaskResult({"T": 1}, skipped=1),
            ],
        )
    assert "batch 7: 3 invalid rows left out; the first: row 3 has no body" in caplog.text
    assert "batch 7: 5 to T sent by 2 successful tasks" in caplog.text


@pytest.mark.spark
def test_a_row_of_a_store_is_written_to_its_queue(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    """Its brokerName is the path of the store, which no broker has; the id still says the queue."""
    for n in range(20):
        small_store.put("T", n % 4, b"%d" % n)
    with broker_thread(tmp_path, "T") as namesrv:
        write(spark.read.format("rocketmq").load(str(small_store.path)), namesrv)
        found = by_queue(read(namesrv, subscribe="T"))
        assert {number: first_seen(rows) for number, rows in found.items()} == {
            number: list(range(number, 20, 4)) for number in range(4)
        }
