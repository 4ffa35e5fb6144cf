"""Tutorials of the documentation do what they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers import server
from support.tutorial import Tutorial, check_output

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
SET_UP = ("python3 -m venv", ". venv", "pip install", "rucola standalone")
"""What the fixture does instead of the reader."""


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    arguments = ("standalone", "--store", tmp_path / "store", "--namesrv-port", "0", "--broker-port", "0")
    with server(*arguments, log=tmp_path / "standalone.log") as running:
        yield running.addresses()[0]
        assert running.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_works_as_written(page: Path, tmp_path: Path, namesrv: str) -> None:
    tutorial = Tutorial(page, tmp_path, namesrv)
    commands = [(line, shown) for line, shown in tutorial.commands() if not line.startswith(SET_UP)]
    assert commands
    for line, shown in commands:
        output = tutorial.run(line)
        check_output(shown, output)
