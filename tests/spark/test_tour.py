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


WIDTH = 80
JARGON = re.compile(
    r"offsetMsgId|unique key|consumer offset|backlog|\blag\b|redriv|IN_DLQ|NOT_ONLINE|msgId|rebalance|\btps\b",
    re.IGNORECASE,
)
"""Words that a reader learns later."""


def check_report(output: str, out: Path, count: int) -> None:
    """The demonstration goes from flights to a chart, in words and lines for a terminal."""
    assert f"sent {count:,} = stored {count:,} = received {count:,} = archived {count:,}" in output
    assert re.search(r"undamaged\.\nAll numbers agree, after \d+ s\.\n", output)
    for step in ("2. Send", "3. Receive", "4. Find", "5. Retry", "6. Archive", "minutes late", "mean delay", "hour"):
        assert step in output
    own_lines = [line for line in output.splitlines() if out.name not in line]
    assert [line for line in own_lines if len(line) > WIDTH] == []
    assert JARGON.findall("\n".join(own_lines)) == []
    assert (out / "flights.svg").read_text().rstrip().endswith("</svg>")
    assert [*(out / "lake").rglob("topic=Flights/date=*/*.parquet")] != []
    store, lake = (Path(out.name, name) for name in ("store", "lake"))
    assert output.endswith(f"rucola standalone --store {store}\n  rucola console --lake {lake}\n")


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
    check_report(made.stdout, tmp_path / "demo-output", int(flights.split()[1]))
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
