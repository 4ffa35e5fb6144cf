"""`rucola pipeline status` and `check`: what a lake holds, how far it is behind, and whether it is what the log is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from rucola.cli.main import main
from rucola.spark.archive import Archive, ArchiveProgress
from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from rucola.spark.source.columns import SCHEMA
from rucola.testing.rocketmq import RocketMQ
from support.rows import put_all_sorts
from support.small_store import SmallStore

HERE = LazySession("tests", use_spark=False)


@pytest.fixture
def small_store(tmp_path: Path) -> SmallStore:
    return SmallStore(tmp_path / "store")


def invoke(command: str, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["pipeline", command, *map(str, arguments)])


def rows_of(lake: Path) -> pa.Table:
    return pa.Table.from_batches(list(Archive(lake).scan().batches(SCHEMA.names)), SCHEMA)


def append(lake: Path, rows: pa.Table, progress: dict[str, ArchiveProgress]) -> None:
    with Archive(lake).open() as target:
        target.append(rows.to_batches())
        target.commit(progress)


def test_status_counts_what_is_archived_and_what_is_not(small_store: SmallStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for _ in range(2):
        put_all_sorts(small_store)
        archive.run(HERE, small_store.path, lake, broker_name="a")
    alone = json.loads(invoke("status", "--lake", lake, "--json").stdout)
    assert (alone["rows"], alone["snapshots"], alone["keyFiles"]) == (24, 2, 2)
    assert alone["size"] == sum(path.stat().st_size for path in lake.glob("data/*/*/*.parquet"))
    of_topic = {each["topic"]: each for each in alone["topics"]}
    assert [(name, each["rows"], each["files"], each["lag"]) for name, each in of_topic.items()] == [
        ("%RETRY%a#b=c", 8, 8, None),
        ("007", 8, 8, None),
        ("T", 8, 8, None),
    ]
    assert of_topic["T"]["newestMs"] == 1_700_006_400_000
    small_store.put("T", 1, at_ms=round(time.time() * 1000) - 3_600_000)
    small_store.put("T", 0, at_ms=round(time.time() * 1000))
    small_store.put("New", at_ms=1)
    log = ("--store", small_store.path, "--brokerName", "a")
    behind = json.loads(invoke("status", "--lake", lake, *log, "--json").stdout)
    lags = {each["topic"]: (each["rows"], each["lag"], each["latencyMs"]) for each in behind["topics"]}
    assert lags["007"] == (8, 0, 0)
    assert lags["T"][:2] == (8, 2)
    assert 3_600_000 <= lags["T"][2] < 7_200_000
    assert lags["New"][:2] == (0, 1)
    table = invoke("status", "--lake", lake, *log).stdout.splitlines()
    assert [line.split()[:3] for line in table[1:5]] == [
        ["%RETRY%a#b=c", "8", "0"], ["007", "8", "0"], ["New", "0", "1"], ["T", "8", "2"],
    ]  # fmt: skip
    metrics = invoke("status", "--lake", lake, *log, "--prometheus").stdout
    assert 'rocketmq_archive_lag{topic="T"} 2.0' in metrics
    assert "rocketmq_archive_snapshots 2.0" in metrics


def test_check_finds_nothing_where_lake_and_log_agree(small_store: SmallStore, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    log = ("--store", small_store.path, "--brokerName", "a")
    for _ in range(3):
        put_all_sorts(small_store)
        archive.run(HERE, small_store.path, lake, broker_name="a")
    Archive(lake).compact(min_files=2)
    small_store.put("T", 1)
    found = invoke("check", "--lake", lake, *log, "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) == {
        "lake": str(lake), "queues": 3, "messages": 36, "compared": 36, "differences": [],
    }  # fmt: skip
    assert json.loads(invoke("check", "--lake", lake, *log, "-t", "T", "--json").stdout)["messages"] == 12
    assert invoke("check", "--lake", lake).exit_code == 2


def test_check_names_every_difference(small_store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.spark.jobs.check.BLOCK_BITS", 4)
    monkeypatch.setattr("rucola.spark.jobs.check.MAX_BLOCKS", 2)
    for n in range(600):
        small_store.put("T", n % 2, b"%d" % n)
    archive.run(HERE, small_store.path, tmp_path / "right", broker_name="a")
    rows = rows_of(tmp_path / "right")
    progress = dict(Archive(tmp_path / "right").progress())
    queues = list(zip(rows["queueId"].to_pylist(), rows["queueOffset"].to_pylist(), strict=True))
    # Queue 0 lacks messages, queue 1 has other bodies, and some messages at wrong offsets.
    other = {(1, 5), (1, 6), (1, 40), (1, 170)}
    bodies = [b"other" if each in other else body for each, body in zip(queues, rows["body"].to_pylist(), strict=True)]
    wrong = with_column(rows, "body", bodies)
    lost = {(0, 0), *((0, n) for n in range(100, 120))}
    append(tmp_path / "lake", wrong.filter(pa.array([each not in lost for each in queues])), progress)
    moved = with_column(wrong, "queueOffset", [offset + 5 for _, offset in queues])
    append(tmp_path / "lake", moved.filter(pa.array([queue == 1 and at >= 290 for queue, at in queues])), progress)
    log = ("--lake", tmp_path / "lake", "--store", small_store.path, "--brokerName", "a")
    found = invoke("check", *log, "--json")
    assert found.exit_code == 1, found.output
    differences = json.loads(found.stdout)["differences"]
    assert sorted((d["queueId"], d["begin"], d["end"], d["kind"]) for d in differences) == [
        (0, 0, 1, "gap"),
        (0, 100, 120, "gap"),
        (1, 5, 7, "different"),
        (1, 40, 41, "different"),
        (1, 160, 176, "different"),
        (1, 295, 300, "different"),
        (1, 295, 300, "duplicate"),
        (1, 300, 305, "beyond"),
    ]
    table = invoke("check", *log).stdout.splitlines()
    assert ["T", "a", "0", "gap", "100", "119"] in [line.split() for line in table]


def with_column(rows: pa.Table, name: str, values: list[Any]) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, SCHEMA.field(name).type))


@pytest.mark.slow
def test_status_and_check_ask_live_brokers(rocketmq: RocketMQ, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for n in range(10):
        rocketmq.send("T", b"%d" % n)
    archive.run_live(HERE, rocketmq.namesrv, lake)
    rocketmq.send("T", b"later")
    found = invoke("status", "--lake", lake, "-n", rocketmq.namesrv, "--json")
    assert [(t["topic"], t["rows"], t["lag"]) for t in json.loads(found.stdout)["topics"]] == [("T", 10, 1)]
    found = invoke("check", "--lake", lake, "-n", rocketmq.namesrv, "--json")
    assert (found.exit_code, json.loads(found.stdout)["compared"]) == (0, 10)
    with rocketmq.broker_down():
        found = invoke("status", "--lake", lake, "-n", rocketmq.namesrv, "--json")
        assert json.loads(found.stdout)["topics"][0]["lag"] is None
        assert "broker-a" in found.stderr
        assert invoke("check", "--lake", lake, "-n", rocketmq.namesrv).exit_code == 1
