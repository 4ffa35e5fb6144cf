"""The relay in order per key: its rate beside the bare producer's, its round trips, CPU and latency."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import frames
from figures import Aim, Figure, median
from floors import Options
from load import answer_to
from outbox import BenchmarkDatabase, add, forget_statements, messages, statement_counts
from rucola.client import Message, Producer, select_by_hash
from servers import Server, relay
from stored import count_stored

QUEUES: Final = 8
TASKS: Final = 16
COUNT: Final = 20_000
RELAYS: Final = (1, 2, 4)
LEASE_S: Final = 6
POLL_S: Final = 0.01
TIMEOUT_S: Final = 600
FLOOR: Final = "the bare Producer sending the same messages one by one from 16 tasks, in order per key"


@dataclass(frozen=True)
class RelayRun:
    """One backlog through some relays: seconds, their CPU time and the statements of the database."""

    count: int
    wall_s: float
    cpu_s: float
    statements: int
    own_statements: int

    @property
    def rate(self) -> float:
        return self.count / self.wall_s


def measure_rates(database: BenchmarkDatabase, broker: Server, options: Options) -> list[Figure]:
    """Relay the same backlog with 1, 2 and 4 relays, each time beside the bare producer."""
    count = options.count(COUNT)
    return [_rate_of(database, broker, number, count, max(2, options.rounds - 2)) for number in RELAYS]


def _rate_of(database: BenchmarkDatabase, broker: Server, relays: int, count: int, rounds: int) -> Figure:
    runs: list[RelayRun] = []
    bare: list[tuple[float, float]] = []
    database.clear()
    with ExitStack() as stack:
        running = [
            stack.enter_context(relay(broker.namesrv, database.url, "--lease", str(LEASE_S))) for _ in range(relays)
        ]
        _wait_for_lanes(database, relays)
        for number in range(rounds + 1):
            topic = f"BenchRelay{relays}x{number}"
            answer_to(broker, frames.create_topic(topic, QUEUES))
            sent = _send_bare(broker, topic, count)
            run = _relay_backlog(database, broker, running, f"{topic}r", count)
            if number:
                bare.append(sent)
                runs.append(run)
    aims = [Aim("ratio", 2)] if relays == 1 else []
    return Figure(
        f"relay_in_order_{relays}_workers" if relays > 1 else "relay_in_order",
        median(lambda run: run.rate, runs),
        "messages/s",
        floor=statistics.median(rate for rate, _ in bare),
        floor_is=FLOOR,
        more_is_better=True,
        ratios=[rate / run.rate for (rate, _), run in zip(bare, runs, strict=True)],
        aims=aims,
        more={
            "round_trips/message": median(lambda run: run.statements / run.count, runs),
            "µs_CPU/message": median(lambda run: run.cpu_s / run.count * 1e6, runs),
            "µs_CPU/message_of_Producer": statistics.median(cpu_s / count * 1e6 for _, cpu_s in bare),
            "messages": count,
        },
    )


def _send_bare(broker: Server, topic: str, count: int) -> tuple[float, float]:
    """Return the rate of a producer and its CPU seconds."""
    parts: list[list[tuple[str, Message]]] = [[] for _ in range(TASKS)]
    for key, message in messages(topic, count):
        parts[hash(key) % TASKS].append((key, message))

    async def send_all() -> tuple[float, float]:
        async def send(part: list[tuple[str, Message]]) -> None:
            for key, message in part:
                await producer.send(message, select_by_hash(key))

        async with Producer("bench", broker.namesrv) as producer:
            await producer.queues(topic)
            begin, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*map(send, parts))
            return count / (time.perf_counter() - begin), time.process_time() - cpu

    sent = asyncio.run(send_all())
    _check_stored(broker, topic, count)
    return sent


def _relay_backlog(
    database: BenchmarkDatabase, broker: Server, running: list[Server], topic: str, count: int
) -> RelayRun:
    """Commit a backlog at once, which wakes the relays, and wait until its last outcome is recorded."""
    answer_to(broker, frames.create_topic(topic, QUEUES))
    with database.engine.connect() as connection:
        with connection.begin():
            add(connection, database, list(messages(topic, count)))
            forget_statements(connection)
            cpu_ns = sum(server.cpu_ns() for server in running)
        begin = time.perf_counter()
        while count_stored(broker, topic, QUEUES) < count:
            _pause(begin)
        while database.scalar("SELECT 1 FROM rucola_stub WHERE status = 'NEW' LIMIT 1"):
            _pause(begin)
        wall_s = time.perf_counter() - begin
    cpu_s = (sum(server.cpu_ns() for server in running) - cpu_ns) / 1e9
    statements, own = statement_counts(database)
    _check_stored(broker, topic, count)
    database.clear()
    return RelayRun(count, wall_s, cpu_s, statements, own)


def _wait_for_lanes(database: BenchmarkDatabase, relays: int) -> None:
    """Wait until the relays have divided the lanes among them."""
    query = "SELECT count(DISTINCT owner) * 100 + count(owner) FROM rucola_lane WHERE lease_until > :now"
    begin = time.perf_counter()
    while database.scalar(query, now=time.time_ns() // 1_000_000) != relays * 100 + 16:
        _pause(begin)


def _check_stored(broker: Server, topic: str, count: int) -> None:
    stored = count_stored(broker, topic, QUEUES)
    if stored != count:
        raise RuntimeError(f"{topic}: {count} messages were sent, and {stored} are stored")


def _pause(begin: float) -> None:
    if time.perf_counter() - begin > TIMEOUT_S:
        raise RuntimeError(f"the relays were not ready after {TIMEOUT_S} s")
    time.sleep(POLL_S)
