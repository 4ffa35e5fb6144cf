"""Archiving live brokers: queue by queue, each message once, beside stores in the same lake or apart from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rucola.client import Message, PullConsumer
from rucola.client.sync import Producer
from rucola.errors import RemotingError, StoreError
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.session import AnySession, LazySession
from rucola.spark.source import live_source, pull_partitions
from rucola.spark.source.live_source import LiveSource
from rucola.spark.source.options import ReadOptions
from rucola.spark.source.source_offsets import OffsetRanges
from support.cluster import Cluster, cluster
from support.errors import raises
from support.live_reads import send

HERE = LazySession("tests", use_spark=False)
Archiving = Callable[..., Any]


@asynccontextmanager
async def archived_cluster(path: Path, jobs: AnySession = HERE) -> AsyncIterator[tuple[Cluster, Archiving]]:
    """Run a test on a cluster without brokers yet; archiving goes on in a thread, for it has a loop of its own."""

    async with cluster(path) as running:

        async def archiving(**given: Any) -> archive.ArchiveResult:
            return await asyncio.to_thread(archive.run_live, jobs, running.namesrv, path / "lake", **given)

        yield running, archiving


def archived(lake: Path) -> list[str]:
    return sorted(row for batch in Archive(lake).scan().batches(["msgId"]) for row in batch[0].to_pylist())


@pytest.mark.spark
async def test_brokers_are_archived_in_bounded_commits(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    async with archived_cluster(tmp_path, spark) as (running, archiving):
        assert (await archiving()).rows == 0  # nobody is there yet
        brokers = [await running.start_broker(name) for name in ("broker-a", "broker-b")]
        for broker in brokers:
            await running.create_topic(broker, "T")
        sent = await send(running, "T", 10, keys=lambda n: f"k{n}")
        sent += await send(running, "T", 3, broker="broker-b", keys=lambda n: f"k{n}")
        first = await archiving()
        assert [(q.broker_name, q.queue_id, q.begin_queue_offset, q.end_queue_offset) for q in first.queues] == [
            *[("broker-a", queue_id, 0, end) for queue_id, end in enumerate([3, 3, 2, 2])],
            *[("broker-b", queue_id, 0, 1) for queue_id in range(3)],
        ]
        assert first.begin_physical_offset is None
        assert (await archiving()).rows == 0
        sent += await send(running, "T", 2)
        await running.create_topic(brokers[1], "Late")
        sent += await send(running, "Late", 5, broker="broker-b")
        second = await archiving()
        assert second.rows_by_topic == {"Late": 5, "T": 2}
        assert archived(lake) == sorted(sent)
        assert {each.broker_name for each in Archive(lake).by_key(["k1"]).messages} == {"broker-a", "broker-b"}
        progress = Archive(lake).progress()
        assert progress["broker-a"].queues == {"T": {"0": 4, "1": 4, "2": 2, "3": 2}}
        # Nothing is known of its log, so nothing may be deleted from there on the strength of this archive.
        assert (progress["broker-a"].physical_offset, progress["broker-a"].is_live) == (0, True)
        with pytest.raises(StoreError):
            await asyncio.to_thread(archive.run, spark, tmp_path / "broker-a", lake, broker_name="broker-a")
        of_store = await asyncio.to_thread(archive.run, spark, tmp_path / "broker-a", tmp_path / "other")
        assert of_store.rows == 12


async def test_a_run_opens_one_client_for_all_that_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[PullConsumer] = []

    def consumer_of(options: ReadOptions) -> PullConsumer:
        opened.append(pull_partitions.consumer_of(options))
        return opened[-1]

    monkeypatch.setattr(live_source, "consumer_of", consumer_of)
    async with cluster(tmp_path) as running:
        broker = await running.start_broker("broker-a")
        await running.create_topic(broker, "T")
        told: list[tuple[int, int]] = []

        def progress(done: int, total: int) -> None:
            told.append((done, total))

        for _ in range(2):
            await send(running, "T", 3)
            result = await asyncio.to_thread(
                archive.run_live, HERE, running.namesrv, tmp_path / "lake", progress=progress
            )
            assert (result.rows, told[-1]) == (3, (3, 3))
    assert [consumer.is_open for consumer in opened] == [False, False]


async def test_messages_deleted_before_archiving_are_an_error(tmp_path: Path) -> None:
    async with archived_cluster(tmp_path) as (running, archiving):
        broker = await running.start_broker("broker-a", store={"mapped_file_size_commit_log": 4096})
        await running.create_topic(broker, "T")
        sent = await send(running, "T", 2)
        assert (await archiving()).rows == 2
        sent += await send(running, "T", 100)
        await broker.stop()
        for begin in range(0, 3 * 4096, 4096):
            (tmp_path / "broker-a" / "commitlog" / f"{begin:020d}").unlink()
        await running.start_broker("broker-a", store={"mapped_file_size_commit_log": 4096})
        with pytest.raises(StoreError):
            await archiving()
        summary = await archiving(fail_on_data_loss=False)
        assert 0 < summary.rows < 100
        rows = archived(tmp_path / "lake")
        assert rows == sorted(sent[:2] + sent[-summary.rows :])
        assert (await archiving()).rows == 0


@pytest.mark.parametrize("count", [8, 16])
async def test_a_recreated_queue_is_an_error(count: int, tmp_path: Path) -> None:
    """Whether its messages are fewer than the archived ones, or more: those before the progress would be skipped."""
    lake = tmp_path / "lake"
    async with archived_cluster(tmp_path) as (running, archiving):
        await running.create_topic(await running.start_broker("broker-a"), "T")
        sent = await send(running, "T", 12)
        assert (await archiving()).rows == 12
    async with cluster(tmp_path / "again") as running:
        await running.create_topic(await running.start_broker("broker-a"), "T")
        await send(running, "T", count)
        with pytest.raises(StoreError):
            await asyncio.to_thread(archive.run_live, HERE, running.namesrv, lake)
    assert archived(lake) == sorted(sent)


async def test_alternating_runs_archive_each_message_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run asks the brokers, then another one archives, and what has come meanwhile, before the first has the lake."""
    lake = tmp_path / "lake"

    async with archived_cluster(tmp_path) as (running, archiving):
        await running.create_topic(await running.start_broker("broker-a"), "T")
        sent = await send(running, "T", 4)

        def open_later(opened: Archive, **options: Any) -> Any:
            monkeypatch.undo()
            with Producer("senders", running.namesrv) as producer:
                sent.extend(producer.send(Message("T", b"later")).msg_id for _ in range(8))
            assert archive.run_live(HERE, running.namesrv, lake).rows == 12
            return opened.open(**options)

        monkeypatch.setattr(Archive, "open", open_later)
        assert (await archiving()).rows == 0
        assert archived(lake) == sorted(sent)


async def test_a_missing_broker_is_an_error_or_named(tmp_path: Path) -> None:
    """It was archived before, or is required; when it is back, the archive goes on where it was."""

    async with archived_cluster(tmp_path) as (running, archiving):
        for name in ("broker-a", "broker-b"):
            broker = await running.start_broker(name)
            await running.create_topic(broker, "T")
        sent = await send(running, "T", 10) + await send(running, "T", 6, broker="broker-b")
        await broker.stop()
        with raises(RemotingError, subject="broker-b"):
            await archiving(required_brokers=["broker-a", "broker-b"])
        assert not (tmp_path / "lake").exists()
        broker = await running.start_broker("broker-b")
        assert (await archiving(required_brokers=["broker-a", "broker-b"])).rows == 16
        sent += await send(running, "T", 4) + await send(running, "T", 5, broker="broker-b")
        await broker.stop()
        with raises(RemotingError, subject="broker-b"):
            await archiving()
        without = await archiving(fail_on_missing_broker=False)
        assert without.rows == 4
        assert without.missing == ("broker-b is not registered at the name servers: queues 0 to 3 of topic 'T'",)
        assert without.to_json()["missing"] == list(without.missing)
        await running.start_broker("broker-b")
        sent += await send(running, "T", 2, broker="broker-b")
        last = await archiving()
        assert (last.rows, last.missing) == (7, ())
        assert archived(tmp_path / "lake") == sorted(sent)


async def test_a_broker_lost_during_archiving_is_archived_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the bounds and the read; the command tries again after such an error (see `rucola pipeline archive`)."""

    async with archived_cluster(tmp_path) as (running, archiving):
        await running.create_topic(await running.start_broker("broker-a"), "T")
        broker = await running.start_broker("broker-b")
        await running.create_topic(broker, "T")
        sent = await send(running, "T", 4) + await send(running, "T", 4, broker="broker-b")
        loop = asyncio.get_running_loop()

        def plan_later(source: LiveSource, ranges: OffsetRanges) -> Any:
            monkeypatch.undo()
            asyncio.run_coroutine_threadsafe(broker.stop(), loop).result()
            return source.plan(ranges)

        monkeypatch.setattr(LiveSource, "plan", plan_later)
        with pytest.raises(RemotingError):
            await archiving(fail_on_missing_broker=False)
        assert not (tmp_path / "lake" / "_rucola" / "snapshot.json").exists()
        await running.start_broker("broker-b")
        assert (await archiving()).rows == 8
        assert archived(tmp_path / "lake") == sorted(sent)


def test_unreachable_name_servers_are_an_error(tmp_path: Path) -> None:
    """Before Spark has anything to do: there is no session here."""
    with pytest.raises(RemotingError):
        archive.run_live(None, "127.0.0.1:1", tmp_path / "lake")  # type: ignore[arg-type]
    assert not (tmp_path / "lake").exists()
