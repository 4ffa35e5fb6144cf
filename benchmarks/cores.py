"""Broker groups on several cores: CPU per message and throughput of two groups beside those of one.

The groups are masters of one `rucola cluster`. Each has a load generator in a process of its own. Processor time of
broker and generator per message predicts the throughput: cores / (sum of both), at most one core for each process.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import frames
from figures import Aim, Figure
from floors import Options
from load import answer_to, drive
from rucola.cluster.supervisor import read_status
from servers import Process, Server
from stored import check_stored

TOPIC: Final = "BenchCores"
FRAMES: Final = 1024
COUNT: Final = 24_000
CONNECTIONS: Final = 16
GROUPS: Final = 2
START_S: Final = 0.5
"""Time after which all generators begin together."""


@dataclass(frozen=True)
class Load:
    """One group under load: begin and end by the system's clock, CPU of broker and generator, and p99."""

    begin_s: float
    end_s: float
    broker_cpu_us: float
    generator_cpu_us: float
    p99_ms: float


def measure(options: Options) -> list[Figure]:
    """Send to one group, then to both concurrently, in alternating rounds."""
    count = options.count(COUNT)
    one: list[list[Load]] = []
    both: list[list[Load]] = []
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory(prefix="rucola-bench-") as folder, _masters(Path(folder) / "data") as brokers:
        with ProcessPoolExecutor(GROUPS, mp_context=context) as generators:
            for number in range(options.rounds + 1):
                alone = _load(generators, [brokers[number % GROUPS]], count)
                together = _load(generators, brokers, count)
                if number:  # the first round warms up
                    one.append(alone)
                    both.append(together)
        per_broker = (options.rounds + 1) * count
        for number, broker in enumerate(brokers):
            turns = sum(turn % GROUPS == number for turn in range(options.rounds + 1))
            check_stored(broker, TOPIC, 1 + per_broker + turns * count)
    cpu_one, cpu_both = _median(one, _broker_cpu), _median(both, _broker_cpu)
    rate = _median(both, lambda loads: _rate(loads, count))
    predicted = _median(both, _predicted_rate)
    return [
        Figure(
            "send_to_2_groups_CPU",
            cpu_both,
            "µs CPU/message",
            floor=cpu_one,
            floor_is="the same messages to one group alone",
            aims=[Aim("ratio", 1.05)],
            more={
                "p99_ms": _median(both, lambda loads: max(load.p99_ms for load in loads)),
                "p99_ms_of_one": _median(one, lambda loads: loads[0].p99_ms),
            },
        ),
        Figure(
            "send_to_2_groups",
            rate,
            "messages/s",
            floor=predicted,
            floor_is="what CPU per message of brokers and load generators predicts for the cores",
            more_is_better=True,
            more={"messages/s_of_one": _median(one, lambda loads: _rate(loads, count)), "cores": os.cpu_count() or 1},
        ),
    ]


@contextmanager
def _masters(directory: Path) -> Iterator[list[Process]]:
    """Run a cluster, and yield the processes of its masters."""
    rucola = str(Path(sys.executable).with_name("rucola"))
    with Server([rucola, "cluster", str(directory), "--masters", str(GROUPS)]):
        masters = [one for one in read_status(directory) if one.role == "master" and one.pid is not None]
        brokers = [Process(int(one.address.rpartition(":")[2]), one.pid or 0) for one in masters]
        for broker in brokers:
            answer_to(broker, frames.send(TOPIC, 0))  # creates the topic
        yield brokers


def _load(generators: ProcessPoolExecutor, brokers: Sequence[Process], count: int) -> list[Load]:
    begin_s = time.monotonic() + START_S
    return list(generators.map(_generate, brokers, [count] * len(brokers), [begin_s] * len(brokers)))


def _generate(broker: Process, count: int, begin_s: float) -> Load:
    """Generate load; runs in a process of its own."""
    singles = [frames.send(TOPIC, number) for number in range(FRAMES)]
    time.sleep(max(0.0, begin_s - time.monotonic()))
    cpu_ns = time.process_time_ns()
    run = drive(broker, singles, count, connections=CONNECTIONS)
    end_s = time.monotonic()
    own_us = (time.process_time_ns() - cpu_ns) / count / 1e3
    return Load(end_s - run.wall_ns / 1e9, end_s, run.cpu_us, own_us, run.latency_ms(99))


def _broker_cpu(loads: Sequence[Load]) -> float:
    return statistics.fmean(load.broker_cpu_us for load in loads)


def _rate(loads: Sequence[Load], count: int) -> float:
    return count * len(loads) / (max(load.end_s for load in loads) - min(load.begin_s for load in loads))


def _predicted_rate(loads: Sequence[Load]) -> float:
    """Return the messages per second with all cores busy with brokers and generators, and at most one per process."""
    of_both = statistics.fmean(load.broker_cpu_us + load.generator_cpu_us for load in loads)
    of_slower = max(max(load.broker_cpu_us, load.generator_cpu_us) for load in loads)
    return min((os.cpu_count() or 1) / of_both, len(loads) / of_slower) * 1e6


def _median(rounds: Sequence[Sequence[Load]], measure: Callable[[Sequence[Load]], float]) -> float:
    return statistics.median(measure(loads) for loads in rounds)
