"""Reading live brokers: batches and streams over the wire, against what was sent."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rucola.admin import AdminClient
from rucola.client import Message, Producer, PullConsumer
from rucola.errors import ConfigError, MQError, RemotingTimeout, StoreError, TopicNotFound
from rucola.spark.source import batch_reader
from rucola.spark.source.options import parse_read_options
from support.live_reads import live_cluster, read, send
from support.log_query import LogQuery


async def test_a_topic_is_read_as_it_was_sent(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as (running, broker, reading):
        for each in (broker, await running.start_broker("broker-b")):
            await running.create_topic(each, "T")
        first = await send(running, "T", 300, tags=lambda n: "AB"[n % 2], keys=lambda n: [f"k{n}", "é"])
        second = await send(running, "T", 40, broker="broker-b")
        rows = await reading(subscribe="T")
        assert sorted(row["msgId"] for row in rows) == sorted(first + second)
        by_id = {row["msgId"]: row for row in rows}
        for n, msg_id in enumerate(first):
            row = by_id[msg_id]
            assert (row["body"], row["tags"], row["keys"]) == (b"body %d" % n, "AB"[n % 2], [f"k{n}", "é"])
            assert (row["brokerName"], row["queueId"], row["queueOffset"]) == ("broker-a", n % 4, n // 4)
        assert {by_id[msg_id]["brokerName"] for msg_id in second} == {"broker-b"}
        # By offsets, queues, time, tags and keys; in order within a queue.
        chosen = json.dumps({"T": {"broker-a": {"1": 10}}})
        ends = json.dumps({"T": {"broker-a": {"1": 14}}})
        one = await reading(assign='{"T":{"broker-a":[1]}}', startingOffsets=chosen, endingOffsets=ends)
        assert [row["queueOffset"] for row in one] == [10, 11, 12, 13]
        parts = await reading(subscribe="T", minPartitions="13", columns="msgId")
        assert sorted(row["msgId"] for row in parts) == sorted(first + second)
        tagged = await reading(subscribe="T", subExpression="A || none")
        assert sorted(row["msgId"] for row in tagged) == sorted(first[0::2])
        keyed = await reading(subscribe="T", keys=f"k7,{second[3]}")
        assert sorted(row["msgId"] for row in keyed) == sorted([first[7], second[3]])
        moment = by_id[first[100]]["storeTimestamp"]
        late = await reading(subscribe="T", startingTimestamp=str(round(moment.timestamp() * 1000)))
        assert sorted(row["msgId"] for row in late) == sorted(
            row["msgId"] for row in rows if row["storeTimestamp"] >= moment
        )
        times = json.dumps({"T": {"broker-a": dict.fromkeys("0123", round(moment.timestamp() * 1000))}})
        later = await reading(subscribe="T", startingOffsetsByTimestamp=times)
        assert sorted(row["msgId"] for row in later) == sorted(
            row["msgId"] for row in rows if row["storeTimestamp"] >= moment or row["brokerName"] == "broker-b"
        )
        earlier = await reading(subscribe="T", endingOffsetsByTimestamp=times)
        assert sorted(row["msgId"] for row in earlier) == sorted(
            row["msgId"] for row in rows if row["storeTimestamp"] < moment or row["brokerName"] == "broker-b"
        )


async def test_topics_are_selected_by_pattern_without_system_topics(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as (running, broker, reading):
        for topic in ("Flights", "Orders"):
            await running.create_topic(broker, topic)
            await send(running, topic, 4)
        assert {row["topic"] for row in await reading()} == {"Flights", "Orders"}
        assert {row["topic"] for row in await reading(subscribePattern="F.*")} == {"Flights"}
        assert await reading(subscribePattern="None") == []
        with pytest.raises(TopicNotFound):
            await reading(subscribe="Nope")
        with pytest.raises(ConfigError):
            await reading(assign='{"Orders":[9]}')
        with pytest.raises(ConfigError):
            await reading(assign='{"Orders":{"broker-a":[0,9]}}')
        with pytest.raises(ConfigError):
            await reading(subscribe="Orders", startingOffsets='{"Orders":{"x":{"0":0}}}')


def test_an_unreachable_name_server_is_an_error() -> None:
    with pytest.raises(MQError):
        read("127.0.0.1:1", subscribe="T")


async def test_a_stream_follows_live_queues(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as (running, broker, _):
        await running.create_topic(broker, "T")
        await send(running, "T", 10)
        given = {"nameServer": running.namesrv, "subscribe": "T"}
        latest = await asyncio.to_thread(LogQuery, **given)
        all_of_it = await asyncio.to_thread(LogQuery, **given, startingOffsets="earliest", maxOffsetsPerTrigger="6")
        assert not await asyncio.to_thread(latest.trigger)
        await send(running, "T", 7)
        assert len(await asyncio.to_thread(latest.run)) == 7
        assert len(set(await asyncio.to_thread(all_of_it.run))) == 17
        assert [len(batch) for batch in all_of_it.rows] == [6, 6, 5]
        resumed = await asyncio.to_thread(lambda: LogQuery(checkpoint=all_of_it.offset, **given))
        assert not await asyncio.to_thread(resumed.trigger)


async def test_offsets_need_no_broker_name_for_a_topic_with_one_broker(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as (running, broker, reading):
        await running.create_topic(broker, "T")
        await send(running, "T", 20)
        ends = {"startingOffsets": '{"T":{"1":2,"2":-2}}', "endingOffsets": '{"T":{"0":0,"1":4,"2":1,"3":0}}'}
        found = [(row["queueId"], row["queueOffset"]) for row in await reading(subscribe="T", **ends)]
        assert sorted(found) == [(1, 2), (1, 3), (2, 0)]
        given = {"nameServer": running.namesrv, "subscribe": "T"}
        query = await asyncio.to_thread(lambda: LogQuery(**given, startingOffsets='{"T":{"0":4,"1":4,"2":4,"3":-1}}'))
        assert len(await asyncio.to_thread(query.run)) == 3
        times = json.dumps({"T": {"0": 1}})
        assert len(await reading(subscribe="T", startingOffsetsByTimestamp=times)) == 20
        with pytest.raises(ConfigError):
            await reading(subscribe="T", startingOffsets='{"U":{"0":1}}')
        await running.create_topic(await running.start_broker("broker-b"), "T")
        with pytest.raises(ConfigError):
            await reading(subscribe="T", **ends)


async def test_a_stream_can_commit_offsets_of_a_group(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Committed when a batch is finished, for tools to see; never read back."""

    async with live_cluster(tmp_path) as (running, broker, _):
        await running.create_topic(broker, "T")
        await send(running, "T", 10)

        async def behind() -> dict[int, int]:
            async with AdminClient(running.namesrv) as admin:
                table = (await admin.groups.consume_stats("spark-job")).offset_table
            return {queue.queue_id: at.broker_offset - at.consumer_offset for queue, at in table.items()}

        given = {"nameServer": running.namesrv, "subscribe": "T", "commitGroup": "spark-job"}
        query = await asyncio.to_thread(lambda: LogQuery(**given, startingOffsets="earliest", maxOffsetsPerTrigger="6"))
        assert await behind() == {}
        assert await asyncio.to_thread(query.trigger)
        assert await behind() == {0: 3, 1: 3, 2: 2, 3: 2}  # the batch is read, and Spark has not finished it
        assert await asyncio.to_thread(query.trigger)
        assert sum((await behind()).values()) == 4
        assert not await asyncio.to_thread(query.trigger)
        assert await behind() == {0: 0, 1: 0, 2: 0, 3: 0}
        # From an older checkpoint it goes on there, and the group shows it.
        again = await asyncio.to_thread(
            lambda: LogQuery(checkpoint={"T": {"broker-a": dict.fromkeys("0123", 1)}}, **given)
        )
        assert len(await asyncio.to_thread(again.run)) == 6
        assert await behind() == {0: 0, 1: 0, 2: 0, 3: 0}

        async def refuse(*_: Any) -> None:
            raise RemotingTimeout("the broker does not answer")

        with caplog.at_level(logging.WARNING, "rucola.spark"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(PullConsumer, "commit", refuse)
            await send(running, "T", 4)
            assert await asyncio.to_thread(again.trigger)
            assert not await asyncio.to_thread(again.trigger)
        assert caplog.text.count("offsets of group spark-job were not committed") == 1
        assert not await asyncio.to_thread(again.trigger)
        assert await behind() == {0: 0, 1: 0, 2: 0, 3: 0}


async def test_messages_deleted_by_brokers_are_an_error_or_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Partitions that promise more than the broker has, as when files expire between plan and read."""

    async with live_cluster(tmp_path) as (running, broker, _):
        await running.create_topic(broker, "T", queues=1)
        async with Producer("senders", running.namesrv) as producer:
            for n in range(5):
                await producer.send(Message("T", b"%d" % n))
        options = {"nameServer": running.namesrv, "subscribe": "T"}
        strict, tolerant = parse_read_options(options), parse_read_options({**options, "failOnDataLoss": "false"})
        (pulls,) = await asyncio.to_thread(batch_reader.plan, strict)
        pulls.ranges = (pulls.ranges[0]._replace(end=9),)

        def rows(chosen: Any) -> list[int]:
            return [
                row["queueOffset"]
                for batch in batch_reader.read(pulls, chosen, ["queueOffset"])
                for row in batch.to_pylist()
            ]

        with pytest.raises(StoreError):
            await asyncio.to_thread(rows, strict)
        with caplog.at_level(logging.WARNING, "rucola.spark.source.pull_partitions"):
            assert await asyncio.to_thread(rows, tolerant) == [0, 1, 2, 3, 4]
        assert "are gone from the broker" in caplog.text


@pytest.mark.spark
async def test_spark_reads_a_live_broker(spark: SparkSession, tmp_path: Path) -> None:
    """A batch, and a stream that is started over on its checkpoint."""

    def stream(namesrv: str) -> int:
        (
            spark.readStream.format("rocketmq")
            .options(nameServer=namesrv, subscribe="T", startingOffsets="earliest", columns="msgId")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        return spark.read.parquet(str(tmp_path / "out")).distinct().count()

    async with live_cluster(tmp_path) as (running, broker, _):
        await running.create_topic(broker, "T")
        sent = await send(running, "T", 50)
        table = spark.read.format("rocketmq").options(nameServer=running.namesrv, subscribe="T").load()
        rows = await asyncio.to_thread(table.collect)
        assert sorted(row.msgId for row in rows) == sorted(sent)
        assert await asyncio.to_thread(stream, running.namesrv) == 50
        await send(running, "T", 10)
        assert await asyncio.to_thread(stream, running.namesrv) == 60
