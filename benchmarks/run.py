"""Measure Rucola, each figure with a floor from the same run; print a table and write JSON.

    python benchmarks/run.py [--only NAME ...] [--quick | --full] [--json PATH]
    python benchmarks/run.py --peer HOST:PORT --peer-pid PID    beside another RocketMQ broker (see peer.py)

Every benchmark runs in a process of its own, which is the load generator, and starts the servers it measures in
others. README.md in this folder says how to read the figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from figures import Figure, machine, show
from floors import Options
from servers import Process

BENCHMARKS = (
    *("start", "send", "signed", "tls", "cores", "replication", "pull", "query", "delivery", "groups", "store"),
    *("disk", "hostile", "columns", "decode", "read", "live", "archive", "lake", "search", "replay", "small", "scale"),
    *("tiered", "reconcile", "reliable", "clients", "grpc_calls", "pop", "console"),
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
    parser.add_argument("--peer", metavar="HOST:PORT", help="another broker on this machine, beside which to measure")
    parser.add_argument("--peer-pid", type=int, metavar="PID", help="the process of that broker")
    parser.add_argument("--json", type=Path, default=OUTPUT, help="where to write the figures (default: %(default)s)")
    arguments = parser.parse_args()
    if (arguments.peer is None) != (arguments.peer_pid is None):
        parser.error("--peer and --peer-pid belong together")
    options = Options(rounds=3, divisor=4) if arguments.quick else Options(is_full=arguments.full)
    names: Sequence[str] = arguments.only or BENCHMARKS
    if arguments.peer is not None:
        port = arguments.peer.rpartition(":")[2]
        if not port.isdigit():
            parser.error(f"--peer {arguments.peer}: give HOST:PORT of a broker on this machine")
        options = replace(options, peer=Process(int(port), arguments.peer_pid))
        names = ["peer"]

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    figures: list[Figure] = []
    spawn = multiprocessing.get_context("spawn")
    begin = time.perf_counter()
    for name in names:
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
