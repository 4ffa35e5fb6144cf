"""Messages that have left the log are read from the lake: pulls, first offsets, times, and a lake that is away."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.utils.config import Config

from rucola.admin import AdminClient
from rucola.broker.config import MetricsExporterType
from rucola.broker.lake_reader import LakeReader
from rucola.client import ConsumeFromWhere, PullConsumer, PushConsumer
from rucola.errors import ConfigError, StoreError
from rucola.message import MessageExt
from rucola.message.record import decode, decode_many
from rucola.message.sysflag import COMPRESSED
from rucola.namesrv.server import Namesrv
from rucola.protocol import pull
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import Header
from rucola.protocol.group import QueryConsumeTimeSpanBody, QueryConsumeTimeSpanRequestHeader
from rucola.protocol.offset import QueueRequestHeader, SearchOffsetRequestHeader
from rucola.protocol.pull import PullMessageResponseHeader
from rucola.protocol.query import QueryMessageRequestHeader, ViewMessageRequestHeader
from rucola.protocol.retry import ConsumerSendMsgBackRequestHeader
from rucola.protocol.topic import (
    GetConsumeStatsRequestHeader,
    TopicRequestHeader,
    decode_consume_stats,
    decode_topic_stats,
)
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.source.columns import SCHEMA
from rucola.tiered_reads import FindFirst, Place, Places
from support.aging_broker import aging_broker
from support.cluster import Tally
from support.errors import raises
from support.metrics import BROKER_LABELS, sample_value, scrape
from support.object_store import TableBucket, vending_catalog
from support.older_lake import write_older_lake
from support.peer import Peer
from support.ports import HOST, free_ports
from support.stores import force_deletion, inner
from support.tiered import (
    SESSION,
    TIME_MS,
    delete_archived,
    odd_messages,
    opened_store,
    run_archive,
    same_message,
    tiered_broker,
)
from support.waiting import until


async def pull_all(peer: Peer, end: int, queue_offset: int = 0, **fields: Any) -> list[MessageExt]:
    """What an ordinary consumer gets, which follows the answers."""
    found: list[MessageExt] = []
    while queue_offset < end:
        answer = await peer.pull(queue_offset=queue_offset, **fields)
        header = answer.decode_header(PullMessageResponseHeader)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
        assert header.next_begin_offset > queue_offset
        found += decode_many(answer.body)
        queue_offset = header.next_begin_offset
    return found


async def test_an_ordinary_consumer_gets_every_field_of_messages_that_left_the_log(tmp_path: Path) -> None:
    originals = []
    with opened_store(tmp_path) as store:
        for number, fields in enumerate(odd_messages() * 6):
            put = store.put(inner(**fields), TIME_MS + 100 * number)  # of two days
            originals.append(decode(store.record_at(put.physical_offset) or b""))
            store.put(inner(queue_id=number % 3 + 1, tags="A"), TIME_MS + 100 * number)
        store.put(inner(body=bytes(60_000)), TIME_MS + 10_000)
        store.checkpoint()
    run_archive(tmp_path)

    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic(queues=4)
        await delete_archived(peer, world, len(originals))
        found = await pull_all(peer, len(originals))
        assert [*map(same_message, found)] == [*map(same_message, originals)]
        assert all(each.body_error or each.sys_flag & COMPRESSED == 0 or each.stored_size < 1 << 20 for each in found)
        tagged = [each for each in originals if each.tags == "A"]
        chosen = await pull_all(peer, len(originals), subscription="A")
        assert [each.queue_offset for each in chosen] == [each.queue_offset for each in tagged]


async def test_a_lake_of_an_earlier_version_that_was_adopted_serves_what_left_the_log(tmp_path: Path) -> None:
    count, half = 24, 12
    originals = []
    with opened_store(tmp_path) as store:
        for number in range(count):
            put = store.put(inner(body=(b"%d" % number).ljust(30_000), keys=f"k{number}"), TIME_MS + 100 * number)
            originals.append(decode(store.record_at(put.physical_offset) or b""))
        store.put(inner("U", body=bytes(60_000)), TIME_MS)
        store.checkpoint()
    run_archive(tmp_path)
    rows = pa.Table.from_batches(Archive(tmp_path / "lake").scan().batches(SCHEMA.names)).sort_by("commitLogOffset")
    progress = asdict(read_snapshot(tmp_path / "lake").progress["broker-a"])
    shutil.rmtree(tmp_path / "lake")
    commits = [rows.slice(0, half).to_batches(), rows.slice(half).to_batches()]
    write_older_lake(tmp_path / "lake", commits, {"broker-a": progress})
    files = {path: path.read_bytes() for path in (tmp_path / "lake").glob("topic=T/*/*.parquet")}
    run_archive(tmp_path)

    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic()
        await delete_archived(peer, world, count)
        found = await pull_all(peer, count)
        assert [*map(same_message, found)] == [*map(same_message, originals)]
        assert await offset_of(peer, RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic="T", queue_id=0)) == 0
        search = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=TIME_MS + 100 * half)
        assert await offset_of(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search) == half
        key = QueryMessageRequestHeader(topic="T", key="k3", max_num=32, begin_timestamp=0, end_timestamp=2 * TIME_MS)
        keyed = decode_many((await peer.ask(RequestCode.QUERY_MESSAGE, key)).body)
        assert [each.queue_offset for each in keyed] == [3]
    assert len(files) == 3  # two commits, the first one of two days
    assert {path: path.read_bytes() for path in files} == files


async def test_messages_of_the_lake_are_read_once_for_pulls_that_follow_each_other(tmp_path: Path) -> None:
    count = 50  # of several chunks
    with opened_store(tmp_path) as store:
        for _ in range(count):
            store.put(inner(body=bytes(30_000)), TIME_MS)
        store.put(inner("U", body=bytes(60_000)), TIME_MS)
        store.checkpoint()
    run_archive(tmp_path)

    exporter = {"metrics_exporter_type": MetricsExporterType.PROM, "metrics_prom_exporter_port": free_ports(1)[0]}
    async with tiered_broker(tmp_path, **exporter) as (peer, world):
        await peer.alter_topic()
        await delete_archived(peer, world, count)
        for _ in range(2):
            found = await pull_all(peer, count, max_msg_nums=1)
            assert [each.queue_offset for each in found] == [*range(count)]
            cached = sample_value(await scrape(peer.broker), "rocketmq_tiered_cache_bytes", **BROKER_LABELS)
            assert cached == sum(each.store_size for each in found)


async def test_consumers_pass_from_the_lake_to_the_log(tmp_path: Path) -> None:
    count, begin = 60, 20
    with opened_store(tmp_path) as store:
        for number in range(count):
            body = b"%d" % number
            store.put(inner(body=body.ljust(9000), properties=b"n\x01%d" % number), TIME_MS)
        store.checkpoint()
    run_archive(tmp_path)

    async with Namesrv(HOST, 0) as namesrv:
        address = f"{HOST}:{namesrv.port}"
        settings = {"namesrv_addr": address, "broker_ip1": HOST, "enable_property_filter": True}
        async with tiered_broker(tmp_path, **settings) as (peer, world):
            await peer.alter_topic()
            await delete_archived(peer, world, begin)
            assert peer.broker.parts is not None
            assert begin <= peer.broker.parts.storage.store.min_offset("T", 0) < count - 10

            async def consume(group: str, *subscription: str, most: int) -> list[tuple[int, bytes]]:
                consumed: Tally[tuple[int, bytes]] = Tally()
                consumer = PushConsumer(group, address, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
                consumer.subscribe("T", *subscription)
                consumer.listen(lambda message: consumed.add((message.queue_offset, message.body.strip())))
                async with consumer:
                    return sorted(await consumed.reach(most))

            expected = [(number, b"%d" % number) for number in range(count)]
            assert await consume("all", most=count) == expected
            chosen = [each for each in expected if each[0] % 2 or each[0] > 9]
            sql = "n > 9 OR n IN ('1', '3', '5', '7', '9')"
            assert await consume("sql", sql, "SQL92", most=len(chosen)) == chosen

            async with PullConsumer("pulls", address) as puller:
                (queue,) = await puller.queues("T")
                pulled, following = list[tuple[int, bytes]](), await puller.min_offset(queue)
                while following < count:
                    result = await puller.pull(queue, following)
                    pulled += [(each.queue_offset, each.body.strip()) for each in result.messages]
                    following = result.next_begin_offset
                assert pulled == expected


async def test_a_group_starts_three_years_ago_by_offset_and_by_time(tmp_path: Path) -> None:
    count, month_ms = 60, 30 * 24 * 3_600_000
    times = [TIME_MS + month_ms * (number - count + 1) for number in range(count)]  # over five years
    with opened_store(tmp_path) as store:
        for number, time_ms in enumerate(times):
            store.put(inner(body=b"%d" % number), time_ms)
            store.put(inner("U", body=bytes(20_000)), time_ms)
        store.checkpoint()
    run_archive(tmp_path)

    async with Namesrv(HOST, 0) as namesrv:
        address = f"{HOST}:{namesrv.port}"
        async with tiered_broker(tmp_path, namesrv_addr=address, broker_ip1=HOST) as (peer, world):
            await peer.alter_topic()
            await delete_archived(peer, world, count - 6)
            first = count - 1 - 36
            expected = [b"%d" % number for number in range(first, count)]

            async def consume(group: str, **options: Any) -> list[bytes]:
                consumed: Tally[bytes] = Tally()
                consumer = PushConsumer(group, address, orderly=True, **options)
                consumer.subscribe("T")
                consumer.listen(lambda message: consumed.add(message.body))
                async with consumer:
                    return await consumed.reach(len(expected))

            async with PullConsumer("by-offset", address) as puller:
                (queue,) = await puller.queues("T")
                await puller.commit(queue, first)
                assert await puller.search_offset(queue, times[first]) == first
            assert await consume("by-offset") == expected
            from_timestamp = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
            assert await consume("by-time", consume_from=from_timestamp, consume_timestamp_ms=times[first]) == expected
            async with AdminClient(address) as admin:
                await admin.offsets.reset_by_time("T", "by-offset", times[first])
            assert await consume("by-offset") == expected


@pytest.mark.parametrize(
    ("settings", "subject"), [({}, "tieredReads"), ({"delete_only_archived": True}, "archiveProgressPath")]
)
async def test_a_broker_that_could_miss_messages_does_not_start(
    tmp_path: Path, settings: dict[str, Any], subject: str
) -> None:
    settings = {"archive_progress_path": tmp_path / "progress.json", **settings}
    with raises(ConfigError, subject=subject):
        async with aging_broker(tmp_path / "store", store=settings, tiered_reads=True):
            pass


async def offset_of(peer: Peer, code: int, header: Header) -> int:
    answer = await peer.ask(code, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.ext_fields.get("offset", answer.ext_fields.get("timestamp", "")))


async def test_first_offset_and_times_are_those_of_lake_and_log(tmp_path: Path) -> None:
    times = [TIME_MS + step for step in (0, 0, 400, 900, 900, 2000, 90_000_000, 90_000_001, 90_000_900, 90_001_000)]
    asked = sorted({each + near for each in (0, TIME_MS // 1000, *times) for near in (-600, -250, -1, 0, 1, 300)})
    with opened_store(tmp_path) as store:
        for number, time_ms in enumerate(times):
            store.put(inner(body=bytes(30_000 if number == 7 else 100)), time_ms)
            store.put(inner(queue_id=1, body=bytes(20_000)), time_ms)
        expected = [store.offset_by_time("T", 0, each) for each in asked if each >= 0]
        store.checkpoint()
    run_archive(tmp_path)

    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic(queues=2)
        queue = QueueRequestHeader(topic="T", queue_id=0)
        for begin in (3, 7):  # the boundary between lake and log is anywhere
            await delete_archived(peer, world, begin)
            assert await offset_of(peer, RequestCode.GET_MIN_OFFSET, queue) == 0
            assert await offset_of(peer, RequestCode.GET_EARLIEST_MSG_STORETIME, queue) == times[0]
            found = [
                await offset_of(
                    peer,
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=each),
                )
                for each in asked
                if each >= 0
            ]
            assert found == expected
        answer = await peer.pull(queue_offset=len(times))
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.decode_header(PullMessageResponseHeader).min_offset == 0


async def test_a_queue_that_has_left_the_log_has_its_ends_and_times(tmp_path: Path) -> None:
    with opened_store(tmp_path) as store:
        for number in range(3):
            store.put(inner(body=b"%d" % number), TIME_MS + number)
        for _ in range(3):
            store.put(inner("U", body=bytes(60_000)), TIME_MS)
        store.checkpoint()
    run_archive(tmp_path)

    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic()
        await peer.alter_group()
        await peer.commit(1)
        await delete_archived(peer, world, 3)
        stats = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic="T"))
        (ends,) = decode_topic_stats(stats.body).values()
        assert (ends.min_offset, ends.max_offset, ends.last_update_timestamp) == (0, 3, TIME_MS + 2)
        header = QueryConsumeTimeSpanRequestHeader(group="g", topic="T")
        spans = await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        (span,) = decode_body(QueryConsumeTimeSpanBody, spans.body).consume_time_span_set
        times = span.min_time_stamp, span.consume_time_stamp, span.max_time_stamp
        assert times == (TIME_MS, TIME_MS, TIME_MS + 2)
        for timestamp, offset in ((TIME_MS - 9, 0), (TIME_MS + 1, 1), (TIME_MS + 9, 2)):
            search = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=timestamp)
            assert await offset_of(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search) == offset
        assert [each.body for each in await pull_all(peer, 3)] == [b"0", b"1", b"2"]
        assert (await peer.pull(queue_offset=3)).code == ResponseCode.PULL_NOT_FOUND
        assert (await peer.send(b"3")).code == ResponseCode.SUCCESS
        assert [each.body for each in await pull_all(peer, 4, 1)] == [b"1", b"2", b"3"]


async def test_keys_ids_progress_and_retries_are_found_in_the_lake(tmp_path: Path) -> None:
    with opened_store(tmp_path) as store:
        for number in range(9):
            fields: dict[str, Any] = {"keys": "k odd" if number % 2 else "k", "unique_key": f"U{number}"}
            put = store.put(inner(body=(b"%d" % number).ljust(30_000), **fields), TIME_MS + number * 1000)
            if number == 1:
                old = put.physical_offset
        store.put(inner("U", keys="k"), TIME_MS)
        store.checkpoint()
    run_archive(tmp_path)

    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic()
        await peer.alter_group()
        await peer.commit(2)
        await delete_archived(peer, world, 6)

        async def offsets_of(key: str, most: int = 32, begin: int = 0, end: int = 60) -> list[int]:
            header = QueryMessageRequestHeader(
                topic="T",
                key=key,
                max_num=most,
                begin_timestamp=TIME_MS + begin * 1000,
                end_timestamp=TIME_MS + end * 1000,
            )
            answer = await peer.ask(RequestCode.QUERY_MESSAGE, header)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND), answer.remark
            return [each.queue_offset for each in decode_many(answer.body)]

        assert await offsets_of("k") == [*range(9)]
        assert await offsets_of("odd") == [1, 3, 5, 7]
        assert await offsets_of("k", most=5) == [4, 5, 6, 7, 8]
        assert await offsets_of("k", begin=2, end=7) == [2, 3, 4, 5, 6, 7]
        assert await offsets_of("U1") == [1]
        assert await offsets_of("U9") == []

        viewed = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=old))
        assert decode(viewed.body).unique_key == "U1"
        header = GetConsumeStatsRequestHeader(consumer_group="g", topic="T")
        stats = await peer.ask(RequestCode.GET_CONSUME_STATS, header)
        (progress,) = decode_consume_stats(stats.body).offset_table.values()
        assert (progress.consumer_offset, progress.broker_offset) == (2, 9)
        assert progress.last_timestamp == TIME_MS + 1000

        back = ConsumerSendMsgBackRequestHeader(group="g", offset=old, delay_level=-1, origin_topic="T")
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SUCCESS
        (dead,) = decode_many((await peer.pull(topic="%DLQ%g")).body)
        assert (dead.body, dead.unique_key) == (b"1".ljust(30_000), "U1")


async def test_a_lake_that_is_away_moves_no_consumer(tmp_path: Path) -> None:
    with opened_store(tmp_path) as store:
        for number in range(9):
            store.put(inner(body=bytes(30_000)), TIME_MS + number)
        store.checkpoint()
    run_archive(tmp_path)

    async with tiered_broker(tmp_path, tiered_read_timeout=50) as (peer, world):
        await peer.alter_topic()
        await delete_archived(peer, world, 4)
        (tmp_path / "lake").rename(tmp_path / "away")
        answer = await peer.pull(queue_offset=2)
        header = answer.decode_header(PullMessageResponseHeader)
        assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 2)
        busy = await peer.ask(RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic="T", queue_id=0))
        assert busy.code == ResponseCode.SYSTEM_BUSY
        assert decode_many((await peer.pull(queue_offset=8)).body)[0].queue_offset == 8
        (tmp_path / "away").rename(tmp_path / "lake")

        async def is_read() -> bool:
            return decode_many((await peer.pull(queue_offset=2)).body)[0:1] != []

        await until(is_read)
        assert await offset_of(peer, RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic="T", queue_id=0)) == 0


@pytest.fixture(params=["properties", "with tables"])
def bucket(
    request: pytest.FixtureRequest, table_bucket: TableBucket, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TableBucket]:
    """The catalog has the credentials as properties, or gives them with its tables."""
    if request.param == "properties":
        yield table_bucket
        return
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with vending_catalog(table_bucket) as vending:
        yield vending


async def test_a_lake_in_an_object_store_is_read_by_its_catalog(
    tmp_path: Path, bucket: TableBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment("tests").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # as a new process reads it
    count = 9
    with opened_store(tmp_path) as store:
        for number in range(count):
            store.put(inner(body=(b"%d" % number).ljust(30_000), keys="k"), TIME_MS + number)
        store.checkpoint()
    lake = Archive(f"{bucket.url}/a/lake", "tests", progress_directory=tmp_path / "lake")
    archive.run(SESSION, tmp_path / "store", lake, broker_name="broker-a")

    async with tiered_broker(tmp_path, tiered_read_timeout=50) as (peer, world):
        await peer.alter_topic()
        await delete_archived(peer, world, 4)
        answer = await peer.pull(queue_offset=2)  # without the catalog, nothing is taken for lost
        header = answer.decode_header(PullMessageResponseHeader)
        assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 2)

    async with tiered_broker(tmp_path, tiered_read_catalog="tests") as (peer, _):
        found = await pull_all(peer, count)
        assert [int(each.body) for each in found] == [*range(count)]
        queue = QueueRequestHeader(topic="T", queue_id=0)
        assert await offset_of(peer, RequestCode.GET_MIN_OFFSET, queue) == 0
        key = QueryMessageRequestHeader(topic="T", key="k", max_num=32, begin_timestamp=0, end_timestamp=2 * TIME_MS)
        keyed = decode_many((await peer.ask(RequestCode.QUERY_MESSAGE, key)).body)
        assert [each.queue_offset for each in keyed] == [*range(count)]


@pytest.mark.parametrize("lost_offset", [0, 3])
async def test_what_was_lost_is_passed_over_and_a_topic_created_again_has_its_own_messages(
    tmp_path: Path, lost_offset: int
) -> None:
    lost = b"new %d " % lost_offset
    with opened_store(tmp_path) as store:

        def put(body: bytes) -> None:
            store.put(inner(body=body.ljust(30_000)), TIME_MS)

        for number in range(5):
            put(b"deleted %d" % number)
        store.put(inner("U", body=bytes(60_000)), TIME_MS)
        store.checkpoint()
        run_archive(tmp_path)
        while store.min_offset("T", 0) < 5:
            force_deletion(store)
        assert store.delete_queue("T", 0)
        for number in range(5):
            put(b"new %d" % number)
        store.put(inner("U", body=bytes(60_000)), TIME_MS)
        store.checkpoint()
    (file,) = (path for path in (tmp_path / "store" / "commitlog").iterdir() if lost in path.read_bytes())
    file.write_bytes(file.read_bytes().replace(lost, b"damage"))
    archive.run(SESSION, tmp_path / "store", tmp_path / "lake", broker_name="broker-a", corrupt_records="skip")

    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic()
        await delete_archived(peer, world, 5)
        for _ in range(2):
            answer = await peer.pull(queue_offset=lost_offset)
            header = answer.decode_header(PullMessageResponseHeader)
            assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, lost_offset + 1)
        found = [*await pull_all(peer, lost_offset), *await pull_all(peer, 5, lost_offset + 1)]
        assert [each.body.strip() for each in found] == [b"new %d" % n for n in range(5) if n != lost_offset]


async def test_a_topic_created_again_is_not_answered_with_what_was_read_of_the_old_one(tmp_path: Path) -> None:
    with opened_store(tmp_path) as store:
        for _ in range(5):
            store.put(inner(body=b"old".ljust(30_000)), TIME_MS)
        store.put(inner("U", body=bytes(60_000)), TIME_MS)
        store.checkpoint()
    run_archive(tmp_path)

    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic()
        await delete_archived(peer, world, 5)
        assert {each.body.strip() for each in await pull_all(peer, 5)} == {b"old"}
        deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="T"))
        cleaned = await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)
        assert (deleted.code, cleaned.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        for topic in ("T", "U"):
            await peer.alter_topic(topic)
        for topic in ("T",) * 5 + ("U",) * 3:
            sent = await peer.send(b"new".ljust(30_000), topic=topic)
            assert sent.code == ResponseCode.SUCCESS, sent.remark
        await asyncio.to_thread(run_archive, tmp_path)
        await delete_archived(peer, world, 5)
        assert {each.body.strip() for each in await pull_all(peer, 5)} == {b"new"}


async def test_a_consumer_from_the_first_offset_misses_nothing_while_files_are_archived_and_deleted(
    tmp_path: Path,
) -> None:
    count = 240
    async with tiered_broker(tmp_path) as (peer, world):
        await peer.alter_topic()
        world.percent = 86  # what is archived is deleted at once
        assert peer.broker.parts is not None
        store = peer.broker.parts.storage.store
        is_consumed = asyncio.Event()

        async def produce() -> None:
            for number in range(count):
                assert (await peer.send(str(number).encode().ljust(9000))).code == ResponseCode.SUCCESS

        async def run_archives() -> None:
            while not is_consumed.is_set():
                await asyncio.to_thread(run_archive, tmp_path)

        async def consume(begin: int) -> None:
            await until(lambda: store.min_offset("T", 0) >= begin)
            following = 0
            while following < count:
                answer = await peer.pull(
                    queue_offset=following, sys_flag=pull.SUBSCRIPTION | pull.SUSPEND, suspend_timeout_millis=100
                )
                assert answer.code != ResponseCode.PULL_OFFSET_MOVED
                for message in decode_many(answer.body):
                    assert (message.queue_offset, message.body.strip()) == (following, str(following).encode())
                    following += 1
                assert answer.decode_header(PullMessageResponseHeader).next_begin_offset == following

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_archives())
            await asyncio.gather(produce(), consume(0), consume(20), consume(60))
            is_consumed.set()


async def test_a_reader_that_hangs_is_replaced(tmp_path: Path) -> None:
    with opened_store(tmp_path) as store:
        store.put(inner(), TIME_MS)
        store.checkpoint()
    run_archive(tmp_path)
    reader = LakeReader(tmp_path / "lake", "broker-a", stuck_s=10)
    try:
        first = Places([Place(0, TIME_MS)])
        assert await reader.ask(FindFirst("T", 0)) == first
        assert await reader.ask(FindFirst("T", 1)) == Places([])
        hung = reader.pid
        # Its priority counts within the session, and a terminal interrupts the group of the broker.
        assert os.getsid(hung) == os.getsid(0)
        assert os.getpgid(hung) == hung
        assert os.getpriority(os.PRIO_PROCESS, hung) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
        os.kill(hung, signal.SIGSTOP)
        reader.stuck_s = 0.05
        results = await asyncio.gather(*(reader.ask(FindFirst("T", each)) for each in (0, 1)), return_exceptions=True)
        assert [*map(type, results)] == [StoreError, StoreError]
        reader.stuck_s = 10
        assert await reader.ask(FindFirst("T", 0)) == first
        assert reader.pid != hung
        os.kill(reader.pid, signal.SIGKILL)
        with pytest.raises(StoreError):
            await reader.ask(FindFirst("T", 0))
        assert await reader.ask(FindFirst("T", 0)) == first
        assert reader.failures == 2
    finally:
        await reader.close()
