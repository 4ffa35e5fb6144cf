"""Small jobs as commands: CPU time of all their processes, without Spark and with it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from figures import Aim, Figure, median
from floors import Options
from processes import Spent, spent_in_turns
from written import write

TOPIC = "BenchSmall"
RECORD_SIZE = 200
FEW, SOME = 7, 1500
"""Number of messages of a replay, and of the other jobs."""

SHARE = 1 / 3
"""The aim: CPU time as a share of Spark's."""


def measure(options: Options) -> list[Figure]:
    """Run each command without Spark and in Spark, in alternating rounds."""
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        folder = Path(name)
        few, some, lake = folder / "few", folder / "some", folder / "lake"
        write(few, TOPIC, RECORD_SIZE, FEW)
        write(some, TOPIC, RECORD_SIZE, SOME)
        _run("archive", "--store", str(some), "--out", str(lake))
        numbers = itertools.count()
        jobs: dict[str, Callable[[], list[str]]] = {
            "replay": lambda: ["replay", "--from", str(few), "--dry-run"],
            "audit": lambda: ["audit", "--from", str(some), "--out", str(folder / "audit")],
            "archive": lambda: ["archive", "--store", str(some), "--out", str(folder / f"lake-{next(numbers)}")],
            "search": lambda: ["search", "--lake", str(lake), "-g", "TagA"],
        }
        return [_figure(job, command, max(2, options.rounds - 2)) for job, command in jobs.items()]


def _figure(job: str, command: Callable[[], list[str]], rounds: int) -> Figure:
    """Compare the CPU time of both ways."""
    here, there = spent_in_turns([lambda: _run(*command(), "--no-spark"), lambda: _run(*command(), "--spark")], rounds)

    def cpu_s(spent: Spent) -> float:
        return spent.cpu_s

    return Figure(
        f"small_{job}",
        median(cpu_s, here),
        "s of CPU",
        floor=median(cpu_s, there),
        floor_is="the same command in Spark",
        aims=[Aim("ratio", SHARE)],
        more={
            "least_s": min(map(cpu_s, here)),
            "most_s": max(map(cpu_s, here)),
            "least_s_in_Spark": min(map(cpu_s, there)),
            "most_s_in_Spark": max(map(cpu_s, there)),
            "wall_s": median(lambda spent: spent.wall_s, here),
            "wall_s_in_Spark": median(lambda spent: spent.wall_s, there),
        },
    )


def _run(*arguments: str) -> None:
    """Run a command and wait for all its processes, of which the Java runtime ends last: it holds the pipes."""
    subprocess.run([sys.executable, "-m", "rucola", "pipeline", *arguments], capture_output=True, check=True)
