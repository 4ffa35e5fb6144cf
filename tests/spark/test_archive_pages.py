"""The programs in docs/pipeline-archive.md and docs/pipeline-search.md run, and do what stands beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


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
