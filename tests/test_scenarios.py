"""tests/scenarios: what a broker does, told as commands and the lines that are expected of them.

    pytest tests/test_scenarios.py                          compares
    REWRITE=1 pytest tests/test_scenarios.py                writes what came into the files; read the diff

A file has blocks: a command, a line `----`, what comes of it, and an empty line. Lines with # are for the reader.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rucola.broker.background import group_commit
from simulation.in_memory import FlushOnLoop
from simulation.scenario_runner import ScenarioRunner

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
RULE = "----"


class Block(NamedTuple):
    """One command with what stands before it and what is expected of it."""

    before: list[str]
    command: str
    expected: list[str]


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a file; after the last command there is nothing but its lines."""
    lines = iter(text.splitlines())
    before: list[str] = []
    for line in lines:
        if not line or line.startswith("#"):
            before.append(line)
            continue
        assert next(lines) == RULE, f"after the command {line!r} a line {RULE} is missing"
        expected: list[str] = []
        for following in lines:
            if not following:
                break
            expected.append(following)
        yield Block(before, line, expected)
        before = []
    assert not before, "a comment at the end belongs to no command"


def written(told: list[Block]) -> str:
    """The file that has these blocks."""
    parts = ["\n".join([*block.before, block.command, RULE, *block.expected]) + "\n" for block in told]
    return "\n".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_prints_the_expected_transcript(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "FlushThread", FlushOnLoop)
    text = path.read_text(encoding="utf-8")
    told: list[Block] = []
    runner = ScenarioRunner(tmp_path / "store")
    try:
        for block in blocks(text):
            told.append(block._replace(expected=runner.perform(block.command)))
    finally:
        runner.close()
    if os.environ.get("REWRITE"):
        path.write_text(written(told), encoding="utf-8")
    else:
        assert written(told) == text
