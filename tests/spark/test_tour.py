"""docs/spark-tour.md does what it says, block after block; the commands of the jobs' pages exist."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rucola.message.topics import is_system_topic
from support.documentation import check_command, commands_of
from support.golden_messages import expected, keys_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("audit", "rebuild", "reconcile", "replay")
COMMANDS = [line for page in PAGES for line in commands_of((DOCS / f"pipeline-{page}.md").read_text())]


@pytest.mark.spark
def test_the_programs_of_the_tour_run(
    spark: SparkSession, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = golden / "g1-clean" / "store"
    messages = [row for row in expected(golden, "g1-clean") if not is_system_topic(row["topic"])]
    source = (DOCS / "spark-tour.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", source, re.DOTALL)
    names: dict[str, Any] = {"__name__": "tour"}
    for block in blocks:
        program = block.replace("/var/rocketmq/store", str(store)).replace("/var/rocketmq/lake", str(tmp_path / "lake"))
        exec(compile(program, "spark-tour.md", "exec"), names)
    shown = capsys.readouterr().out
    counts = Counter(row["topic"] for row in messages)
    assert re.search(rf"\|\s*GSpam\|\s*{counts['GSpam']}\|", shown)
    assert names["one"].count() == sum(row["topic"] == "GA" and "user-6" in keys_of(row) for row in messages) > 0
    red = [row for row in messages if row["properties"].get("color") == "red" and "n" in row["properties"]]
    assert names["red"].count() == len(red) > 0
    assert names["summary"].rows == names["lake"].count() == len(messages)
    assert json.dumps(names["summary"].rows_by_topic, sort_keys=True) == json.dumps(counts, sort_keys=True)
    assert "G_g_retry dead letter 2" in shown
    assert "G_g_lite GBatch 0 1 messages wait" in shown
    tagged = [row for row in messages if row["topic"] == "GA" and row["properties"].get("TAGS") == "TagA"]
    assert f"{len(tagged)} messages of" in shown


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_pages_exist(line: str) -> None:
    check_command(line)
