"""What goes wrong in Spark's Python processes reaches the user as a sentence of ours, before anything else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from rucola.errors import ConfigError, MQError, StoreError
from rucola.spark.jobs import archive, audit, replay
from rucola.spark.source.data_source import RocketMQSource
from support.broker_thread import broker_thread
from support.small_store import SmallStore


def load(spark: SparkSession, store: SmallStore, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**{"storePath": str(store.path)} | options).load()


def said(call: Callable[[], object]) -> list[str]:
    """The lines of what Spark raises."""
    with pytest.raises(PySparkException) as raised:
        call()
    return str(raised.value).splitlines()


@pytest.mark.spark
def test_the_first_lines_of_an_error_are_ours(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    small_store.overwrite(small_store.put() + 88, b"X")
    planned = "[PYTHON_DATA_SOURCE_ERROR] Failed to "
    worker = "An exception was thrown from the Python worker:"

    # The options, the plan of a read, and a task of it.
    lines = said(lambda: load(spark, small_store, columns="nope"))
    assert lines[0].startswith(
        f"{planned}create Python data source instance: rucola.errors.ConfigError: option columns"
    )
    assert lines[1:] == [" SQLSTATE: 38000"]
    lines = said(load(spark, small_store, subscribe="Nope").collect)
    wanted = f"rucola.errors.ConfigError: topic 'Nope' is not in {small_store.path}, which holds T"
    assert lines == [f"{planned}generate Python data source read partitions: {wanted}", " SQLSTATE: 38000"]
    lines = said(load(spark, small_store).collect)
    damage = f"{small_store.path}/commitlog/{0:020d} at byte 0: the body does not match its CRC"
    assert lines == [worker, f"rucola.errors.StoreCorrupt: {damage}"]

    # What is refused for its place, not for its content.
    log = small_store.path / "commitlog"
    log.rename(log.with_name("elsewhere"))
    log.symlink_to(log)
    (small_store.path / "lock").touch()
    lines = said(load(spark, small_store).collect)
    assert len(lines) == 2
    assert f"rucola.errors.StoreError: {log}" in lines[0]


@pytest.mark.spark
def test_the_first_line_of_a_failed_stream_is_ours(
    spark: SparkSession, small_store: SmallStore, tmp_path: Path
) -> None:
    def run(**options: str) -> None:
        given = {"storePath": str(small_store.path), "startingOffsets": "earliest"} | options
        stream = spark.readStream.format("rocketmq").options(**given).load().writeStream.format("noop")
        checkpoint = str(tmp_path / "-".join(["checkpoint", *options]))
        stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    small_store.overwrite(small_store.put() + 88, b"X")
    assert "rucola.errors.ConfigError: topic 'Nope' is not in" in said(lambda: run(subscribe="Nope"))[0]
    lines = said(run)
    assert lines[0].endswith(f"{small_store.path}/commitlog/{0:020d} at byte 0: the body does not match its CRC")
    assert not any("Traceback" in line or "  File" in line for line in lines)


@pytest.mark.spark
def test_the_first_lines_of_a_failed_write_are_ours(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(None,)], "body string")
    with broker_thread(tmp_path, "T") as namesrv:
        write = rows.write.format("rocketmq").option("nameServer", namesrv).mode("append")
        lines = said(lambda: write.save())
        why = "no topic: give the option topic, or rows with a column topic"
        assert lines[0].endswith(f"rucola.errors.ConfigError: {why}")
        lines = said(lambda: write.option("topic", "T").save())
        assert len(lines) == 2
        assert lines[1].startswith("rucola.errors.")


@pytest.mark.spark
def test_an_internal_error_keeps_its_traceback(spark: SparkSession) -> None:
    """What nobody has foreseen has to be found."""

    def fail(batches: object) -> None:
        raise KeyError("unforeseen")

    assert any("in fail" in line for line in said(spark.range(1).mapInArrow(fail, "id long").collect))  # type: ignore[arg-type]


def test_the_users_process_keeps_its_tracebacks() -> None:
    """The environment of any other process is left alone, since Spark's are started with it."""
    with pytest.raises(ConfigError):
        RocketMQSource({"nope": "1"}).schema()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


@pytest.mark.spark
def test_jobs_raise_our_errors_alone(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    """Also for what Spark finds while it plans, and without Spark's error as the cause, which is printed before."""
    small_store.overwrite(small_store.put() + 88, b"X")
    calls: list[tuple[Callable[[], object], type[MQError], str]] = [
        (
            lambda: archive.run(spark, small_store.path, tmp_path / "lake", corrupt_records="nope"),
            ConfigError,
            "option corruptRecords is 'nope': it must be fail, skip or column",
        ),
        (
            lambda: audit.run(spark, [small_store.path], corrupt_records="nope"),
            ConfigError,
            "option corruptRecords is 'nope': it must be fail, skip or column",
        ),
        (
            lambda: replay.run(spark, small_store.path, replay.ReplayOptions(corrupt_records="nope")),
            ConfigError,
            "option corruptRecords is 'nope': it must be fail, skip or column",
        ),
        (
            lambda: archive.run(spark, small_store.path, tmp_path / "lake"),
            StoreError,
            f"{small_store.path}/commitlog/{0:020d} at byte 0: the body does not match its CRC",
        ),
    ]
    for call, kind, sentence in calls:
        with pytest.raises(kind) as raised:
            call()
        assert str(raised.value) == sentence
        assert not isinstance(raised.value.__cause__, PySparkException | Py4JError)
        assert raised.value.__suppress_context__


PROGRAM = """
import sys
from rucola.cli.main import main
from rucola.spark.session import local_session

intact, damaged, lake = sys.argv[1:]
spark = local_session("limited", cores=2, is_short=True)
messages = spark.read.format("rocketmq").option("storePath", intact).load()
for _ in range(5):
    print(len(messages.limit(1).collect()))
main(["pipeline", "archive", "--store", damaged, "--out", lake, "--spark"])
"""


@pytest.mark.spark
def test_a_terminal_has_one_line_of_damage_and_none_of_unread_rows(small_store: SmallStore, tmp_path: Path) -> None:
    """Spark hangs up on a task that has more rows than `limit()` asks for, which is no error."""
    for _ in range(400):
        small_store.put(body=bytes(3000))
    damaged = SmallStore(tmp_path / "damaged")
    damaged.overwrite(damaged.put() + 88, b"X")
    arguments = [str(small_store.path), str(damaged.path), str(tmp_path / "lake")]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (1, ["1"] * 5)
    # Without the lines with which a runtime says how it was started.
    lines = [line for line in done.stderr.splitlines() if not re.match("WARNING: |Picked up |OpenJDK ", line)]
    assert len(lines) == 1
    assert re.fullmatch(r"Error: .*/commitlog/0{20} at byte 0: the body does not match its CRC", lines[0])


@pytest.mark.spark
def test_messages_are_counted_without_columns(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    for n in range(300):
        small_store.put(queue_id=n % 2, TAGS="ab"[n % 2])

    def count(**options: str) -> int:
        return load(spark, small_store, columns="", **options).count()

    nothing = spark.read.format("rocketmq").option("storePath", str(small_store.path)).schema(StructType())
    assert nothing.load().count() == count() == count(minPartitions="3") == 300
    assert load(spark, small_store, columns="").columns == []
    assert count(subExpression="a") == 150
    assert count(subscribe="T") == 300
    small_store.overwrite(0, b"\0\0\0\1")
    assert count(corruptRecords="skip") == 299
    with broker_thread(tmp_path, "T") as namesrv:
        rows = spark.range(7).selectExpr("cast(id as string) AS body")
        rows.write.format("rocketmq").options(nameServer=namesrv, topic="T").mode("append").save()
        live = spark.read.format("rocketmq").options(nameServer=namesrv, subscribe="T", columns="")
        assert live.load().count() == 7
