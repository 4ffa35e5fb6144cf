"""Transcripts of a terminal, replayed on the golden store: they hold the texts of each command.

A line that begins with `$` is a command; what follows is its output and errors, and `[CODE]` if it failed. After a
change of texts, `WRITE_TRANSCRIPTS=1 .venv/bin/pytest tests/cli/test_transcripts.py` writes what is printed now: review
the difference.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from rucola.admin.commands import CATALOGUE
from rucola.cli.main import main
from support.golden_cluster import GoldenCluster

pytestmark = pytest.mark.usefixtures("_utc")

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def replay(cluster: GoldenCluster, line: str) -> str:
    """The command of a line and what it prints, with names for what differs from run to run."""
    arguments = shlex.split(line.replace("BROKER", cluster.broker))
    assert arguments.pop(0) == "rucola"
    environment = {"NAMESRV_ADDR": cluster.namesrv, "COLUMNS": "80"}
    result = CliRunner().invoke(main, arguments, env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), (line, result.exception)
    text = result.output.replace(cluster.broker, "BROKER").replace(cluster.namesrv, "NAMESRV")
    for pattern, name in (
        (r" {2,}", "  "),
        (r"127\.0\.0\.1:\d{5}\b", "CLIENT"),
        (r"(?<=SEND_OK  )[0-9A-F]{32}", "NEW_ID"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "TIME"),
        (r"\d+\.\d\d\(\d+,\d+ms\) .*", "LOAD"),
        (r"\d+\.\d\dms", "DURATION"),
        (r"(?<=ASYNC_MASTER  1  )\d+", "END"),
        (r" +$", ""),
        (r"-{3,}|─{3,}", "---"),
    ):
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    code = f"[{result.exit_code}]\n" if result.exit_code else ""
    return f"$ {line}\n{text}{code}"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_commands_print_their_transcripts(cluster: GoldenCluster, path: Path) -> None:
    recorded = path.read_text(encoding="utf-8")
    printed = "".join(replay(cluster, line[2:]) for line in recorded.splitlines() if line.startswith("$ "))
    if os.environ.get("WRITE_TRANSCRIPTS"):
        path.write_text(printed, encoding="utf-8")
    assert printed == recorded


def test_each_command_has_a_transcript() -> None:
    recorded = "".join(path.read_text(encoding="utf-8") for path in TRANSCRIPTS)
    assert set(re.findall(r"^\$ rucola admin (\w+)", recorded, flags=re.MULTILINE)) >= CATALOGUE.keys()
