"""Latency that the disk causes: SYNC_FLUSH, a thousand queues, and stalls of the event loop."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import frames
from figures import Aim, Figure, median
from floors import ECHO, Options
from load import Run, answer_to, ask, drive
from servers import echo, standalone
from stored import check_stored

TOPIC = "BenchDisk"
FRAMES = 2_048
WRITERS, SYNC_COUNT_A_WRITER = 16, 500
MANY_QUEUES, QUEUES_COUNT = 1_024, 96_000
"""Number of messages for about a second. A round must have many flushes, so that one more or less does not matter."""
STALL_COUNT = 60_000
ROLLING = f"mappedFileSizeCommitLog={32 << 20}\n"
"""Log files that are full after about a second."""


def measure(options: Options) -> list[Figure]:
    """Measure each figure with a broker of its own."""
    figures = []
    for one in (_sync_flush, _many_queues, _stalls):
        with TemporaryDirectory(prefix="rucola-bench-") as folder:
            figures.append(one(Path(folder), options))
    return figures


def _sync_flush(folder: Path, options: Options) -> Figure:
    """Send with SYNC_FLUSH on one connection and on sixteen, in alternating rounds."""
    singles = [frames.send(TOPIC, number) for number in range(FRAMES)]
    count = options.count(SYNC_COUNT_A_WRITER)
    runs: dict[int, list[Run]] = {1: [], WRITERS: []}
    with standalone(folder / "store", conf="flushDiskType=SYNC_FLUSH\n") as broker:
        ask(broker, singles[0])
        for _ in range(options.rounds):
            for writers, kept in runs.items():
                kept.append(drive(broker, singles, count * writers, connections=writers))
        check_stored(broker, TOPIC, 1 + options.rounds * count * (1 + WRITERS))
    return Figure(
        "sync_flush_16_writers",
        median(lambda run: run.rate, runs[WRITERS]),
        "messages/s",
        floor=median(lambda run: run.rate, runs[1]),
        floor_is="one writer",
        more_is_better=True,
        aims=[Aim("ratio", 0.25)],
        more={
            "p50_ms": median(lambda run: run.latency_ms(50), runs[WRITERS]),
            "p50_ms_of_one": median(lambda run: run.latency_ms(50), runs[1]),
        },
    )


def _many_queues(folder: Path, options: Options) -> Figure:
    """Send the same messages to a topic of four queues and to one of a thousand, whose files all exist.

    The order of the two alternates, and each is compared with the other one of its round, because other load on the
    machine changes more slowly than that.
    """
    topics = {frames.QUEUES: f"{TOPIC}Few", MANY_QUEUES: f"{TOPIC}Many"}
    runs: dict[int, list[Run]] = {queues: [] for queues in topics}
    count, rounds = options.count(QUEUES_COUNT), 2 * options.rounds + 1
    with standalone(folder / "store") as broker:
        sent = {}
        for queues, topic in topics.items():
            answer_to(broker, frames.create_topic(topic, queues))
            sent[queues] = [frames.send(topic, number, queues) for number in range(FRAMES)]
        for queues in topics:
            drive(broker, sent[queues], count, in_flight=64)
        for number in range(rounds):
            for queues in sorted(topics, reverse=number % 2 == 1):
                runs[queues].append(drive(broker, sent[queues], count, in_flight=64))
        for queues, topic in topics.items():
            check_stored(broker, topic, (1 + rounds) * count, queues)
    ratios = [few.rate / many.rate for few, many in zip(runs[frames.QUEUES], runs[MANY_QUEUES], strict=True)]
    return Figure(
        "send_to_1,024_queues",
        median(lambda run: run.rate, runs[MANY_QUEUES]),
        "messages/s",
        floor=median(lambda run: run.rate, runs[frames.QUEUES]),
        floor_is="the same to 4 queues",
        more_is_better=True,
        ratios=ratios,
        aims=[Aim("ratio", 1 / 0.9)],
        more={
            "µs_CPU": median(lambda run: run.cpu_us, runs[MANY_QUEUES]),
            "µs_CPU_with_4": median(lambda run: run.cpu_us, runs[frames.QUEUES]),
            "least_ratio": min(ratios),
            "most_ratio": max(ratios),
        },
    )


def _stalls(folder: Path, options: Options) -> Figure:
    """Measure the longest stall of the event loop while a thousand queues are created, log files roll and tasks
    run periodically."""
    topic, count = f"{TOPIC}Stall", options.count(STALL_COUNT)
    singles = [frames.send(topic, number, MANY_QUEUES) for number in range(FRAMES)]
    noted, floor = folder / "broker.json", folder / "echo.json"
    with standalone(folder / "store", conf=ROLLING, probe=noted) as broker:
        answer_to(broker, frames.create_topic(topic, MANY_QUEUES))
        answer = ask(broker, singles[0])
        broker.signal(signal.SIGUSR1)
        drive(broker, singles, FRAMES, in_flight=MANY_QUEUES)
        drive(broker, singles, count, in_flight=64)
        check_stored(broker, topic, 1 + FRAMES + count, MANY_QUEUES)
    largest = max(len(frame) for frame in singles)
    with echo(largest, answer, probe=floor) as server:
        server.signal(signal.SIGUSR1)
        drive(server, [bytes(largest)] * FRAMES, count, in_flight=64)
    stalls, of_echo = _histogram(noted), _histogram(floor)
    return Figure(
        "longest_stall_of_the_loop",
        stalls["longest_ms"],
        "ms",
        floor=of_echo["longest_ms"],
        floor_is=ECHO,
        aims=[Aim("value", 10)],
        more={**stalls["counts"], "stalls_of_echo": of_echo["counts"]},
    )


def _histogram(path: Path) -> dict[str, Any]:
    histogram: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if not sum(histogram["counts"].values()):
        raise RuntimeError(f"the probe that wrote {path.name} was never called: it was in no loop")
    return histogram
