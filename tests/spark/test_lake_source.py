"""A lake as the data source reads it, alone and together with its log: the rows of the log, each once."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rucola.admin import AdminClient
from rucola.client import Message, MessageQueue, Producer
from rucola.errors import ConfigError, RemotingError, StoreError
from rucola.spark.archive import Archive, LakeInUse
from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from rucola.spark.source import batch_reader
from rucola.spark.source.options import check_for_stream, parse_read_options
from rucola.spark.source.schema import COLUMNS
from support.errors import raises
from support.live_reads import live_cluster, send
from support.rows import canonical, put_all_sorts
from support.small_store import SmallStore

HERE = LazySession("tests", use_spark=False)
DAY_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC


def plan(**given: Any) -> tuple[Any, Any]:
    options = parse_read_options({name: str(value) for name, value in given.items()})
    return options, pickle.loads(pickle.dumps(batch_reader.plan(options)))


def rows_of(planned: tuple[Any, Any]) -> list[dict[str, Any]]:
    options, partitions = planned
    batches = [batch for each in partitions for batch in batch_reader.read(each, options, options.columns)]
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def read(**given: Any) -> list[dict[str, Any]]:
    return rows_of(plan(**given))


CHOICES: list[dict[str, Any]] = [
    {},
    {"subscribe": "T,007"},
    {"subscribePattern": "0.*"},
    {"subscribePattern": ".*", "includeSystemTopics": "true"},
    {"assign": json.dumps({"T": [1], "007": {"broker-a": [0], "nobody": [0]}})},
    {"subscribe": "T", "subExpression": "A || B"},
    {"subExpression": "KEYS IS NOT NULL AND TAGS = 'A'", "expressionType": "SQL92"},
    {"keys": "k1,007"},
    {"keys": "k1", "subscribe": "T"},
    {"startingTimestamp": DAY_MS},
    {"startingTimestamp": 0, "endingTimestamp": DAY_MS},
    {"columns": ""},
    {"columns": "tags,topic"},
    {"includeBody": "false", "corruptRecords": "column"},
    {"minPartitions": 5},
]


def test_a_lake_has_the_rows_of_its_log_whatever_the_options_select(small_store: SmallStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    log = {"storePath": small_store.path, "brokerName": "broker-a"}
    for _ in range(3):
        put_all_sorts(small_store)
        archive.run(HERE, small_store.path, lake, broker_name="broker-a", include_system_topics=True)
    alone = [(choice, read(lake=lake, **choice), read(**log, **choice)) for choice in CHOICES[:-1]]
    put_all_sorts(small_store)
    together = [(choice, read(lake=lake, **log, **choice), read(**log, **choice)) for choice in CHOICES]
    for choice, found, wanted in alone + together:
        names = parse_read_options({"lake": str(lake), **{k: str(v) for k, v in choice.items()}}).columns
        assert canonical(found, names) == canonical(wanted, names), choice
    assert min(len(wanted) for _, _, wanted in alone) > 0
    # Files of other topics and days are not opened.
    for path in (lake / "data").glob("topic=*/date=*/*.parquet"):
        if "topic=T/date=2023-11-15" not in str(path):
            path.unlink()
    chosen = {"subscribe": "T", "startingTimestamp": DAY_MS, "endingTimestamp": DAY_MS + 1}
    assert len(read(lake=lake, **chosen)) == 3


def test_files_are_cut_at_row_groups_and_every_row_is_in_one_part(
    small_store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    monkeypatch.setattr("rucola.spark.lake.parquet_files.ROW_GROUP_SIZE", 500)
    for n in range(40):
        small_store.put("TU"[n % 2], body=bytes(200), KEYS=f"k{n}")
    archive.run(HERE, small_store.path, lake)
    for least in (1, 2, 7, 1000):
        options, partitions = plan(lake=lake, minPartitions=least, columns="keys")
        assert sorted(row["keys"][0] for row in rows_of((options, partitions))) == sorted(f"k{n}" for n in range(40))
    assert len(partitions) > 2
    # By key only the row groups are read that may have it.
    options, partitions = plan(lake=lake, keys="k7", columns="commitLogOffset")
    assert len(rows_of((options, partitions))) == 1
    assert sum(len(batch) for each in partitions for batch in each.part.batches(("commitLogOffset",))) < 20


def test_what_is_planned_is_read_once_whatever_is_archived_and_compacted_meanwhile(
    small_store: SmallStore, tmp_path: Path
) -> None:
    lake, log = tmp_path / "lake", {"storePath": small_store.path, "brokerName": "a"}
    put: list[int] = []
    planned = []
    for _ in range(4):
        for topic in "TU":
            put += [small_store.put(topic, n % 2) for n in range(3)]
            archive.run(HERE, small_store.path, lake, broker_name="a")
        put += [small_store.put("T") for _ in range(3)]
        for chosen in ({}, {"subscribePattern": ".*"}):
            planned.append((sorted(put), plan(lake=lake, **log, **chosen)))
        Archive(lake).compact(min_files=2)
    for wanted, each in planned:
        assert sorted(row["commitLogOffset"] for row in rows_of(each)) == wanted


def test_a_union_is_refused_where_lake_and_log_cannot_be_compared(small_store: SmallStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small_store.put(UNIQ_KEY="mine")
    archive.run(HERE, small_store.path, lake, broker_name="a")
    log = {"storePath": small_store.path, "lake": lake}
    with raises(ConfigError, subject="brokerName"):
        plan(**log)
    other = SmallStore(tmp_path / "other")
    with raises(StoreError, subject="a"):
        plan(lake=lake, storePath=other.path, brokerName="a")
    other.put(UNIQ_KEY="another")
    other.put()
    with raises(StoreError, subject="a"):
        plan(lake=lake, storePath=other.path, brokerName="a")
    with raises(ConfigError, subject="includeSystemTopics"):
        plan(**log, brokerName="a", includeSystemTopics="true")
    assert len(read(lake=lake, storePath=f"{small_store.path},{other.path}", brokerName="a,b")) == 3
    with raises(ConfigError, subject="Nowhere"):
        plan(lake=lake, subscribe="Nowhere")
    for name in ("startingOffsets", "endingOffsetsByTimestamp", "startingCommitLogOffset"):
        with raises(ConfigError, subject="lake"):
            plan(lake=lake, **{name: "latest" if name == "startingOffsets" else "0"})
    with raises(ConfigError, subject="lake"):
        check_for_stream(parse_read_options({"lake": str(lake)}))
    with pytest.raises(StoreError):
        plan(lake=tmp_path / "nothing")
    by_path = tmp_path / "by path"
    archive.run(HERE, small_store.path, by_path)
    with raises(ConfigError, subject=str(small_store.path)):
        plan(lake=by_path, nameServer="127.0.0.1:1")


async def test_a_union_with_live_brokers_has_each_message_once_while_archiving_runs(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    async with live_cluster(tmp_path) as (running, broker, reading):
        await running.create_topic(broker, "T")
        sent = await send(running, "T", 20)
        await asyncio.to_thread(archive.run_live, HERE, running.namesrv, lake)
        stopped = threading.Event()

        def archiving() -> None:
            while not stopped.is_set():
                archive.run_live(HERE, running.namesrv, lake)
                try:
                    Archive(lake).compact(min_files=2)
                except LakeInUse:
                    pass

        async def sending() -> None:
            async with Producer("more", running.namesrv) as producer:
                while not stopped.is_set():
                    queue = MessageQueue("T", "broker-a", len(sent) % 4)
                    sent.append((await producer.send(Message("T", b"more"), queue)).msg_id)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.to_thread(archiving))
            tasks.create_task(sending())
            try:
                for _ in range(12):
                    acknowledged = set(sent)
                    found = Counter(
                        row["msgId"] for row in await reading(lake=str(lake), subscribe="T", columns="msgId")
                    )
                    assert max(found.values()) == 1
                    assert acknowledged <= found.keys()
            finally:
                stopped.set()
        archived = Counter(row["msgId"] for row in read(lake=lake))
        assert max(archived.values()) == 1
        assert archived.keys() <= set(sent)
        # A topic that was deleted is in the lake only, and one that is new in the log only.
        async with AdminClient(running.namesrv) as admin:
            await admin.topics.delete_on_broker(broker.address, "T")
            await admin.topics.delete_on_name_servers("T")
        await running.create_topic(broker, "U")
        late = await send(running, "U", 2)
        both = await reading(lake=str(lake), subscribe="T,U", columns="msgId")
        assert {row["msgId"] for row in both} == {*archived, *late}
        await asyncio.to_thread(archive.run_live, HERE, running.namesrv, lake)
        # A broker that the lake knows is missed.
        await broker.stop()
        with raises(RemotingError, subject="broker-a"):
            await reading(lake=str(lake), subscribe="U")
        rest = await reading(lake=str(lake), subscribe="U", columns="msgId", failOnMissingBroker="false")
        assert sorted(row["msgId"] for row in rest) == sorted(late)


@pytest.mark.spark
def test_a_lake_and_a_union_in_sql(spark: SparkSession, small_store: SmallStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    put_all_sorts(small_store)
    archive.run(HERE, small_store.path, lake, broker_name="a")
    small_store.put("Late", TAGS="A")
    spark.sql(f"CREATE TEMPORARY VIEW lake_alone USING rocketmq OPTIONS (lake '{lake}')")
    spark.sql(
        "CREATE TABLE lake_and_log USING rocketmq "
        f"OPTIONS (lake '{lake}', storePath '{small_store.path}', brokerName 'a', pushFilters 'true')"
    )
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert spark.table("lake_alone").columns == list(COLUMNS)
        archived = spark.table("lake_alone").collect()
        assert canonical(row.asDict() for row in archived) == canonical(read(lake=lake))
        query = "SELECT topic, count(*) FROM {} WHERE topic IN ('T', 'Late') GROUP BY topic ORDER BY topic"
        assert [tuple(row) for row in spark.sql(query.format("lake_alone")).collect()] == [("T", 4)]
        assert [tuple(row) for row in spark.sql(query.format("lake_and_log")).collect()] == [("Late", 1), ("T", 4)]
        # The condition has gone to the source: files of other topics are not opened.
        for path in (lake / "data").glob("topic=007/*/*.parquet"):
            path.unlink()
        late = "SELECT count(*) FROM lake_and_log WHERE topic = 'T' AND queueOffset >= 1"
        assert spark.sql(late).first()[0] == 3
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        spark.sql("DROP VIEW lake_alone")
        spark.sql("DROP TABLE lake_and_log")
