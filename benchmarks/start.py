"""Start and idle: time from the spawn of the process to the first SEND_OK, and idle memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Aim, Figure, median
from floors import Options
from load import ask
from servers import Server, echo, standalone

TOPIC = "BenchStart"
SPARK_SIDE = {"pyspark", "pyarrow", "pandas"}
ECHO = "asyncio echo in an interpreter of its own"


def measure(options: Options) -> list[Figure]:
    """Start on an empty store repeatedly, in alternation with the echo server."""
    request = frames.send(TOPIC, 0)
    with TemporaryDirectory(prefix="rucola-bench-") as folder, standalone(Path(folder)) as server:
        answer = ask(server, request)
    starts: list[tuple[float, dict[str, float]]] = []
    floors: list[tuple[float, dict[str, float]]] = []
    for _ in range(options.rounds):
        floors.append(_start(partial(echo, len(request), answer), request))
        with TemporaryDirectory(prefix="rucola-bench-") as folder:
            starts.append(_start(partial(standalone, Path(folder)), request))
    loaded, seconds = _imports()
    packages = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    return [
        Figure(
            "start_to_first_send",
            median(lambda start: start[0], starts),
            "s",
            floor=median(lambda start: start[0], floors),
            floor_is=ECHO,
            aims=[Aim("value", 0.5)],
            more={"slowest_s": max(start[0] for start in starts), "imports_s": seconds},
        ),
        Figure(
            "idle_memory",
            median(lambda start: start[1]["rss"], starts),
            "MB",
            floor=median(lambda start: start[1]["rss"], floors),
            floor_is=ECHO,
            aims=[Aim("value", 70)],
            more={
                "pss_MB": median(lambda start: start[1]["pss"], starts),
                "anonymous_MB": median(lambda start: start[1]["anonymous"], starts),
                "modules": len(loaded),
                "of_Spark's_side": len(packages & SPARK_SIDE),
                "packages": sorted(packages),
            },
        ),
    ]


def _start(start: Callable[[], Server], request: bytes) -> tuple[float, dict[str, float]]:
    """Return the seconds from spawning a server to its response, and its memory after that."""
    with start() as server:
        ask(server, request)
        seconds = (time.perf_counter_ns() - server.spawned_ns) / 1e9
        return seconds, server.memory()


def _imports() -> tuple[set[str], float]:
    """Return the number of modules that a standalone server imports, and the time (including the cost of timing)."""
    with (
        TemporaryDirectory(prefix="rucola-bench-") as folder,
        standalone(Path(folder), {"PYTHONPROFILEIMPORTTIME": "1"}) as server,
    ):
        server.stop()
        trace = server.log()
    loaded: set[str] = set()
    own_us = 0
    for line in trace.splitlines():
        head, _, name = line.removeprefix("import time:").rpartition("|")
        own = head.partition("|")[0].strip()
        if own.isdigit():
            loaded.add(name.strip())
            own_us += int(own)
    return loaded, own_us / 1e6
