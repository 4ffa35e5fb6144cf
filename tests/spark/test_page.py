"""The programs of docs/spark.md run, in their order, on a store and a broker with the topic that they name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rucola.spark.jobs import archive
from rucola.testing.rocketmq import RocketMQ
from support.documents import Document

PROGRAMS = Document.read("docs/spark.md").texts("python")
ELSEWHERE = ("lag_of", "requiredBrokers")
"""Their test is in test_missing_brokers.py, with two brokers."""
COUNT = 20


@pytest.mark.spark
@pytest.mark.slow
def test_the_programs_of_the_page_run(
    spark: SparkSession, rocketmq: RocketMQ, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(COUNT):
        rocketmq.send("Flights", b"%d" % number, keys=f"k{number}", tags="UA")
    lake = tmp_path / "lake"
    archive.run(spark, str(rocketmq.store), str(lake))
    rows = spark.createDataFrame(
        [(b"x", f"key-{number % 3}", number) for number in range(9)], "body binary, shardingKey string, number int"
    )
    names: dict[str, Any] = {"spark": spark, "rows": rows.drop("shardingKey", "number")}
    places = {"/var/rocketmq/store": str(rocketmq.store), "host:9876": rocketmq.namesrv, "/srv/lake": str(lake)}
    counts = {}
    for program in PROGRAMS:
        for old, new in places.items():
            program = program.replace(old, new)
        if "main(" in program:
            job = tmp_path / "job.py"
            job.write_text(program)
            command = [sys.executable, job, "pipeline", "audit", "--from", rocketmq.store, "--out", tmp_path / "audit"]
            subprocess.run(command, check=True, capture_output=True)
            assert any((tmp_path / "audit").glob("*.html"))
        elif not any(word in program for word in ELSEWHERE):
            if "ordered" in program:
                names["rows"] = rows
            exec(compile(program, "spark.md", "exec"), names)
            counts[len(counts)] = len(rocketmq.messages("Flights"))
    assert counts[1] == COUNT + 9, "rows became messages"
    assert int(capsys.readouterr().out) >= COUNT + 9
    assert len(rocketmq.messages("Flights")) == COUNT + 18
    assert names["stream"].isStreaming
    assert names["table"].count() == COUNT
    assert names["archived"].where("topic = 'Flights'").count() == COUNT
    assert names["found"].messages >= COUNT + 18
