"""Tiered reads: CPU time per message of lake and log, and pulls of the log while the lake hangs or is slow."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Aim, Figure, median
from floors import Options
from load import Run, ask, drive
from processes import below
from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from servers import Process, standalone
from stored import check_stored, fill

OLD, NEW = "BenchTiered", "BenchPulled"
STORED = 192 * 1024
"""More than the caches hold."""
FIRST_OFFSET = 10_000
FILE_SIZE = 8 << 20
CANARY_COUNT = 4_000
WAITING = 64
"""Pulls that wait for the lake."""


@dataclass(frozen=True)
class _WithReader(Process):
    """A broker, with the process that reads its lake."""

    def cpu_ns(self) -> int:
        return sum(Process(self.port, pid).cpu_ns() for pid in (self.pid, *below(self.pid)))


def measure(options: Options) -> list[Figure]:
    """Archive a topic, wait until its log files are deleted, and pull it from the lake, in turns with another one."""
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        store, lake = Path(name, "store"), Path(name, "lake")
        conf = (
            f"tieredReads=true\ndeleteOnlyArchived=true\narchiveProgressPath={lake}/_rucola/progress.json\n"
            f"archiveName=bench\nfileReservedTime=0\ndeleteWhen={';'.join(f'{hour:02}' for hour in range(24))}\n"
            f"cleanResourceInterval=500\nmappedFileSizeCommitLog={FILE_SIZE}\n"
        )
        with standalone(store, conf=conf) as server:
            broker = _WithReader(server.port, server.pid)
            fill(server, OLD, STORED)
            check_stored(server, OLD, STORED)
            archived = archive.run(LazySession("bench", use_spark=False), store, lake, broker_name="bench")
            fill(server, NEW, STORED)
            while min(int(file.name) for file in (store / "commitlog").iterdir()) + FILE_SIZE < archived.size:
                time.sleep(0.5)
            hot, cold = _pulls(NEW), _pulls(OLD)
            _begin_reading(server.port, cold[0])
            runs = [(drive(broker, hot, len(hot)), drive(broker, cold, len(cold))) for _ in range(1 + options.rounds)]
            return [_cost(runs[1:]), *_beside(broker, hot, cold, options)]


def _pulls(topic: str) -> list[bytes]:
    """Return pulls of a topic, except for what may share a file of the log with another one."""
    offsets = range(FIRST_OFFSET, STORED // frames.QUEUES - FILE_SIZE // 4096, frames.BATCH_COUNT)
    return [frames.pull_messages(topic, queue_id, offset) for offset in offsets for queue_id in range(frames.QUEUES)]


def _begin_reading(port: int, pull: bytes) -> None:
    """Pull until the process that reads the lake has started."""
    while True:
        with suppress(RuntimeError):
            ask(Process(port, 0), pull)
            return


def _cost(runs: list[tuple[Run, Run]]) -> Figure:
    hot, cold = zip(*runs, strict=True)
    return Figure(
        "tiered_pull",
        median(lambda run: run.cpu_us / frames.BATCH_COUNT, cold),
        "µs CPU/message",
        floor=median(lambda run: run.cpu_us / frames.BATCH_COUNT, hot),
        floor_is="the same pulls of messages in the log",
        ratios=[tiered.cpu_us / pulled.cpu_us for pulled, tiered in runs],
        aims=[Aim("ratio", 4)],
        more={"messages/s": median(lambda run: run.rate * frames.BATCH_COUNT, cold)},
    )


def _beside(broker: Process, hot: list[bytes], cold: list[bytes], options: Options) -> list[Figure]:
    """Pull from the log while the lake hangs, and while it is slow and others pull from it all the time."""
    count = options.count(CANARY_COUNT)
    (reader,) = below(broker.pid)
    figures = []
    pulling = partial(_pulling, broker, hot)
    for name, floor_is, load, floor_load in (
        ("pull_beside_hung_lake", "the same pulls while nothing waits for the lake", _hung, nullcontext),
        ("pull_beside_slow_lake", "the same pulls while others pull from the log", _slow, pulling),
    ):
        alone, beside = list[Run](), list[Run]()
        for number in range(options.rounds):
            with floor_load():
                alone.append(drive(broker, hot, count))
            with load(broker, reader, cold[number * WAITING :]):
                beside.append(drive(broker, hot, count))
        figures.append(
            Figure(
                name,
                median(lambda run: run.latency_ms(99), beside),
                "ms p99",
                floor=median(lambda run: run.latency_ms(99), alone),
                floor_is=floor_is,
                aims=[Aim("ratio", 1.2)],
            )
        )
    return figures


@contextmanager
def _hung(broker: Process, reader: int, cold: list[bytes]) -> Iterator[None]:
    lines = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(WAITING)]
    os.kill(reader, signal.SIGSTOP)
    try:
        for line, frame in zip(lines, cold, strict=False):
            line.sendall(frame)
        yield
    finally:
        os.kill(reader, signal.SIGCONT)
        for line in lines:
            line.close()


@contextmanager
def _slow(broker: Process, reader: int, cold: list[bytes]) -> Iterator[None]:
    """Stop the reader for most of the time, as storage does, while another process pulls."""
    try:
        with _running(_hinder, reader), _pulling(broker, cold):
            yield
    finally:
        os.kill(reader, signal.SIGCONT)


def _pulling(broker: Process, frames: list[bytes]) -> AbstractContextManager[None]:
    return _running(_pull_on, broker.port, frames)


@contextmanager
def _running(function: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Run a function in another process, once that says that it goes on now."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    child = context.Process(target=function, args=(begun, *arguments))
    child.start()
    try:
        begun.wait()
        yield
    finally:
        child.kill()
        child.join()


def _hinder(begun: Event, reader: int) -> None:
    begun.set()
    while True:
        os.kill(reader, signal.SIGSTOP)
        time.sleep(0.03)
        os.kill(reader, signal.SIGCONT)
        time.sleep(0.01)


def _pull_on(begun: Event, port: int, frames: list[bytes]) -> None:
    ask(Process(port, 0), frames[0])
    begun.set()
    while True:
        drive(Process(port, os.getpid()), frames, len(frames))
