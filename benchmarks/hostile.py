"""Effects of an attack on a well-behaved client and on the server.

Each attack of `attacks.py` has a server of its own, with a probe that records the longest stall of its event loop, and
a canary that repeatedly sends a message and pulls it: first alone, then beside the attack.

The server has one processor, attacker and canary the others: else the canary would wait for the attacker's time slices
of some milliseconds, which in reality are those of other machines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import frames
from attacks import ATTACKS, CANARY_TOPIC, Attack
from figures import Aim, Figure
from floors import Options
from load import Line, answer_to
from servers import Server, standalone

QUIET_S, ATTACKED_S = 4.0, 8.0
PAUSE_S = 0.003
SENDS = 512
QUIET = "the same server before the attack"


@dataclass(frozen=True)
class Watched:
    """The canary's 99th percentile over some seconds, and the maximum of the server's memory."""

    p99_ms: float
    p50_ms: float
    rss_mb: float
    count: int


def measure(options: Options) -> list[Figure]:
    """Measure three figures per attack: the canary's p99, the longest stall, the memory."""
    figures = []
    for attack in ATTACKS:
        with TemporaryDirectory(prefix="rucola-bench-") as folder:
            figures += _attacked(Path(folder), attack, options)
    return figures


def _attacked(folder: Path, attack: Attack, options: Options) -> list[Figure]:
    noted = folder / "loop.json"
    with _server_apart(folder / "store", noted) as server:
        answer_to(server, frames.create_topic(CANARY_TOPIC, frames.QUEUES))
        answer_to(server, frames.create_topic("BenchLarge", frames.QUEUES))
        _watch(server, 1.0)
        quiet = _watch(server, QUIET_S / options.divisor)
        server.signal(signal.SIGUSR1)
        attacker = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("attacks.py")), attack.name, str(server.port), _port(server)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with attacker:
            assert attacker.stdout is not None
            if attacker.stdout.readline() != "ready\n":
                raise RuntimeError(f"the attack {attack.name} ended before it began:\n{attacker.communicate()[1]}")
            attacked = _watch(server, ATTACKED_S / options.divisor)
            if attacker.poll() is not None:
                raise RuntimeError(f"the attack {attack.name} ended early:\n{attacker.communicate()[1]}")
            begun_anew = int(attacker.communicate()[0])
        _watch(server, 1.0)  # the server closes the attacker's connections
    stall = json.loads(noted.read_text(encoding="utf-8"))
    more = {"p50_ms": attacked.p50_ms, "quiet_p50_ms": quiet.p50_ms, "messages": attacked.count, "does": attack.does}
    more["begun_anew"] = begun_anew
    return [
        Figure(
            f"canary_p99_beside_{attack.name}",
            attacked.p99_ms,
            "ms",
            floor=quiet.p99_ms,
            floor_is=QUIET,
            aims=[Aim("ratio", 3)],
            more=more,
        ),
        Figure(
            f"longest_stall_beside_{attack.name}",
            stall["longest_ms"],
            "ms",
            aims=[Aim("value", 20)],
            more=stall["counts"],
        ),
        Figure(
            f"memory_of_{attack.name}",
            max(attacked.rss_mb - quiet.rss_mb, 0.0),
            "MB",
            aims=[Aim("value", 256)],
            more={"quiet_mb": quiet.rss_mb},
        ),
    ]


@contextmanager
def _server_apart(store: Path, noted: Path) -> Iterator[Server]:
    """Start a server on one processor, and keep this process and those that it starts later on the others."""
    allowed = os.sched_getaffinity(0)
    own, *others = sorted(allowed)
    os.sched_setaffinity(0, {own})
    try:
        with standalone(store, probe=noted) as server:
            os.sched_setaffinity(0, others or allowed)
            yield server
    finally:
        os.sched_setaffinity(0, allowed)


def _watch(server: Server, seconds: float) -> Watched:
    """Send messages for some seconds, each after the response to the previous one and a pause."""
    sends = cycle([frames.send(CANARY_TOPIC, number) for number in range(SENDS)])
    latencies: list[int] = []
    rss_mb = 0.0
    line = Line(server.port)
    with line.socket:
        end_ns = time.perf_counter_ns() + int(seconds * 1e9)
        while (begin_ns := time.perf_counter_ns()) < end_ns:
            line.send([next(sends)])
            while not line.receive():
                pass
            latencies.append(time.perf_counter_ns() - begin_ns)
            if len(latencies) % 64 == 1:
                rss_mb = max(rss_mb, server.memory()["rss"])
            time.sleep(PAUSE_S)
    p50, p99 = np.percentile(latencies, (50, 99)) / 1e6
    return Watched(float(p99), float(p50), rss_mb, len(latencies))


def _port(server: Server) -> str:
    return server.namesrv.rpartition(":")[2]
