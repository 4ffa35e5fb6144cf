"""Replay of requests to a real Apache 4.9.8 against Rucola's broker and name server.

Every recorded sequence is sent to servers with the recorded configuration. `differences.toml` lists, with a reason,
each line in which the responses or the resulting state differ. The test of a sequence fails if a difference is not
listed, and if a listed difference does not occur.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rucola.store.tools.check import check
from support.differential.comparison import differences
from support.differential.recording import Sequence, recorded
from support.differential.replay import Outcome, replay

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"


@cache
def reasons() -> list[dict[str, Any]]:
    """Return the entries of differences.toml: `why`, `docs` and, by sequence, `lines`."""
    entries: list[dict[str, Any]] = tomllib.loads((HERE / "differences.toml").read_text(encoding="utf-8"))["reason"]
    return entries


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Results of the sequences that this run selects. The broker's store passes its check afterwards."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [
        test.callspec.params["sequence"]
        for test in tests
        if test.originalname == test_a_recorded_sequence_has_the_same_outcome.__name__
    ]
    store = tmp_path_factory.mktemp("differential") / "store"

    async def run() -> dict[str, Outcome]:
        async with replay(store) as servers:
            return await servers.play(chosen)

    played = asyncio.run(run())
    assert check(store) == []
    return played


@pytest.mark.slow
@pytest.mark.parametrize("sequence", recorded(), ids=lambda sequence: sequence.name[:60])
def test_a_recorded_sequence_has_the_same_outcome(sequence: Sequence, outcomes: dict[str, Outcome]) -> None:
    listed = [line for reason in reasons() for line in reason["lines"].get(sequence.name, ())]
    assert sorted(differences(sequence, *outcomes[sequence.name])) == sorted(listed)


def test_every_listed_difference_has_a_sequence_and_documentation() -> None:
    names = {sequence.name for sequence in recorded()}
    listed = Counter((name, line) for reason in reasons() for name, lines in reason["lines"].items() for line in lines)
    assert {name for name, _ in listed} <= names
    assert {place: count for place, count in listed.items() if count > 1} == {}
    for reason in reasons():
        page, _, words = reason["docs"].partition(": ")
        text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
        assert words in text, reason["docs"]
