"""Tiered reads: CPU time per message of the lake and of the log, and pulls of the log while the lake hangs."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
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
            return [_cost(runs[1:]), _beside_hung_lake(broker, hot, cold, options)]


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


def _beside_hung_lake(broker: Process, hot: list[bytes], cold: list[bytes], options: Options) -> Figure:
    count = options.count(CANARY_COUNT)
    (reader,) = below(broker.pid)
    alone, beside = list[Run](), list[Run]()
    for number in range(options.rounds):
        alone.append(drive(broker, hot, count))
        os.kill(reader, signal.SIGSTOP)
        lines = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(WAITING)]
        try:
            for line, frame in zip(lines, cold[number * WAITING :], strict=False):
                line.sendall(frame)
            beside.append(drive(broker, hot, count))
        finally:
            os.kill(reader, signal.SIGCONT)
            for line in lines:
                line.close()
    return Figure(
        "pull_beside_hung_lake",
        median(lambda run: run.latency_ms(99), beside),
        "ms p99",
        floor=median(lambda run: run.latency_ms(99), alone),
        floor_is="the same pulls while nothing waits for the lake",
        aims=[Aim("ratio", 1.2)],
    )
