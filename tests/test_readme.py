"""The README, in English and Chinese: a reader who follows it literally gets what it shows, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rucola.testing.rocketmq import RocketMQ
from support.documents import Document, check_command
from support.installation import REPOSITORY, build
from support.reader import Reader

README, CHINESE = Document.read("README.md"), Document.read("README.zh.md")
PAGES = [README, CHINESE, *(Document.read(path) for path in sorted((REPOSITORY / "docs").rglob("*.md")))]
COMMANDS = sorted({line for page in PAGES for line in page.rucola_commands()})


@pytest.mark.slow
def test_a_reader_without_java_installs_sends_and_inspects(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From an empty directory with Python alone, in the order of the page."""
    first_message, *_ = README.sections().values()
    wheel, _ = build(tmp_path_factory)
    directory = tmp_path / "reader"
    directory.mkdir()
    program = README.blocks[0]
    assert "first.py" in first_message.text
    (directory / "first.py").write_text(program.text, encoding="utf-8")
    with Reader(directory, {"install .": "install rucola-mq"}, wheels=wheel.parent, JAVA_HOME="/nowhere") as reader:
        reader.follow(first_message)
        assert (directory / "store" / "abort").exists()
        reader.interrupt()
        reader.type("rucola store check store")
        reader.type("rucola --version | cut -d, -f1", "rucola\n")


@pytest.mark.rocketmq
def test_the_test_of_the_page_passes(rocketmq: RocketMQ) -> None:
    program: dict[str, Any] = {}
    exec(README.texts("python")[1], program)
    program["test_a_reminder_comes_after_two_hours"](rocketmq)


def test_the_chinese_page_has_the_same_programs_and_commands() -> None:
    """Comments may be translated."""
    pages = [[(one.language, re.sub(r"  #.*", "", one.text)) for one in page.blocks] for page in (README, CHINESE)]
    english, chinese = ([one for one in page if one[0] in ("python", "console")] for page in pages)
    assert chinese == english


def test_make_targets_exist() -> None:
    makefile = Document.read("Makefile").text
    targets = set(re.findall(r"\bmake (\w+)", README.text))
    assert targets >= {"demo", "test"}
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist_with_their_options(line: str) -> None:
    check_command(line)
