"""The same requests to Rucola and to another RocketMQ broker on this machine: CPU and rate.

    python benchmarks/run.py --peer HOST:PORT --peer-pid PID

Start the peer with the JVM options and the disk to compare with. Its flushDiskType is read from it, and Rucola's broker
is started with the same one: run this once for each flushDiskType of interest. The two are measured in alternating
rounds. The figure is Rucola's CPU per message and the floor is the peer's: a ratio of 0.5 means half of the peer's.
"""

from __future__ import annotations

import os
import selectors
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

import frames
from figures import Aim, Figure
from floors import Options
from load import READ_SIZE, Line, Run, answer_to, drive
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameDecoder
from rucola.protocol.offset import OffsetResponseHeader
from rucola.protocol.pull import PullMessageResponseHeader
from servers import Process, standalone
from stored import check_stored, count_stored, fill

FRAMES: Final = 1024
STORED: Final = 32 * 1024
KEYS: Final = 64
FIRST_OFFSET: Final = 1000
WARM_UP: Final = 30_000
"""Number of sends to each broker before the first measurement, after which a JVM has compiled their path."""
TICKS: Final = os.sysconf("SC_CLK_TCK")
FOLLOW_COUNT: Final = 16_000
FOLLOW_IN_FLIGHT: Final = 16
PATIENCE_S: Final = 30.0
_PULLED: Final = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


@dataclass(frozen=True)
class Measured:
    """A run, with the seconds of CPU that its server used in user mode and in the kernel."""

    run: Run
    user_s: float
    system_s: float


@dataclass(frozen=True)
class Case:
    """One kind of load. `act` applies it to a broker; a request has `messages` messages."""

    name: str
    act: Callable[[Process], Run]
    messages: int = 1
    aim: float | None = None
    """The aim: CPU as a multiple of the peer's."""


def measure(options: Options) -> list[Figure]:
    """Measure all cases, in alternating rounds."""
    if options.peer is None:
        raise ValueError("the benchmark `peer` needs --peer HOST:PORT and --peer-pid PID")
    peer = options.peer
    flush = _flush_disk_type(peer)
    with TemporaryDirectory(prefix="rucola-bench-") as folder:
        conf = f"flushDiskType={flush}\n"
        with standalone(Path(folder) / "store", conf=conf) as server:
            own = Process(server.port, server.pid)
            topic = f"BenchPeer{time.time_ns() // 1_000_000}"  # the peer may keep those of earlier runs
            for broker in (own, peer):
                answer_to(broker, frames.create_topic(topic, frames.QUEUES))
            cases = _sync_cases(topic, options) if flush == "SYNC_FLUSH" else _cases(topic, options, (own, peer))
            warm_up = [frames.send(topic, number) for number in range(FRAMES)]
            for broker in (own, peer):
                drive(broker, warm_up, options.count(WARM_UP) if flush != "SYNC_FLUSH" else FRAMES, in_flight=16)
            figures = [_compare(case, own, peer, options.rounds) for case in cases]
            check_stored(own, topic, count_stored(peer, topic))  # both have acknowledged the same messages
            return figures


def _cases(topic: str, options: Options, brokers: Sequence[Process]) -> list[Case]:
    singles = [frames.send(topic, number) for number in range(FRAMES)]
    batches = [
        frames.send_batch(topic, number, number // frames.BATCH_COUNT % frames.QUEUES)
        for number in range(0, FRAMES, frames.BATCH_COUNT)
    ]
    stored, keyed = f"{topic}Stored", f"{topic}Keyed"
    shared = [frames.send_batch(keyed, number, number % frames.QUEUES, is_one_key=True) for number in range(KEYS)]
    for broker in brokers:
        for name in (stored, keyed):
            answer_to(broker, frames.create_topic(name, frames.QUEUES))
        fill(broker, stored, STORED)
        drive(broker, shared, len(shared))
    end = STORED // frames.QUEUES - frames.BATCH_COUNT
    pulls = [frames.pull_messages(stored, 0, offset) for offset in range(FIRST_OFFSET, end, frames.BATCH_COUNT)]
    queries = [frames.query(keyed, number) for number in range(KEYS)]
    for broker in brokers:
        _wait_for_index(broker, queries[-1])
    return [
        Case("send_1_connection", _driving(singles, options.count(8_000)), aim=1 / 3),
        Case("send_16_connections", _driving(singles, options.count(24_000), connections=16), aim=1 / 3),
        Case("send_64_in_flight", _driving(singles, options.count(48_000), in_flight=64), aim=1 / 2),
        Case("batches_of_32", _driving(batches, options.count(2_000)), frames.BATCH_COUNT, 1 / 1.6),
        Case("pull_32", _driving(pulls, options.count(6_000)), frames.BATCH_COUNT, 1 / 2),
        Case("key_query_with_32_hits", _driving(queries, options.count(4_000)), aim=1 / 2),
        Case("group_that_follows_a_producer", _following(topic, singles, options.count(FOLLOW_COUNT))),
    ]


def _sync_cases(topic: str, options: Options) -> list[Case]:
    singles = [frames.send(topic, number) for number in range(FRAMES)]
    return [
        Case("sync_flush_1_connection", _driving(singles, options.count(2_000)), aim=1 / 1.3),
        Case("sync_flush_16_connections", _driving(singles, options.count(16_000), connections=16), aim=1 / 1.5),
    ]


def _driving(requests: Sequence[bytes], count: int, **how: int) -> Callable[[Process], Run]:
    return lambda broker: drive(broker, requests, count, **how)


def _compare(case: Case, own: Process, peer: Process, rounds: int) -> Figure:
    ours: list[Measured] = []
    theirs: list[Measured] = []
    for number in range(rounds + 1):
        # Each goes first in every other round.
        for broker, runs in ((own, ours), (peer, theirs))[:: 1 if number % 2 else -1]:
            measured = _measured(broker, case.act)
            if number:  # the first round warms up
                runs.append(measured)

    def of(runs: Sequence[Measured], value: Callable[[Measured], float]) -> float:
        return statistics.median(value(measured) for measured in runs)

    def cpu_us(measured: Measured) -> float:
        return measured.run.cpu_us / case.messages

    more = {}
    for suffix, runs in (("", ours), ("_of_peer", theirs)):
        more |= {
            f"user_µs{suffix}": of(runs, lambda one: one.user_s / one.run.count / case.messages * 1e6),
            f"system_µs{suffix}": of(runs, lambda one: one.system_s / one.run.count / case.messages * 1e6),
            f"messages/s{suffix}": of(runs, lambda one: one.run.rate * case.messages),
            f"p50_ms{suffix}": of(runs, lambda one: one.run.latency_ms(50)),
            f"p99_ms{suffix}": of(runs, lambda one: one.run.latency_ms(99)),
            f"p99.9_ms{suffix}": of(runs, lambda one: one.run.latency_ms(99.9)),
        }
    return Figure(
        case.name,
        of(ours, cpu_us),
        "µs CPU/message",
        floor=of(theirs, cpu_us),
        floor_is="the same requests to the peer",
        ratios=[cpu_us(mine) / cpu_us(its) for mine, its in zip(ours, theirs, strict=True)],
        aims=[Aim("ratio", case.aim)] if case.aim is not None else [],
        more={"rate_ratio": more["messages/s"] / more["messages/s_of_peer"], **more},
    )


def _measured(broker: Process, act: Callable[[Process], Run]) -> Measured:
    before = _user_and_system_s(broker.pid)
    run = act(broker)
    after = _user_and_system_s(broker.pid)
    return Measured(run, after[0] - before[0], after[1] - before[1])


def _user_and_system_s(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process in seconds, in steps of a hundredth: utime and stime of proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def _flush_disk_type(broker: Process) -> str:
    """Return the flushDiskType of a running broker, by GET_BROKER_CONFIG."""
    answer = answer_to(broker, RemotingCommand.request(RequestCode.GET_BROKER_CONFIG).encode())
    lines = answer.body.decode().splitlines()
    return next(line.partition("=")[2].strip() for line in lines if line.startswith("flushDiskType="))


def _wait_for_index(broker: Process, query: bytes) -> None:
    """Wait until the broker has indexed the message that `query` asks for."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            answer_to(broker, query)
        except RuntimeError:  # QUERY_NOT_FOUND
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the messages were not indexed within 60 s")


def _following(topic: str, requests: Sequence[bytes], count: int) -> Callable[[Process], Run]:
    return lambda broker: _follow(broker, topic, [requests[number % len(requests)] for number in range(count)])


def _follow(broker: Process, topic: str, requests: Sequence[bytes]) -> Run:
    """Send on one connection while a group on another pulls each queue from its end, held while it is empty.

    Ends when the group has received every message. The latencies are those of the sends.
    """
    offsets = [_max_offset(broker, topic, queue_id) for queue_id in range(frames.QUEUES)]
    pending: dict[int, int] = {}  # the queue of each pull in flight, by opaque
    decoder = FrameDecoder()
    latencies: list[int] = []
    received = 0
    producer, group = Line(broker.port), Line(broker.port)

    def pull(queue_id: int) -> None:
        frame = frames.pull_messages(topic, queue_id, offsets[queue_id])
        pending[FrameDecoder().receive_data(frame)[0].opaque] = queue_id
        group.socket.sendall(frame)

    with producer.socket, group.socket, selectors.DefaultSelector() as selector:
        for line in (producer, group):
            selector.register(line.socket, selectors.EVENT_READ, line)
        source = iter(requests)
        cpu_ns, begin_ns = broker.cpu_ns(), time.perf_counter_ns()
        for queue_id in range(frames.QUEUES):
            pull(queue_id)
        producer.send(list(islice(source, FOLLOW_IN_FLIGHT)))
        while len(latencies) < len(requests) or received < len(requests):
            events = selector.select(PATIENCE_S)
            if not events:
                raise RuntimeError(f"{received} of {len(requests)} messages came, and no more for {PATIENCE_S:g} s")
            for key, _ in events:
                if key.data is producer:
                    now_ns, arrived = time.perf_counter_ns(), producer.receive()
                    latencies += [now_ns - producer.sent_ns.popleft() for _ in range(arrived)]
                    if following := list(islice(source, arrived)):
                        producer.send(following)
                    continue
                for answer in decoder.receive_data(group.socket.recv(READ_SIZE)):
                    queue_id = pending.pop(answer.opaque)
                    if answer.code not in _PULLED:
                        raise RuntimeError(f"the server refused: {answer}")
                    offset = answer.decode_header(PullMessageResponseHeader).next_begin_offset
                    received += offset - offsets[queue_id]
                    offsets[queue_id] = offset
                    pull(queue_id)
        wall_ns, cpu_ns = time.perf_counter_ns() - begin_ns, broker.cpu_ns() - cpu_ns
    return Run(len(requests), wall_ns, cpu_ns, np.array(latencies))


def _max_offset(broker: Process, topic: str, queue_id: int) -> int:
    answer = answer_to(broker, frames.max_offset(topic, queue_id))
    return answer.decode_header(OffsetResponseHeader).offset
