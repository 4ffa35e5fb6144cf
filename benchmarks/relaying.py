"""The relay in order per key: its rate beside the bare producer's, its round trips, CPU and latency."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

import frames
from figures import Aim, Figure, median
from floors import Options
from load import answer_to
from outbox import BODY, GROUP, BenchmarkDatabase, add, forget_statements, messages, statement_counts
from rucola.client import Message, Producer, PullConsumer, select_by_hash
from rucola.reliable import Outbox, Relay
from servers import Server, relay
from stored import count_stored

QUEUES: Final = 8
TASKS: Final = 16
COUNT: Final = 20_000
RELAYS: Final = (1, 2, 4)
LEASE_S: Final = 6
LATENCY_COUNT: Final = 600
IDLE_S: Final = 20
POLL_S: Final = 0.01
TIMEOUT_S: Final = 300
FLOOR: Final = "the bare Producer sending the same messages one by one from 16 tasks, in order per key"


@dataclass(frozen=True)
class RelayRun:
    """One backlog sent by some relays: seconds, their CPU time and the statements of the database."""

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
        _wait_for_messages(broker, topic, count)
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


def _wait_for_messages(broker: Server, topic: str, count: int) -> None:
    begin = time.perf_counter()
    while count_stored(broker, topic, QUEUES) < count:
        _pause(begin)


def _check_stored(broker: Server, topic: str, count: int) -> None:
    stored = count_stored(broker, topic, QUEUES)
    if stored != count:
        raise RuntimeError(f"{topic}: {count} messages were sent, and {stored} are stored")


def _pause(begin: float) -> None:
    if time.perf_counter() - begin > TIMEOUT_S:
        raise RuntimeError(f"the relays were not ready after {TIMEOUT_S} s")
    time.sleep(POLL_S)


def measure_idle(database: BenchmarkDatabase, broker: Server, options: Options) -> list[Figure]:
    """Latency from a commit to the broker, woken by NOTIFY and in this process; statements of an idle relay."""
    topic = "BenchIdle"
    answer_to(broker, frames.create_topic(topic, QUEUES))
    count = options.count(LATENCY_COUNT)
    database.clear()
    with relay(broker.namesrv, database.url) as server:
        _wait_for_lanes(database, 1)
        by_notify = asyncio.run(_latencies(database, broker, f"{topic}N", count, in_process=False))
        with database.engine.connect() as connection:
            forget_statements(connection)
        cpu_ns = server.cpu_ns()
        time.sleep(IDLE_S)
        every, own = statement_counts(database)
        idle = Figure(
            "idle_relay",
            own / IDLE_S,
            "queries/s",
            aims=[Aim("value", 1)],
            more={"with_BEGIN_and_COMMIT": every / IDLE_S, "ms_CPU/s": (server.cpu_ns() - cpu_ns) / 1e6 / IDLE_S},
        )
    in_process = asyncio.run(_latencies(database, broker, f"{topic}P", count, in_process=True))
    direct = asyncio.run(_direct_latencies(database, broker, f"{topic}D", count))
    database.clear()
    return [
        _latency("commit_to_broker_by_NOTIFY", by_notify, direct),
        _latency("commit_to_broker_in_process", in_process, direct),
        idle,
    ]


def _latency(name: str, latencies: list[float], direct: list[float]) -> Figure:
    percentiles, floor = statistics.quantiles(latencies, n=100), statistics.quantiles(direct, n=100)
    return Figure(
        name,
        percentiles[98],
        "ms p99",
        floor=floor[98],
        floor_is="the same commit, then the Producer sends the message",
        aims=[Aim("value", 20)],
        more={"p50_ms": percentiles[49], "p50_ms_of_Producer": floor[49], "messages": len(latencies)},
    )


async def _latencies(
    database: BenchmarkDatabase, broker: Server, topic: str, count: int, *, in_process: bool
) -> list[float]:
    """Return the times from before each commit to the store time at the broker, in milliseconds, of single messages.

    Store times are whole milliseconds; the end of that millisecond is taken.
    """
    answer_to(broker, frames.create_topic(topic, QUEUES))
    outbox = Outbox([GROUP], tables=database.tables)
    committed: dict[str, float] = {}

    def commit() -> None:
        with Session(database.engine) as session:
            message_id = outbox.add(session, Message(topic, BODY))
            session.flush()
            committed[message_id] = time.time() * 1000
            session.commit()

    async with AsyncExitStack() as stack:
        if in_process:
            await stack.enter_async_context(Relay(database.engine, broker.namesrv, outbox=outbox))
            await asyncio.to_thread(_wait_for_lanes, database, 1)
        for _ in range(count):
            await asyncio.to_thread(commit)
            await asyncio.sleep(random.uniform(0.02, 0.06))  # by then, the relay is idle again
        await asyncio.to_thread(_wait_for_messages, broker, topic, count)
    stored = await _store_times(broker, topic)
    return [stored[message_id] + 1 - at for message_id, at in committed.items()]


async def _direct_latencies(database: BenchmarkDatabase, broker: Server, topic: str, count: int) -> list[float]:
    """Like `_latencies`, of messages that this process sends after the same commit."""
    answer_to(broker, frames.create_topic(topic, QUEUES))
    outbox = Outbox([GROUP], tables=database.tables)
    committed: dict[str, float] = {}
    async with Producer("bench", broker.namesrv) as producer:
        for _ in range(count):
            message = Message(topic, BODY)
            with Session(database.engine) as session:
                message_id = outbox.add(session, message)
                session.flush()
                committed[message_id] = time.time() * 1000
                session.commit()
            await producer.send(message)
    stored = await _store_times(broker, topic)
    return [stored[message_id] + 1 - at for message_id, at in committed.items()]


async def _store_times(broker: Server, topic: str) -> dict[str, int]:
    found: dict[str, int] = {}
    async with PullConsumer("bench", broker.namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found |= {message.msg_id: message.store_timestamp for message in result.messages}
                offset = result.next_begin_offset
    return found
