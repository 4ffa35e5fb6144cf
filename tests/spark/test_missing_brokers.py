"""Reads of live brokers while one of them is missing: streams lose and double nothing, other reads say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from rucola.admin import AdminClient
from rucola.broker.broker import Broker
from rucola.client import PullConsumer
from rucola.client.event_loop_thread import EventLoopThread
from rucola.errors import RemotingError, StoreError
from rucola.spark.source import batch_reader
from rucola.spark.source.lag import lag_of
from rucola.spark.source.options import parse_read_options
from support.cluster import Cluster, cluster
from support.documents import Document
from support.errors import raises
from support.live_reads import read, send
from support.micro_batches import MicroBatches

BLOCKS = Document.read("docs/spark.md").texts("python")
TOLERANT = {"failOnMissingBroker": "false"}


class Pair:
    """Two brokers with topic T, of which broker-b comes and goes."""

    def __init__(self, running: Cluster) -> None:
        self.running = running
        self.sent: list[str] = []
        self.b: Broker

    async def start(self) -> None:
        for name in ("broker-a", "broker-b"):
            self.b = await self.running.start_broker(name)
            await self.running.create_topic(self.b, "T")

    async def send(self, count: int, *brokers: str) -> None:
        for broker in brokers or ("broker-a", "broker-b"):
            self.sent += await send(self.running, "T", count, broker=broker)

    async def stop_b(self) -> None:
        await self.b.stop()

    async def start_b(self) -> None:
        self.b = await self.running.start_broker("broker-b")

    def query(self, **given: str) -> MicroBatches:
        options = {"nameServer": self.running.namesrv, "subscribe": "T", "startingOffsets": "earliest", **given}
        return MicroBatches(**options)


@asynccontextmanager
async def broker_pair(path: Path) -> AsyncIterator[Pair]:
    """Run a test with two brokers; reads happen in threads, for they have loops of their own."""

    async with cluster(path) as running:
        pair = Pair(running)
        await pair.start()
        yield pair


def stopping_b(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, method: str, loop: asyncio.AbstractEventLoop
) -> asyncio.Event:
    """Have broker-b stopped just before `method` of a consumer asks it for the first time; tells when it was."""
    asks = getattr(PullConsumer, method)
    stopped = asyncio.Event()

    async def ask(consumer: PullConsumer, queue: Any, *arguments: Any, **named: Any) -> Any:
        if queue.broker_name == "broker-b" and not stopped.is_set():
            stopped.set()
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pair.stop_b(), loop))
        return await asks(consumer, queue, *arguments, **named)

    monkeypatch.setattr(PullConsumer, method, ask)
    return stopped


@pytest.mark.parametrize("allows_loss", ["true", "false"])
@pytest.mark.parametrize("moment", ["between batches", "max_offset", "pull_records"])
async def test_a_stream_continues_when_its_broker_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, allows_loss: str
) -> None:
    """Whenever the broker goes, in a query that is started again twice: each message once."""

    async with broker_pair(tmp_path) as pair:
        await pair.send(20)
        query = pair.query(failOnDataLoss=allows_loss)
        await asyncio.to_thread(query.start)
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)
        await pair.send(10)
        if moment == "between batches":
            await pair.stop_b()
        else:
            stopping_b(pair, monkeypatch, moment, asyncio.get_running_loop())
        with raises(RemotingError, subject="broker-b"):
            await asyncio.to_thread(query.trigger)
        monkeypatch.undo()
        logged = len(query.logged)
        await pair.send(5, "broker-a")
        for _ in range(2):  # as a supervisor does
            with raises(RemotingError, subject="broker-b"):
                await asyncio.to_thread(lambda: (query.start(), query.trigger()))
        assert len(query.logged) == logged
        await pair.start_b()
        await pair.send(5)
        await asyncio.to_thread(query.start)
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)


@pytest.mark.parametrize("moment", ["between batches", "max_offset"])
async def test_a_stream_can_continue_without_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    async with broker_pair(tmp_path) as pair:
        await pair.send(20)
        query = pair.query(**TOLERANT, maxOffsetsPerTrigger="15")
        await asyncio.to_thread(query.start)
        await asyncio.to_thread(query.run)
        await pair.send(10)
        if moment == "between batches":
            await pair.stop_b()
        else:
            stopping_b(pair, monkeypatch, moment, asyncio.get_running_loop())
        with caplog.at_level(logging.WARNING, "rucola.spark"):
            await asyncio.to_thread(query.run)
            monkeypatch.undo()
            await pair.send(9, "broker-a")
            await asyncio.to_thread(query.run)
        of_stream = [record for record in caplog.records if record.name.startswith("rucola.spark")]
        assert len([record for record in of_stream if "broker-b" in record.getMessage()]) == 1
        assert "queues 0 to 3 of topic 'T'" in caplog.text
        assert len(query.ids) == 59
        await asyncio.to_thread(query.start)  # from its checkpoint, still without the broker
        await pair.send(1, "broker-a")
        await asyncio.to_thread(query.run)
        assert len(query.ids) == 60
        await pair.start_b()
        await pair.send(5)
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)


async def test_a_started_batch_waits_for_its_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offsets are logged, so to leave out a missing broker would lose messages for ever."""

    async with broker_pair(tmp_path) as pair:
        await pair.send(20)
        query = pair.query(**TOLERANT, failOnDataLoss="false")
        await asyncio.to_thread(query.start)
        stopping_b(pair, monkeypatch, "pull_records", asyncio.get_running_loop())
        with pytest.raises(RemotingError):
            await asyncio.to_thread(query.trigger)
        monkeypatch.undo()
        assert len(query.logged) == 1
        with raises(RemotingError, subject="broker-b"):
            await asyncio.to_thread(query.start)
        await pair.start_b()
        await asyncio.to_thread(query.start)
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)


async def test_a_finite_query_waits_for_a_missing_broker(tmp_path: Path) -> None:
    """With AvailableNow, of which the ends are noted while the broker is away."""

    async with broker_pair(tmp_path) as pair:
        await pair.send(20)
        query = pair.query()
        await asyncio.to_thread(query.start)
        await asyncio.to_thread(query.run)
        await pair.send(4)
        await pair.stop_b()
        for options, rows in (({}, 40), (TOLERANT, 44)):
            await asyncio.to_thread(query.start, **options)
            assert query.reader is not None
            await asyncio.to_thread(query.reader.prepareForTriggerAvailableNow)
            await pair.start_b()
            if options:
                await asyncio.to_thread(query.run)
            else:
                with raises(RemotingError, subject="broker-b"):
                    await asyncio.to_thread(query.run)
            assert len(query.ids) == rows
            await pair.stop_b()
        await pair.start_b()
        await asyncio.to_thread(query.start)
        assert query.reader is not None
        await asyncio.to_thread(query.reader.prepareForTriggerAvailableNow)
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)


async def test_a_deleted_topic_is_lost_data_not_a_missing_broker(tmp_path: Path) -> None:
    async with broker_pair(tmp_path) as pair:
        await pair.running.create_topic(pair.b, "U")
        await send(pair.running, "U", 4, broker="broker-b")
        await pair.send(4)
        query = pair.query(subscribe="", subscribePattern="T|U")
        del query.given["subscribe"]
        await asyncio.to_thread(query.start)
        assert len(await asyncio.to_thread(query.run)) == 12
        await delete_topic(pair, "U")
        with pytest.raises(StoreError):
            await asyncio.to_thread(query.run)
        await asyncio.to_thread(lambda: query.start(failOnDataLoss="false"))
        await pair.send(4)
        assert len(await asyncio.to_thread(query.run)) == 20


async def test_queues_that_a_topic_no_longer_has_are_no_missing_broker(tmp_path: Path) -> None:
    """If they were read to their end. They keep their offsets, in case the topic grows again."""
    async with broker_pair(tmp_path) as pair:
        await pair.send(16)
        query = pair.query()
        await asyncio.to_thread(query.start)
        await asyncio.to_thread(query.run)
        await pair.running.create_topic(pair.b, "T", queues=1)
        await pair.send(8, "broker-a")
        await asyncio.to_thread(query.start)
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)
        await pair.running.create_topic(pair.b, "T")
        await pair.send(16)
        await pair.running.create_topic(pair.b, "T", queues=1)
        with raises(RemotingError, subject="broker-b"):
            await asyncio.to_thread(query.run)
        await pair.running.create_topic(pair.b, "T")
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)


async def test_a_temporarily_unreadable_queue_keeps_its_offset(tmp_path: Path) -> None:
    async with broker_pair(tmp_path) as pair:
        await pair.send(8)
        query = pair.query(**TOLERANT)
        await asyncio.to_thread(query.start)
        await asyncio.to_thread(query.run)
        await pair.send(8, "broker-a")
        await pair.running.create_topic(pair.b, "T", perm=2)
        with raises(RemotingError, subject="broker-b"):
            await asyncio.to_thread(lambda: (query.start(failOnMissingBroker="true"), query.trigger()))
        await asyncio.to_thread(query.start)
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)
        await pair.running.create_topic(pair.b, "T")
        await pair.send(8)
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)


async def test_a_batch_names_the_broker_that_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with broker_pair(tmp_path) as pair:
        await pair.send(10)

        async def reading(**given: str) -> list[str]:
            rows = await asyncio.to_thread(read, pair.running.namesrv, **{"subscribe": "T"} | given)
            return sorted(row["msgId"] for row in rows)

        required = {"requiredBrokers": "broker-a, broker-b"}
        assert await reading(**required) == sorted(pair.sent)
        await pair.stop_b()
        with raises(RemotingError, subject="broker-b"):
            await reading(**required)
        assigned = {"subscribe": "", "assign": '{"T":{"broker-a":[0],"broker-b":[1,2]}}'}
        with caplog.at_level(logging.WARNING, "rucola.spark"):
            assert await reading(**required, **TOLERANT) == sorted(pair.sent[:10])
        assert "broker-b is not registered at the name servers" in caplog.text
        del assigned["subscribe"]
        given = {"nameServer": pair.running.namesrv, **assigned}
        with raises(RemotingError, subject="broker-b"):
            await asyncio.to_thread(batch_reader.plan, parse_read_options(given))
        (pulls,) = await asyncio.to_thread(batch_reader.plan, parse_read_options({**given, **TOLERANT}))
        assert pulls.broker_name == "broker-a"


async def test_a_route_that_names_a_silent_broker_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that is registered and does not answer; its topic is on it alone."""

    async with broker_pair(tmp_path) as pair:
        await pair.send(10, "broker-a")
        silent = await pair.running.scripted_broker("broker-c", "T", {})
        await silent.stop()
        with raises(RemotingError, subject="broker-c"):
            await asyncio.to_thread(read, pair.running.namesrv, subscribe="T")
        with caplog.at_level(logging.WARNING, "rucola.spark"):
            rows = await asyncio.to_thread(read, pair.running.namesrv, subscribe="T", **TOLERANT)
        assert len(rows) == 10
        assert "broker-c does not answer" in caplog.text


async def test_a_new_stream_has_start_offsets_of_all_brokers(tmp_path: Path) -> None:
    """A queue for which it could not would be read from its beginning later."""

    async with broker_pair(tmp_path) as pair:
        await pair.stop_b()
        given = {**TOLERANT, "requiredBrokers": "broker-b"}
        with raises(RemotingError, subject="broker-b"):
            await asyncio.to_thread(pair.query(**given, startingOffsets="latest").start)
        query = pair.query(**given)
        await asyncio.to_thread(query.start)
        await pair.start_b()
        await pair.send(3)
        await asyncio.to_thread(query.run)
        assert query.ids == sorted(pair.sent)


async def delete_topic(pair: Pair, topic: str) -> None:
    async with AdminClient(pair.running.namesrv) as admin:
        await admin.topics.delete_on_broker(pair.b.address, topic)
        await admin.topics.delete_on_name_servers(topic)


@contextmanager
def pair_in_a_thread(path: Path) -> Iterator[tuple[EventLoopThread, Pair]]:
    """Two brokers beside Spark, which wants the thread that made its session."""

    async def start() -> Pair:
        pair = Pair(await stack.enter_async_context(cluster(path)))
        await pair.start()
        return pair

    thread, stack = EventLoopThread("brokers"), AsyncExitStack()
    try:
        yield thread, thread.run(start())
    finally:
        thread.run(stack.aclose())
        thread.stop()


@pytest.mark.spark
def test_a_query_of_spark_survives_a_restart_of_a_broker(spark: SparkSession, tmp_path: Path) -> None:
    """Stopped between two runs, and again while a batch is read that Spark has logged."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def run(pair: Pair, before: Callable[[], None] = lambda: None) -> StreamingQuery:
        def write(batch: DataFrame, number: int) -> None:
            before()
            batch.write.mode("overwrite").parquet(str(out / f"batch={number}"))

        given = {"nameServer": pair.running.namesrv, "subscribe": "T", "startingOffsets": "earliest"}
        query = (
            spark.readStream.format("rocketmq")
            .options(**given, columns="msgId,brokerName", maxOffsetsPerTrigger="60")
            .load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    def ids() -> list[str]:
        return sorted(row.msgId for row in spark.read.parquet(str(out)).collect())

    def logged() -> int:
        return len([path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()])

    with pair_in_a_thread(tmp_path) as (brokers, pair):
        brokers.run(pair.send(40))
        query = run(pair)
        assert ids() == sorted(pair.sent)
        assert [lag.total for progress in query.recentProgress for lag in lag_of(progress)] == [20, 0]
        assert lag_of(query.recentProgress[0])[0].most <= 3
        brokers.run(pair.send(10))
        brokers.run(pair.stop_b())
        before = logged()
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match="broker-b is not registered at the name servers: queues"):
                run(pair)
        assert logged() == before
        brokers.run(pair.start_b())
        run(pair)
        assert ids() == sorted(pair.sent)
        brokers.run(pair.send(10))
        for stop in (lambda: brokers.run(pair.stop_b()), lambda: None):
            with pytest.raises(StreamingQueryException, match=r"on broker-b|broker-b is not registered"):
                run(pair, stop)
        assert logged() == before + 2
        brokers.run(pair.start_b())
        brokers.run(pair.send(5))
        query = run(pair)
        assert ids() == sorted(pair.sent)
        # What the page about it shows.
        names: dict[str, Any] = {"spark": spark, "query": query}
        for word in ("lag_of", "requiredBrokers"):
            (block,) = [block for block in BLOCKS if word in block]
            program = block.replace("host:9876", pair.running.namesrv).replace("Flights", "T")
            exec(compile(program, "spark.md", "exec"), names)
        assert names["table"].count() == len(pair.sent)
        assert names["lag"].total == 0
