"""The programs on the pages of the pipeline run, and do what the pages describe."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from rucola.testing.rocketmq import RocketMQ
from support.documents import Document


def programs(page: str) -> list[str]:
    return Document.read(f"docs/{page}").texts("python")


@pytest.mark.spark
def test_the_programs_of_the_pages_run(
    spark: SparkSession,
    golden: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    read, fill = programs("pipeline-archive.md")
    (find,) = programs("pipeline-search.md")
    names = {"spark": spark}
    exec(fill.replace("/var/rocketmq/store", str(golden / "g1-clean" / "store")), names)
    rows = names["summary"].rows
    assert re.fullmatch(rf"{rows} .*'GSpam': 2000.* \d+ \d+\n", capsys.readouterr().out)
    exec(read.replace("Orders", "GSpam"), names)
    assert re.search(r"\|\d{4}-\d\d-\d\d\| *2000\|", capsys.readouterr().out)
    exec(find.replace("order-4711", "grp-0").replace("Orders", "GA").replace("paid", "TagA || TagB"), names)
    lines = (golden / "g1-clean" / "expected.jsonl").read_text().splitlines()
    keys = [json.loads(line)["properties"].get("KEYS", "").split() for line in lines]
    assert names["orders"].count() == sum("grp-0" in each for each in keys)
    assert len(names["found"].messages) == 10


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
def test_the_programs_of_the_readers_run(spark: SparkSession, rocketmq: RocketMQ, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for number in range(5):
        rocketmq.send("Orders", b"%d" % number, tags="paid")
    archive.run(LazySession("tests", use_spark=False), rocketmq.store, lake, broker_name="broker-a")
    rocketmq.send("Orders", b"later", tags="paid")
    names: dict[str, Any] = {"spark": spark}
    for program in programs("lake.md"):
        exec(program.replace("/srv/lake", str(lake)).replace("host:9876", rocketmq.namesrv), names)
    assert names["archived"].count() == names["orders"].count() == 5
    assert names["now"].count() == 6
    assert names["paid"] == [(5,)]
    assert names["last_run"].num_rows == 5
    assert names["bodies"]["body"].to_pylist() == names["frame"]["body"].to_list() == [b"%d" % n for n in range(5)]


@pytest.mark.spark
def test_the_programs_of_audit_rebuild_and_replay_run(
    spark: SparkSession,
    golden: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(golden / "g1-clean" / "store", tmp_path / "store")
    archive.run(spark, "store", "lake")
    names: dict[str, Any] = {"spark": spark}
    for page in ("audit", "rebuild", "replay"):
        (program,) = programs(f"pipeline-{page}.md")
        # A reader's session has been started in that directory, the one of these tests elsewhere.
        program = program.replace('"audit/', f'"{tmp_path}/audit/')
        exec(program.replace("Orders", "GA").replace("paid", "TagA"), names)
    assert (tmp_path / "audit" / "report.html").exists()
    assert (tmp_path / "derived" / "consumequeue" / "GA").is_dir()
    assert names["result"].rows > 0
    assert str(names["result"].rows) in capsys.readouterr().out
