"""`rucola pipeline status` and `check`: what a lake holds, how far it is behind, and whether it is what the log is."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner, Result

from rucola.cli.main import main
from rucola.spark.archive import Archive, ArchiveProgress
from rucola.spark.jobs import archive
from rucola.spark.lake.snapshot import RowFile
from rucola.spark.lake.tables import read_snapshot
from rucola.spark.session import LazySession
from rucola.spark.source import batch_reader
from rucola.spark.source.columns import SCHEMA
from rucola.spark.source.options import parse_read_options
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


@pytest.mark.parametrize("runs", [1, 3])
def test_check_knows_a_queue_that_was_created_again(small_store: SmallStore, tmp_path: Path, runs: int) -> None:
    lake = tmp_path / "lake"
    log = ("--lake", lake, "--store", small_store.path, "--brokerName", "a")

    def put(offsets: list[int], *, archives: bool = runs > 1) -> None:
        """Create the queue again, and store messages in it; those at other offsets are lost."""
        shutil.rmtree(small_store.path / "consumequeue", ignore_errors=True)
        for offset in offsets:
            small_store.next_offsets["T", 0] = offset
            small_store.put("T", body=b"%d of %d" % (offset, len(offsets)))
        if archives:
            archive.run(HERE, small_store.path, lake, broker_name="a")

    put([*range(9)])
    put([0, 1, 3, 4])
    put([1, 2, 3])
    put([*range(6)], archives=True)
    Archive(lake).compact(min_files=2)
    found = json.loads(invoke("check", *log, "--json").stdout)
    assert (found["queues"], found["messages"], found["compared"]) == (1, 22, 6)
    assert [(each["kind"], each["begin"], each["end"]) for each in found["differences"]] == [("gap", 2, 3)]
    # What is in the lake twice is so in each of the queues.
    rows = rows_of(lake)
    twice = pc.is_in(rows["body"], pa.array([b"4 of 9", b"4 of 4", b"4 of 6"]))
    append(lake, rows.filter(twice), dict(Archive(lake).progress()))
    found = json.loads(invoke("check", *log, "--json").stdout)
    assert [(each["begin"], each["end"]) for each in found["differences"] if each["kind"] == "duplicate"] == [
        (4, 5)
    ] * 3
    # A union and the next run go on with the last one.
    small_store.put("T", body=b"later")

    def lag_and_rows() -> tuple[int, int]:
        options = parse_read_options(
            {"lake": str(lake), "storePath": str(small_store.path), "brokerName": "a", "subscribe": "T"}
        )
        batches = [batch_reader.read(each, options, ("body",)) for each in batch_reader.plan(options)]
        (topic,) = json.loads(invoke("status", *log, "--json").stdout)["topics"]
        return topic["lag"], sum(len(batch) for each in batches for batch in each)

    assert lag_and_rows() == (1, 26)
    archive.run(HERE, small_store.path, lake, broker_name="a")
    assert lag_and_rows() == (0, 26)
    put([*range(8)], archives=True)
    assert lag_and_rows() == (0, 34)
    # Also before they are archived.
    put([0, 1, 2], archives=False)
    assert lag_and_rows() == (3, 37)
    found = json.loads(invoke("check", *log, "--json").stdout)
    assert (found["messages"], found["compared"]) == (34, 0)
    assert {each["kind"] for each in found["differences"]} == {"gap", "duplicate"}


def with_column(rows: pa.Table, name: str, values: list[Any]) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, SCHEMA.field(name).type))


def files_of(lake: Archive) -> tuple[RowFile, ...]:
    return read_snapshot(lake.path, lake.catalog).rows


@pytest.mark.parametrize("catalog", [None, "sqlite"])
def test_a_lake_goes_on_without_files_that_are_damaged(
    small_store: SmallStore, tmp_path: Path, catalog: str | None
) -> None:
    lake, copies = tmp_path / "lake", tmp_path / "lake" / "_rucola"
    at: list[str] = []
    progress: list[object] = []
    if catalog is not None:
        copies = tmp_path / "copies" / "_rucola"
        at, progress = ["--catalog", f"sqlite:///{tmp_path}/catalog.db"], ["--progress", tmp_path / "copies"]
    archive_it = ("archive", "--store", small_store.path, "--brokerName", "a", "--out", lake, *at, *progress)
    of_lake = ("--lake", lake, *at)
    for n in range(5):
        for queue_id in (0, 1, 1):
            small_store.put("T", queue_id, KEYS=f"k{n}")
        small_store.put("Other", KEYS=f"k{n}")
        assert invoke(*archive_it).exit_code == 0
    held = Archive(lake, at[1] if at else None)
    files = sorted((file for file in files_of(held) if file.topic == "T"), key=lambda file: file.least)
    gone, short, zeros = damaged = [lake / file.path for file in files[1:4]]
    gone.unlink()
    short.write_bytes(short.read_bytes()[:-1])
    zeros.write_bytes(bytes(zeros.stat().st_size))
    for command in (archive_it, ("compact", *of_lake)):
        refused = invoke(*command)
        assert refused.exit_code == 1
        assert any(str(path) in refused.output for path in (gone, short))
        assert "rucola pipeline forget" in refused.output
    # Nothing is lost by mistake.
    for name in (next(copies.iterdir()), lake / "data", gone.with_name("other")):
        assert invoke("forget", *of_lake, name, "--yes").exit_code == 1
    assert invoke("forget", *of_lake, gone, "--json").exit_code == 1  # nobody has confirmed
    assert len(files_of(held)) == 10
    # Without a directory for them, nothing would tell brokers.
    asked = invoke("forget", *of_lake, gone)
    assert ("--progress" in asked.stderr) == (catalog is not None)
    # One after the other; the command names what is still damaged.
    refused = invoke("forget", *of_lake, *progress, gone, "--yes")
    assert refused.exit_code == 1
    assert str(short) in refused.output
    # Brokers know it at once: they must not delete what only the forgotten file had.
    told = json.loads((copies / "files.json").read_bytes())
    assert [file["path"] for file in told["forgotten"]] == [files[1].path]
    found = invoke("forget", *of_lake, *progress, files[2].path, zeros, zeros, "--yes", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["rows"] == 6
    assert json.loads(found.stdout)["files"] == [
        {
            "path": file.path, "topic": "T", "date": "2023-11-14", "rows": 3, "brokerName": "a", "queueIds": [0, 1],
            "queueOffsets": [n, 2 * n + 1],
        }
        for n, file in ((2, files[2]), (3, files[3]))
    ]  # fmt: skip
    told = json.loads((copies / "files.json").read_bytes())
    assert {file["path"] for file in told["rows"]} == {file.path for file in files_of(held)}
    assert {(file["path"], file["least"], file["most"], *file["brokers"]) for file in told["forgotten"]} == {
        (file.path, file.least, file.most, "a", "a") for file in files[1:4]
    }
    # Writers and readers go on.
    small_store.put("T", 0, KEYS="k5")
    assert json.loads(invoke(*archive_it, "--json").stdout)["rows"] == 1
    assert json.loads(invoke("compact", *of_lake, *progress, "--json").stdout)["rows"] == 3 + 3 + 1 + 5
    told = json.loads((copies / "files.json").read_bytes())
    assert [file["path"] for file in told["rows"]] == [file.path for file in files_of(held)]
    held.compact(keep_replaced_ms=0)
    assert [path.exists() for path in damaged] == [False, True, True]
    for n, count in ((0, 4), (1, 1), (2, 1), (3, 1), (4, 4), (5, 1)):
        assert len(json.loads(invoke("search", *of_lake, "-k", f"k{n}", "--json").stdout)["messages"]) == count
    counted = invoke("sql", *of_lake, "SELECT count(*) AS n FROM messages", "--json")
    assert json.loads(counted.stdout)["rows"] == [{"n": 12}]
    checked = invoke("check", *of_lake, "--store", small_store.path, "--brokerName", "a", "--json")
    assert checked.exit_code == 1
    differences = json.loads(checked.stdout)["differences"]
    assert [(each["kind"], each["topic"], each["queueId"], each["begin"], each["end"]) for each in differences] == [
        ("gap", "T", 0, 1, 4), ("gap", "T", 1, 2, 8),
    ]  # fmt: skip


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
