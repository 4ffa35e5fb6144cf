"""Replication: what a synchronous slave costs producers, how fast a new slave catches up, and what an idle pair uses.

The pairs are clusters of a master and a slave, one with SYNC_MASTER and one with ASYNC_MASTER.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import frames
from figures import Aim, Figure, median
from floors import Options
from load import READ_SIZE, Run, answer_to, ask, drive
from rucola import settings
from rucola.cluster.supervisor import read_status
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from servers import Process, Server
from stored import check_stored, count_stored, fill

RUCOLA: Final = str(Path(sys.executable).with_name("rucola"))
TOPIC: Final = "BenchReplication"
FRAMES: Final = 1024
COUNT: Final = 24_000
CONNECTIONS: Final = 16
COPIED: Final = 192 * 2048
"""Messages of the log that a new slave copies, 1 KB each."""
IDLE_S: Final = 10.0
PATIENCE_S: Final = 120.0
POLL_S: Final = 0.02
PIECE: Final = 256 * 1024
_RUNTIME_INFO: Final = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO).encode()


@dataclass(frozen=True)
class Pair:
    """A master and its slave, with the configuration file of the slave."""

    master: Process
    slave: Process
    store: Path
    """The master's store directory."""
    slave_conf: Path


@dataclass(frozen=True)
class Copy:
    """A log that was copied: MiB per second, and CPU of both sides together."""

    mib_per_s: float
    cpu_us_per_mib: float

    @classmethod
    def of(cls, size: int, wall_ns: int, cpu_ns: int) -> Copy:
        mib = size / 2**20
        return cls(mib / (wall_ns / 1e9), cpu_ns / 1e3 / mib)


def measure(options: Options) -> list[Figure]:
    """Measure the three cases, the sends and the copies in alternating rounds."""
    count = options.count(COUNT)
    sends = [frames.send(TOPIC, number) for number in range(FRAMES)]
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        folder = Path(name)
        with (
            _pair(folder / "async", sends[0]) as asynchronous,
            _pair(folder / "sync", sends[0], "--sync") as synchronous,
        ):
            idle = _idle(synchronous, IDLE_S / options.divisor)
            before = [count_stored(pair.master, TOPIC) for pair in (asynchronous, synchronous)]
            runs: tuple[list[Run], list[Run]] = ([], [])
            for number in range(options.rounds + 1):
                for pair, of in zip((asynchronous, synchronous), runs, strict=True):
                    run = drive(pair.master, sends, count, connections=CONNECTIONS)
                    if number:  # the first round warms up
                        of.append(run)
            for pair, stored in zip((asynchronous, synchronous), before, strict=True):
                check_stored(pair.master, TOPIC, stored + (options.rounds + 1) * count)
        copies = _copies(folder / "copied", sends[0], options)
    return [_sync_figure(*runs), *copies, idle]


def _sync_figure(asynchronous: list[Run], synchronous: list[Run]) -> Figure:
    return Figure(
        "send_to_SYNC_MASTER_16_connections",
        median(lambda run: run.rate, synchronous),
        "messages/s",
        floor=median(lambda run: run.rate, asynchronous),
        floor_is="the same messages to an ASYNC_MASTER with a slave",
        more_is_better=True,
        ratios=[one.rate / other.rate for one, other in zip(asynchronous, synchronous, strict=True)],
        aims=[Aim("ratio", 2)],
        more={
            "p99_ms": median(lambda run: run.latency_ms(99), synchronous),
            "p99_ms_of_ASYNC_MASTER": median(lambda run: run.latency_ms(99), asynchronous),
            "µs_CPU_of_master": median(lambda run: run.cpu_us, synchronous),
            "µs_CPU_of_ASYNC_MASTER": median(lambda run: run.cpu_us, asynchronous),
        },
    )


def _idle(pair: Pair, seconds: float) -> Figure:
    """Return the CPU of a master and its slave while no client is connected."""
    begin_ns = pair.master.cpu_ns(), pair.slave.cpu_ns()
    time.sleep(seconds)
    master, slave = pair.master.cpu_ns() - begin_ns[0], pair.slave.cpu_ns() - begin_ns[1]
    return Figure(
        "idle_pair",
        (master + slave) / seconds / 1e6,
        "ms CPU/s",
        more={"master": master / seconds / 1e6, "slave": slave / seconds / 1e6},
    )


def _copies(folder: Path, send: bytes, options: Options) -> list[Figure]:
    """Let new slaves copy a log; the floor copies the file of that log into a new one, over a socket."""
    with _pair(folder, send) as pair:
        fill(pair.master, f"{TOPIC}Log", max(1, options.count(COPIED) // 2048) * 2048)
        size = _log_end(pair.master)
        _wait_for_log(pair.slave, size)
        (log,) = (pair.store / "commitlog").iterdir()
        slaves, floors = [], []
        for number in range(options.rounds + 1):
            floor, slave = _copy_of_file(log, folder / "copy", size), _copy_of_slave(pair, folder / "third", size)
            if number:  # the first round warms up
                floors.append(floor)
                slaves.append(slave)
    what = "the same bytes sent from one mapped file and received into another, between two processes"
    more = {"MiB": size / 2**20}
    return [
        Figure(
            "new_slave_catches_up",
            median(lambda copy: copy.mib_per_s, slaves),
            "MiB/s",
            floor=median(lambda copy: copy.mib_per_s, floors),
            floor_is=what,
            more_is_better=True,
            more=more,
        ),
        Figure(
            "new_slave_catches_up_CPU",
            median(lambda copy: copy.cpu_us_per_mib, slaves),
            "µs CPU/MiB",
            floor=median(lambda copy: copy.cpu_us_per_mib, floors),
            floor_is=what,
            more=more,
        ),
    ]


def _copy_of_slave(pair: Pair, directory: Path, size: int) -> Copy:
    """Start a further slave on an empty store, and measure from its first bytes until it has the whole log."""
    own = {"brokerId": "2", "listenPort": "0", "haListenPort": "0", "storePathRootDir": str(directory / "store")}
    directory.mkdir()
    conf = directory / "broker.conf"
    conf.write_text(settings.render(settings.read(pair.slave_conf) | own), encoding="utf-8")
    with Server([RUCOLA, "broker", "-c", str(conf)]) as server:
        slave = Process(server.port, server.pid)
        begin = _wait_for_log(slave, 1)
        begin_ns, cpu_ns = time.perf_counter_ns(), pair.master.cpu_ns() + slave.cpu_ns()
        _wait_for_log(slave, size)
        wall_ns, cpu_ns = time.perf_counter_ns() - begin_ns, pair.master.cpu_ns() + slave.cpu_ns() - cpu_ns
    shutil.rmtree(directory)
    return Copy.of(size - begin, wall_ns, cpu_ns)


def _copy_of_file(source: Path, target: Path, size: int) -> Copy:
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as receiver,
        socket.create_server(("127.0.0.1", 0)) as listener,
        source.open("rb") as file,
        mmap(file.fileno(), size, access=ACCESS_READ) as log,
    ):
        received = receiver.submit(_receive, listener.getsockname()[1], target, size)
        sender, _ = listener.accept()
        with sender:
            begin_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
            for position in range(0, size, PIECE):
                sender.sendall(log[position : position + PIECE])
            receiver_cpu_ns = received.result()
            wall_ns, cpu_ns = time.perf_counter_ns() - begin_ns, time.process_time_ns() - cpu_ns
    target.unlink()
    return Copy.of(size, wall_ns, cpu_ns + receiver_cpu_ns)


def _receive(port: int, target: Path, size: int) -> int:
    """Receive `size` bytes into a new file, and return the CPU time that it took; runs in a process of its own."""
    with socket.create_connection(("127.0.0.1", port)) as connection, target.open("w+b") as file:
        file.truncate(size)
        with mmap(file.fileno(), size) as log, memoryview(log) as view:
            cpu_ns, position = time.process_time_ns(), 0
            while position < size:
                position += connection.recv_into(view[position : position + READ_SIZE])
            return time.process_time_ns() - cpu_ns


@contextmanager
def _pair(directory: Path, send: bytes, *arguments: str) -> Iterator[Pair]:
    """Run a cluster of a master and a slave, and wait until the slave has what the master has."""
    with Server([RUCOLA, "cluster", str(directory), "--slaves", "1", *arguments]):
        found = {one.role: one for one in read_status(directory)}
        master, slave = (
            Process(int(found[role].address.rpartition(":")[2]), found[role].pid or 0) for role in ("master", "slave")
        )
        _send_until_replicated(master, send)
        _wait_for_log(slave, _log_end(master))
        (slave_conf,) = directory.glob("*-slave-1.conf")
        yield Pair(master, slave, directory / found["master"].name, slave_conf)


def _send_until_replicated(master: Process, send: bytes) -> None:
    """Send until a SYNC_MASTER answers SEND_OK: before, its slave is not connected yet."""
    for _ in _polls("no slave connected"):
        with suppress(RuntimeError):  # SLAVE_NOT_AVAILABLE
            ask(master, send)
            return


def _wait_for_log(broker: Process, size: int) -> int:
    """Wait until the log of a broker has `size` bytes, and return how many it has then."""
    for _ in _polls(f"a log did not get {size} bytes"):
        if (end := _log_end(broker)) >= size:
            return end
    raise AssertionError("unreachable")


def _log_end(broker: Process) -> int:
    table = json.loads(answer_to(broker, _RUNTIME_INFO).body)["table"]
    return int(table["commitLogMaxOffset"])


def _polls(failure: str) -> Iterator[None]:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        yield
        time.sleep(POLL_S)
    raise RuntimeError(f"{failure} within {PATIENCE_S:g} s")
