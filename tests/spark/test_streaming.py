"""Streams: the batches that Spark would plan, planned and read here as Spark does; and a query in Spark itself."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rucola.errors import ConfigError, MQError, StoreError
from rucola.spark.source import stream_reader
from rucola.spark.source.lag import lag_of
from support.errors import raises
from support.examples import examples
from support.log_query import LogQuery
from support.small_store import FILE_SIZE, SmallStore

MODES = [{}, {"subscribe": "T"}, {"subscribePattern": "T|U"}]


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_starts_at_the_end_or_at_its_option(small_store: SmallStore, mode: dict[str, str]) -> None:
    given = {"storePath": str(small_store.path), **mode}
    old = [small_store.put("T", n % 2) for n in range(4)]
    latest, earliest = LogQuery(**given), LogQuery(**given, startingOffsets="earliest")
    assert not latest.trigger()
    assert earliest.run() == old
    new = [small_store.put("T", n % 2) for n in range(60)]
    assert latest.run() == new
    assert earliest.run() == old + new
    assert earliest.rows == [old, new]
    resumed = LogQuery(checkpoint=earliest.offset, **given)
    assert not resumed.trigger()
    last = small_store.put("T", 1)
    assert resumed.run() == [last]


def test_a_stream_starts_at_offsets(small_store: SmallStore) -> None:
    places = [small_store.put("T", n % 2) for n in range(8)]
    given = {"storePath": str(small_store.path), "brokerName": "b"}
    chosen = json.dumps({"T": {"b": {"0": 2, "1": -1}}})
    assert LogQuery(**given, subscribe="T", startingOffsets=chosen).run() == [places[4], places[6]]
    assert LogQuery(**given, startingCommitLogOffset=str(places[5])).run() == places[5:]
    with pytest.raises(ConfigError):
        LogQuery(**given, subscribe="T", startingOffsets=json.dumps({"T": {"b": {"0": 9}}}))
    with pytest.raises(ConfigError):
        LogQuery(**given, subscribe="T", startingOffsets=json.dumps({"T": {"b": {"7": 0}}}))


def test_a_stream_starts_at_a_time(small_store: SmallStore) -> None:
    places = [small_store.put("T", at_ms=1_700_000_000_000 + n) for n in range(8)]
    for mode in MODES:
        given = {"storePath": str(small_store.path), "startingTimestamp": "1700000000005", **mode}
        assert LogQuery(**given).run() == places[5:]


def test_a_stream_starts_at_a_time_per_queue(small_store: SmallStore) -> None:
    places = [small_store.put("T", n % 2, at_ms=1_700_000_000_000 + n) for n in range(8)]
    given = {"storePath": str(small_store.path), "brokerName": "b", "subscribe": "T"}
    times = json.dumps({"T": {"b": {"0": 1_700_000_000_003, "1": 1_700_000_000_003}}})
    assert LogQuery(**given, startingOffsetsByTimestamp=times).run() == places[3:]
    with raises(ConfigError, subject="endingOffsetsByTimestamp"):
        LogQuery(**given, endingOffsetsByTimestamp=times)


def test_queues_created_later_are_read_from_their_beginning(small_store: SmallStore) -> None:
    small_store.put("T", 0)
    query = LogQuery(storePath=str(small_store.path), subscribePattern="T|U")
    places = [small_store.put("T", 1), small_store.put("U", 0), small_store.put("V", 0)]
    assert query.run() == places[:2]


@settings(max_examples=examples(25))
@given(
    puts=st.lists(st.tuples(st.sampled_from(["T", "U", "SCHEDULE_TOPIC_XXXX"]), st.integers(0, 2)), max_size=80),
    most=st.integers(1, 30),
    mode=st.sampled_from(MODES),
)
def test_batches_are_bounded_and_complete(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[str, int]], most: int, mode: dict[str, str]
) -> None:
    store = SmallStore(tmp_path_factory.mktemp("store") / "store")
    store.put("T", 0)
    places = [store.put(*put) for put in puts]
    wanted = {"T"} if mode.get("subscribe") else {"T", "U"}
    given = {"storePath": str(store.path), "startingOffsets": "earliest", **mode}
    query = LogQuery(**given, maxOffsetsPerTrigger=str(most))
    found = query.run()
    expected = [place for place, (topic, _) in zip(places, puts, strict=True) if topic in wanted]
    assert sorted(found) == [0, *expected]
    assert all(len(batch) <= most for batch in query.rows)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_waits_for_its_minimum_of_messages_or_time(
    small_store: SmallStore, mode: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch does not wait, nor does one after maxTriggerDelay."""
    now_s = 1000.0
    monkeypatch.setattr(stream_reader, "monotonic", lambda: now_s)
    given = {"storePath": str(small_store.path), "startingOffsets": "earliest", **mode}
    small_store.put("T")
    query = LogQuery(**given, minOffsetsPerTrigger="10", maxTriggerDelay="1m")
    bounded = LogQuery(**given, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="12")
    assert query.trigger()
    assert bounded.trigger()
    for n in range(9):
        small_store.put("T", n % 2)
    assert not query.trigger()
    assert not bounded.trigger()
    small_store.put("T")
    assert query.trigger()
    assert len(query.rows[-1]) == 10
    small_store.put("T")
    now_s += 59
    assert not query.trigger()
    now_s += 1
    assert query.trigger()
    assert not query.trigger()
    for _ in range(4):
        small_store.put("T")
    assert bounded.trigger()
    assert [len(batch) for batch in bounded.rows] == [1, 12]
    # Trigger.Once asks for everything, and a query with AvailableNow is to end.
    limit = ReadAllAvailable()
    assert query.reader.latestOffset(query.offset, limit) != query.offset
    query.reader.prepareForTriggerAvailableNow()
    assert query.trigger()


def test_progress_shows_the_lag_of_a_stream(small_store: SmallStore) -> None:
    given = {"storePath": str(small_store.path), "brokerName": "b", "subscribe": "T", "startingOffsets": "earliest"}
    for n in range(9):
        small_store.put("T", n % 2)
    query = LogQuery(**given, maxOffsetsPerTrigger="6")
    assert query.reader.reportLatestOffset() is None
    query.trigger()
    latest = query.reader.reportLatestOffset()
    assert latest == {"T": {"b": {"0": 5, "1": 4}}}
    source = {"endOffset": json.dumps(query.offset), "latestOffset": json.dumps(latest)}
    silent = {"endOffset": "5", "latestOffset": None}
    (lag,) = lag_of({"sources": [source, silent]})
    assert (lag.total, lag.least, lag.most, lag.average) == (3, 1, 2, 1.5)


@pytest.mark.parametrize("mode", MODES)
def test_available_now_stops_where_the_store_ended_at_its_start(small_store: SmallStore, mode: dict[str, str]) -> None:
    old = [small_store.put("T", n % 3) for n in range(30)]
    query = LogQuery(storePath=str(small_store.path), startingOffsets="earliest", maxOffsetsPerTrigger="7", **mode)
    query.reader.prepareForTriggerAvailableNow()
    assert query.trigger()
    for n in range(5):
        small_store.put("T", n)
    assert sorted(query.run()) == old
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.run()) == 35


@pytest.mark.parametrize("mode", MODES)
def test_a_repeated_batch_is_identical(small_store: SmallStore, mode: dict[str, str]) -> None:
    places = [small_store.put("T", n % 2) for n in range(9)]
    query = LogQuery(storePath=str(small_store.path), startingOffsets="earliest", **mode)
    start = query.offset
    query.trigger()
    small_store.put("T", 0)
    again = LogQuery(checkpoint=start, storePath=str(small_store.path), **mode)
    assert again.batch(start, query.offset) == query.rows[0] == places


def delete_first_file(store: SmallStore) -> None:
    (store.path / "commitlog" / f"{0:020d}").unlink()


@pytest.mark.parametrize("mode", MODES)
def test_messages_deleted_unread_are_an_error_or_skipped(
    small_store: SmallStore, mode: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    given = {"storePath": str(small_store.path), "startingOffsets": "earliest", **mode}
    small_store.put("T")
    strict, tolerant = LogQuery(**given), LogQuery(**given, failOnDataLoss="false")
    places = [small_store.put("T") for _ in range(90)]
    planned = strict.reader.partitions(strict.offset, strict.reader.latestOffset(strict.offset, ReadAllAvailable()))
    delete_first_file(small_store)
    with pytest.raises(StoreError):
        strict.trigger()
    left = [place for place in places if place >= FILE_SIZE]
    with caplog.at_level(logging.WARNING, "rucola.spark"):
        assert tolerant.run() == left
    assert "were deleted unread" in caplog.text
    # Between plan and read, too.
    with pytest.raises(StoreError):
        list(strict.reader.read(planned[0]))
    found = [row["commitLogOffset"] for batch in tolerant.reader.read(planned[0]) for row in batch.to_pylist()]
    assert found == left


@pytest.mark.parametrize("mode", MODES)
def test_a_replaced_store_is_an_error_or_read_from_its_beginning(small_store: SmallStore, mode: dict[str, str]) -> None:
    given = {"storePath": str(small_store.path), "startingOffsets": "earliest", **mode}
    for _ in range(9):
        small_store.put("T")
    strict, tolerant = LogQuery(**given), LogQuery(**given, failOnDataLoss="false")
    strict.run()
    tolerant.run()
    shutil.rmtree(small_store.path)
    fresh = SmallStore(small_store.path)
    for _ in range(3):
        fresh.put("T")
    with pytest.raises(StoreError):
        strict.trigger()
    tolerant.run()
    place = fresh.put("T")
    assert tolerant.run()[-1] == place


def test_a_deleted_topic_is_an_error_or_skipped(small_store: SmallStore) -> None:
    given = {"storePath": str(small_store.path), "subscribePattern": ".*", "startingOffsets": "earliest"}
    small_store.put("T")
    small_store.put("U")
    strict, tolerant = LogQuery(**given), LogQuery(**given, failOnDataLoss="false")
    shutil.rmtree(small_store.path / "consumequeue" / "U")
    with pytest.raises(StoreError):
        strict.trigger()
    assert tolerant.run() == [0]


def test_damage_fails_the_batch_that_reads_it(small_store: SmallStore) -> None:
    places = [small_store.put() for _ in range(12)]
    small_store.overwrite(places[5], bytes(8))
    given = {"storePath": str(small_store.path), "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
    with pytest.raises(MQError, match=f"at byte {places[5]}"):
        LogQuery(**given).run()
    assert LogQuery(**given, corruptRecords="skip").run() == [place for place in places if place != places[5]]


def test_a_checkpoint_belongs_to_its_options(small_store: SmallStore) -> None:
    small_store.put("T")
    query = LogQuery(storePath=str(small_store.path), subscribe="T")
    with pytest.raises(ConfigError):
        LogQuery(checkpoint=query.offset, storePath=str(small_store.path)).trigger()


@pytest.mark.spark
def test_a_query_resumes_at_its_checkpoint(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    """With AvailableNow, started over and over on one checkpoint: each message once."""
    places = [small_store.put("T", n % 2) for n in range(20)]

    def run(**given: str) -> None:
        messages = spark.readStream.format("rocketmq").options(
            storePath=str(small_store.path), startingOffsets="earliest", columns="commitLogOffset,body", **given
        )
        (
            messages.load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    run(maxOffsetsPerTrigger="8")
    places += [small_store.put("T") for _ in range(3)]
    run()
    run()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.commitLogOffset for row in rows) == places
    with pytest.raises(PySparkException, match="its options read queues"):
        run(subscribe="T")


@pytest.mark.spark
def test_ending_options_of_a_stream_are_refused(spark: SparkSession, small_store: SmallStore) -> None:
    small_store.put()
    messages = spark.readStream.format("rocketmq").options(storePath=str(small_store.path), endingTimestamp="1")
    with pytest.raises(PySparkException, match="endingTimestamp is for batches"):
        messages.load().writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
