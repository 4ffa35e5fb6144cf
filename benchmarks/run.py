"""Measure Rucola, each figure next to a floor taken in the same run: a table for people, JSON for programs.

    python benchmarks/run.py [--only NAME ...] [--quick | --full] [--json PATH]

Every benchmark runs in a process of its own, which is the load generator, and starts the servers it measures in
others. README.md in this folder says how to read the figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console

from figures import Figure, machine, show
from floors import Options

BENCHMARKS = (
    *("start", "send", "tls", "pull", "query", "delivery", "store", "disk"),
    *("columns", "read", "live", "archive", "search", "replay", "small", "scale", "reconcile", "reliable"),
)
OUTPUT = Path(__file__).resolve().parent.parent / "bench-output" / "bench.json"


def measure(name: str, options: Options) -> list[Figure]:
    """Run one benchmark of this folder."""
    figures: list[Figure] = importlib.import_module(name).measure(options)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure Rucola next to floors taken in the same run.")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="run just this one; may be repeated")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="fewer and shorter rounds: does it run, roughly how fast")
    size.add_argument(
        "--full", action="store_true", help="what takes minutes at its full size, too: search, scale, reconcile"
    )
    parser.add_argument("--json", type=Path, default=OUTPUT, help="where to write the figures (default: %(default)s)")
    arguments = parser.parse_args()
    options = Options(rounds=3, divisor=4) if arguments.quick else Options(is_full=arguments.full)

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    figures: list[Figure] = []
    spawn = multiprocessing.get_context("spawn")
    begin = time.perf_counter()
    for name in arguments.only or BENCHMARKS:
        with console.status(f"measuring: {name}"), ProcessPoolExecutor(1, mp_context=spawn) as process:
            figures += process.submit(measure, name, options).result()
    show(figures, console)
    result = {
        "machine": machine(),
        "quick": arguments.quick,
        "seconds": round(time.perf_counter() - begin, 1),
        "figures": [figure.as_json() for figure in figures],
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(f"{result['seconds']} s on {result['machine']['cores']} cores; figures in {arguments.json}")


if __name__ == "__main__":
    main()
