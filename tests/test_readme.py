"""README.md does what it says: a reader who follows it literally gets what it shows, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.documents import Document, check_command
from support.installation import REPOSITORY, build
from support.reader import Reader

README = Document.read("README.md")
SECTIONS = README.sections()
MESSAGES = ("The first message", "More ways to send and consume", "Find messages")
PAGES = [README, *(Document.read(path) for path in sorted((REPOSITORY / "docs").rglob("*.md")))]
COMMANDS = sorted({line for page in PAGES for line in page.rucola_commands()})


def test_the_first_things_are_the_installation_and_a_message() -> None:
    assert [*SECTIONS][:4] == ["Install", *MESSAGES]


@pytest.mark.slow
def test_a_reader_without_java_installs_sends_and_inspects(tmp_path: Path) -> None:
    """From an empty directory with Python alone, in the order of the page."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    build(wheels)
    directory = tmp_path / "reader"
    directory.mkdir()
    with Reader(directory, wheels=wheels, JAVA_HOME="/nowhere") as reader:
        for title in ("Install", *MESSAGES):
            reader.follow(SECTIONS[title])
        assert (directory / "data" / "abort").exists()
        reader.interrupt()
        reader.follow(SECTIONS["Inspect and repair a store"])
        reader.type("rucola store check data")
        reader.type("rucola store check repaired")
        reader.type("rucola --version | cut -d, -f1", "rucola\n")


@pytest.mark.slow
@pytest.mark.spark
def test_a_reader_with_java_reads_the_log_as_a_table(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.follow(block for block in SECTIONS["The first message"].blocks if "activate" not in block.text)
        reader.type("python first.py", "SEND_OK\norder-1 b'one pizza'\n")
        reader.follow(SECTIONS["The log as a Spark table"])
        assert any((tmp_path / "audit").glob("*.html"))
        reader.interrupt()
        reader.type("rucola store check data")


def test_make_targets_exist() -> None:
    makefile = Document.read("Makefile").text
    targets = set(re.findall(r"\bmake (\w+)", README.text))
    assert targets >= {"demo", "setup", "test"}
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist_with_their_options(line: str) -> None:
    check_command(line)
