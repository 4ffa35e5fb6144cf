"""docs/spark-tour.md does what it says, block after block; the commands of the jobs' pages exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rucola.store.tools.check import check
from support.documents import Document, check_command
from support.servers import run

TOUR = Document.read("docs/spark-tour.md")
PAGES = ("audit", "rebuild", "reconcile", "replay")
COMMANDS = [line for page in PAGES for line in Document.read(f"docs/pipeline-{page}.md").rucola_commands()]


@pytest.mark.spark
@pytest.mark.slow
def test_a_reader_of_the_tour_sees_what_it_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the store that the command at the top of the page makes."""
    (flights,) = re.findall(r'^\$ make demo ARGS="(.*)"$', TOUR.text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    made = run("demo", *flights.split())
    assert made.returncode == 0, made.stderr
    programs, outputs = TOUR.texts("python"), TOUR.texts("text")
    assert len(programs) == len(outputs) > 0
    names: dict[str, Any] = {"__name__": "tour"}
    for program, output in zip(programs, outputs, strict=True):
        # A reader's session has been started in that directory, the one of these tests elsewhere.
        program = program.replace('"demo-output/', f'"{tmp_path}/demo-output/')
        exec(compile(program, "spark-tour.md", "exec"), names)
        assert capsys.readouterr().out.strip() == output.strip(), program
    assert check(tmp_path / "demo-output" / "store") == []


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_pages_exist(line: str) -> None:
    check_command(line)
