"""docs/client.md, followed literally: one `rucola standalone`, against which every program prints what it says."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rucola.store.tools.check import check
from rucola.testing.rocketmq import RocketMQ
from support.documents import Document
from support.installation import REPOSITORY
from support.reader import Reader

DOCS = Document.read("docs/client.md")
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
LINKED = re.findall(r"\(\.\./examples/(\w+\.py)\)", DOCS.text)
IN_ORDER = [REPOSITORY / "examples" / name for name in dict.fromkeys(LINKED)]
ROUNDS = 2
"""The programs can be repeated: none leaves a message that the next run would receive, or counts on an empty topic."""


def promised(path: Path) -> str:
    """What the program says that it prints: the end of its docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False)
    assert docstring, f"{path.name} says what it shows and prints"
    return textwrap.dedent(docstring.partition("\n\nIt prints:\n\n")[2]).strip()


@pytest.mark.slow
def test_the_page_can_be_followed_with_one_broker(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    with Reader(tmp_path) as reader:
        reader.follow(DOCS)
        monkeypatch.setenv("ROCKETMQ_NAMESRV", reader.namesrv)
        for _ in range(ROUNDS):
            for path in IN_ORDER:
                runpy.run_path(str(path), run_name="__main__")
                assert (path.name, capsys.readouterr().out.strip()) == (path.name, promised(path))
        assert [record.getMessage() for record in caplog.records if "unacknowledged" in record.getMessage()] == []
        reader.interrupt()
        reader.type("rucola store check store")


@pytest.mark.slow
@pytest.mark.parametrize("broker_name", ["broker-g", "broker-r"])
def test_the_shared_queues_end_where_the_ring_gives_the_first_or_the_second_member_all_of_them(
    tmp_path: Path, broker_name: str
) -> None:
    path = REPOSITORY / "examples" / "shared_queues.py"
    with RocketMQ(tmp_path, {"brokerName": broker_name}) as rocketmq:
        ran = subprocess.run(
            [sys.executable, str(path)], env={**os.environ, **rocketmq.variables}, capture_output=True, timeout=60
        )
        assert (ran.stdout.decode().strip(), ran.returncode) == (promised(path), 0), ran.stderr.decode()
    assert check(tmp_path / "store") == []


def test_every_example_is_documented() -> None:
    assert sorted(IN_ORDER) == EXAMPLES


def test_every_example_has_topics_and_groups_of_its_own() -> None:
    """On one broker they would otherwise receive each other's messages."""
    users: dict[str, set[str]] = {}
    for path in EXAMPLES:
        source = path.read_text(encoding="utf-8")
        for name in {*re.findall(r'Message\("(\w+)"', source), *re.findall(r'PushConsumer\(\s*"([\w-]+)"', source)}:
            users.setdefault(name, set()).add(path.name)
    assert len(users) > len(EXAMPLES)
    assert {name: paths for name, paths in users.items() if len(paths) > 1} == {}


def test_the_programs_on_the_page_send_and_consume(
    rocketmq: RocketMQ, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", rocketmq.namesrv)
    sections = DOCS.sections()
    loop, listener, _ = sections["Consuming"].texts("python")
    for program in (*sections["Sending"].texts("python"), loop, listener):
        exec(program, {"__name__": "__main__"})
    stored, consumed, billed = capsys.readouterr().out.splitlines()
    assert (stored.split()[0], consumed, billed) == ("SEND_OK", "order-1 b'one pizza'", "billed order-1")
