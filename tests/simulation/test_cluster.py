"""Whole clusters from seeds: what clients were told is true, and the same seed gives the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.cluster import seeds

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parent.parent
WORKERS = 2
SEEDS = 50
PART = 25


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simulation.cluster", *arguments]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.parametrize("seed", [7, 33, 6, 11])  # the last two have databases and archive jobs
def test_the_same_seed_gives_the_same_run_in_another_process(seed: int) -> None:
    first, second = simulate("--seed", str(seed)), simulate("--seed", str(seed))
    assert first.stdout == second.stdout
    assert "everything is delivered" in first.stdout


@pytest.mark.parametrize("first", range(1, SEEDS, PART))
def test_seeds_hold_what_is_promised(first: int) -> None:
    run = simulate("--seeds", f"{first}-{first + PART - 1}", "--workers", str(WORKERS), "--no-shrink")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "name",
    [
        "a_dead_letter_is_dropped",
        "a_relay_takes_a_message_for_sent",
        "a_right_to_acknowledge_does_not_end",
        "an_archive_commits_twice",
        "an_effect_is_committed_alone",
        "answers_before_the_flush",
        "delivers_early",
        "ended_transactions_are_kept",
        "forgets_a_commit",
        "pop_skips_a_message",
    ],
)
def test_planted_bugs_are_found(name: str) -> None:
    run = simulate("--mutations", name)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("path", sorted((TESTS / "simulation/mended").glob("*.json")), ids=lambda path: path.stem)
def test_what_was_mended_stays_so(path: Path) -> None:
    run = simulate("--plan", str(path))
    assert run.returncode == 0, run.stdout


def test_a_failing_run_is_shrunk_to_what_it_needs() -> None:
    from simulation.cluster.mutations import MUTATIONS
    from simulation.cluster.plan import draw

    plant, suits = MUTATIONS["delivers_early"]
    plan = next(plan for plan in map(draw, range(1, 1000)) if suits(plan) and len(plan.faults) > 2)
    failed = seeds.outcome_of(plan, plant)
    smallest = seeds.shrink(failed, plant)
    assert smallest.broken
    assert not smallest.plan.faults
    assert "delayed" in {client.kind for client in smallest.plan.clients}
    assert len(smallest.plan.clients) <= 2
