"""The archive job and the lake: each message once, whatever happens between."""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rucola.errors import StoreError
from rucola.message.topics import is_system_topic
from rucola.spark.archive import Archive, ArchiveWriter
from rucola.spark.jobs import archive
from rucola.spark.lake import read_lake
from rucola.spark.lake.parquet_files import write_rows
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.lake.writer import open_lake
from rucola.spark.partition_tasks import partition_tasks, read_partitions
from rucola.spark.session import LazySession
from rucola.spark.source.batch_reader import plan
from rucola.spark.source.batch_reader import read as read_partition
from rucola.spark.source.options import parse_read_options
from rucola.spark.source.schema import COLUMNS
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from support.small_store import HOST, SmallStore

MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC
HERE = LazySession("tests", use_spark=False)


def archived(lake: Path) -> list[int]:
    batches = Archive(lake).scan().batches(["commitLogOffset"])
    return sorted(offset for batch in batches for offset in batch[0].to_pylist())


@pytest.mark.spark
def test_a_golden_store_is_archived_once(spark: SparkSession, golden: Path, tmp_path: Path) -> None:
    store = golden / "g1-clean" / "store"
    lines = (golden / "g1-clean" / "expected.jsonl").read_text().splitlines()
    wanted = [row for row in map(json.loads, lines) if not is_system_topic(row["topic"])]
    first = archive.run(spark, store, tmp_path / "lake")
    second = archive.run(spark, store, tmp_path / "lake")
    assert (first.rows, second.rows) == (len(wanted), 0)
    assert first.size == sum(row["storeSize"] for row in wanted)
    topics = [row["topic"] for row in wanted]
    assert first.rows_by_topic == {topic: topics.count(topic) for topic in sorted(set(topics))}
    assert first.end_physical_offset == second.begin_physical_offset == second.end_physical_offset
    rows = {row.commitLogOffset: row for row in read_lake(spark, tmp_path / "lake").collect()}
    assert len(rows) == read_lake(spark, tmp_path / "lake").count() == len(wanted)
    for each in wanted:
        row = rows[each["commitLogOffset"]]
        assert (row.topic, row.msgId, row.properties) == (each["topic"], each["msgId"], each["properties"])
        assert hashlib.sha256(row.body).hexdigest() == each["bodySha256"]


def test_archiving_resumes_where_it_ended(small_store: SmallStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    places = [small_store.put("007", n % 2, at_ms=MIDNIGHT_MS - 1 + n, TAGS="é") for n in range(6)]
    first = archive.run(HERE, small_store.path, lake, broker_name="broker-a")
    assert [(q.topic, q.queue_id, q.begin_queue_offset, q.end_queue_offset) for q in first.queues] == [
        ("007", 0, 0, 3),
        ("007", 1, 0, 3),
    ]
    places += [small_store.put("%RETRY%g", at_ms=MIDNIGHT_MS + 9) for _ in range(40)]
    places += [small_store.put("SCHEDULE_TOPIC_XXXX")]  # the system's own is passed over, and not looked at again
    second = archive.run(HERE, small_store.path, lake, broker_name="broker-a")
    assert second.rows_by_topic == {"%RETRY%g": 40}
    assert (first.begin_physical_offset, second.begin_physical_offset) == (0, first.end_physical_offset)
    assert archived(lake) == places[:-1]
    assert archive.run(HERE, small_store.path, lake, broker_name="broker-a").rows == 0
    # Topics are text, also those that look like numbers; days are those of UTC.
    days = {(file.topic, file.date) for file in read_snapshot(lake).rows}
    assert days == {("007", "2023-11-14"), ("007", "2023-11-15"), ("%RETRY%g", "2023-11-15")}
    with Archive(lake).open() as opened:
        progress = opened.progress()["broker-a"]
    assert progress.physical_offset == small_store.end
    assert progress.queues == {"007": {"0": 3, "1": 3}, "%RETRY%g": {"0": 40}}


@pytest.mark.spark
def test_days_do_not_follow_the_time_zone_of_the_session(
    spark: SparkSession, small_store: SmallStore, tmp_path: Path
) -> None:
    small_store.put(at_ms=MIDNIGHT_MS - 1)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        archive.run(spark, small_store.path, tmp_path / "lake")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [row.date for row in read_lake(spark, tmp_path / "lake").collect()] == [date(2023, 11, 14)]


@pytest.mark.spark
def test_files_of_a_failed_attempt_are_not_published(
    spark: SparkSession, small_store: SmallStore, tmp_path: Path
) -> None:
    places = [small_store.put() for _ in range(3)]
    options = {"storePath": str(small_store.path), "brokerName": "broker-a"}
    read = parse_read_options(options)
    with open_lake(tmp_path / "lake") as lake:
        batches = [batch for each in plan(read) for batch in read_partition(each, read, tuple(COLUMNS))]
        lake.begin()
        write_rows(batches, lake.storage, f"{lake.run}-00000-{0:032x}", lake.staging)
        writer, tasks = ArchiveWriter(lake), partition_tasks(spark, plan(read))
        staged = writer.append_in_spark(
            tasks, partial(read_partitions, partial(read_partition, options=read, names=tuple(COLUMNS)))
        )
        writer.commit({})
    assert sum(queue.rows for queue in staged.queues) == len(places)
    assert archived(tmp_path / "lake") == places
    # The next run deletes them.
    with open_lake(tmp_path / "lake") as lake:
        live = lake.snapshot()
    names = {str(path.relative_to(tmp_path / "lake")) for path in (tmp_path / "lake").rglob("*.parquet")}
    assert names == {file.path for file in (*live.rows, *live.keys)}


def test_two_stores_share_a_lake(small_store: SmallStore, tmp_path: Path) -> None:
    other = SmallStore(tmp_path / "other")
    small_store.put("T", body=b"1")
    other.put("T", body=b"2")
    for store in (small_store, other, small_store):
        summary = archive.run(HERE, store.path, tmp_path / "lake")
    assert summary.rows == 0
    rows = [
        row for batch in Archive(tmp_path / "lake").scan().batches(["brokerName", "body"]) for row in batch.to_pylist()
    ]
    assert sorted((row["brokerName"], row["body"]) for row in rows) == sorted(
        [(str(small_store.path), b"1"), (str(other.path), b"2")]
    )


def test_another_store_at_the_same_path_is_detected(small_store: SmallStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for _ in range(3):
        small_store.put(UNIQ_KEY="first")
    archive.run(HERE, small_store.path, lake)
    shutil.rmtree(small_store.path)
    another = SmallStore(small_store.path)
    with pytest.raises(StoreError):
        archive.run(HERE, another.path, lake)
    for _ in range(5):
        another.put(UNIQ_KEY="other")
    with pytest.raises(StoreError):
        archive.run(HERE, another.path, lake)
    assert archive.run(HERE, another.path, lake, broker_name="another").rows == 5


def test_messages_deleted_before_archiving_are_an_error(small_store: SmallStore, tmp_path: Path) -> None:
    small_store.put()
    archive.run(HERE, small_store.path, tmp_path / "lake")
    for _ in range(100):
        small_store.put()
    (small_store.path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(StoreError):
        archive.run(HERE, small_store.path, tmp_path / "lake")


def test_a_run_without_spark_tells_how_much_of_the_log_is_archived(small_store: SmallStore, tmp_path: Path) -> None:
    for _ in range(9):
        small_store.put(body=bytes(3000))
    told: list[tuple[int, int]] = []
    result = archive.run(HERE, small_store.path, tmp_path / "lake", progress=lambda *each: told.append(each))
    assert told == sorted(told)
    assert told[-1] == (result.size, small_store.end)


def test_an_empty_store_is_archived_as_nothing(tmp_path: Path) -> None:
    """A broker makes its log with the first message. There is no session here, for there is nothing to do."""
    with MessageStore(StoreConfig(store_path_root_dir=str(tmp_path / "store"), store_host=HOST)):
        assert not (tmp_path / "store" / "commitlog").exists()
        summary = archive.run(None, tmp_path / "store", tmp_path / "lake")  # type: ignore[arg-type]
    assert (summary.rows, summary.begin_physical_offset, summary.end_physical_offset) == (0, 0, 0)
