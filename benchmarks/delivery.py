"""Delivery by Rucola's client as an application measures it: latency, lateness, rate and number of consumers.

    latency     one message at a time, from before `send` to the call of the listener
    lateness    time from the due time of a delayed message to the call of the listener
    rate        a group with a backlog, from its first message to its last
    crowd       a hundred groups of ten consumers, each of which gets every message

Every message must be delivered, and exactly once because nothing fails.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

import frames
from figures import Aim, Figure
from floors import ECHO, Options
from load import ask, drive
from rucola.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from rucola.message.record import decode_many
from servers import Server, echo, standalone
from stored import check_stored, fill

LATENCY_COUNT, DELAYED_COUNT, RATE_COUNT = 2_000, 2_000, 64 * 1024
DELAY_LEVEL, DELAY_MS = 1, 1_000
GROUPS, MEMBERS, CROWD_COUNT = 100, 10, 100
IDLE_S = 5.0
PATIENCE_S = 120.0

Times = npt.NDArray[np.int64]


def measure(options: Options) -> list[Figure]:
    """Run all parts on one broker, in the order of their load."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # the crowd has some thousand connections
    with TemporaryDirectory(prefix="rucola-bench-") as folder, standalone(Path(folder)) as broker:
        for topic in ("BenchLatency", "BenchDelay", "BenchCrowd"):
            ask(broker, frames.send(topic, 0))  # creates the topic; no part waits for its body, number 0
        return [
            _latency(broker, options.count(LATENCY_COUNT)),
            asyncio.run(_lateness(broker, options.count(DELAYED_COUNT))),
            _rate(broker, options.count(RATE_COUNT)),
            asyncio.run(_crowd(broker, options.count(GROUPS), options.count(CROWD_COUNT))),
        ]


class Arrivals:
    """A listener that records when it got each of the messages 1 to `count`, `copies` times each."""

    def __init__(self, count: int, copies: int = 1) -> None:
        self.ns: Times = np.zeros(count + 1, np.int64)
        self.one = asyncio.Event()
        self.all = asyncio.Event()
        self._left = count * copies

    async def take(self, message: MessageExt) -> None:
        now_ns = time.time_ns()
        number = int.from_bytes(message.body[:8], "big") if len(message.body) == 8 else 0
        if number:
            self.ns[number] = now_ns
            self._left -= 1
            self.one.set()
            if not self._left:
                self.all.set()

    async def wait(self) -> None:
        """Wait until all were delivered; TimeoutError if that takes too long."""
        await asyncio.wait_for(self.all.wait(), PATIENCE_S)


def _message(topic: str, number: int) -> Message:
    return Message(topic, number.to_bytes(8, "big"))


def _consumer(broker: Server, group: str, topic: str) -> PushConsumer:
    consumer = PushConsumer(group, broker.namesrv, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(topic)
    return consumer


@asynccontextmanager
async def _consuming(broker: Server, group: str, topic: str, arrivals: Arrivals) -> AsyncIterator[PushConsumer]:
    consumer = _consumer(broker, group, topic)
    consumer.listen(arrivals.take)
    async with consumer:
        yield consumer


def _latency(broker: Server, count: int) -> Figure:
    """Send one message after the other, each after the previous one was delivered."""
    request = frames.send("BenchLatency", 0)
    with echo(len(request), ask(broker, request)) as floor:
        trip = drive(floor, [request], count)
    latencies = asyncio.run(_latencies(broker, count))[count // 10 :]
    p50, p99 = np.percentile(latencies, (50, 99))
    return Figure(
        "send_to_listener_p50",
        float(p50),
        "ms",
        floor=trip.latency_ms(50),
        floor_is=f"{ECHO}, there and back",
        aims=[Aim("value", 2)],
        more={"p99_ms": float(p99), "most_ms": float(latencies.max()), "messages": len(latencies)},
    )


async def _latencies(broker: Server, count: int) -> npt.NDArray[np.float64]:
    arrivals = Arrivals(count)
    sent_ns: Times = np.zeros(count + 1, np.int64)
    async with (
        Producer("bench-latency", broker.namesrv) as producer,
        _consuming(broker, "bench-latency", "BenchLatency", arrivals),
    ):
        for number in range(1, count + 1):
            arrivals.one.clear()
            sent_ns[number] = time.time_ns()
            await producer.send(_message("BenchLatency", number))
            await asyncio.wait_for(arrivals.one.wait(), PATIENCE_S)
    return (arrivals.ns - sent_ns)[1:] / 1e6


async def _lateness(broker: Server, count: int) -> Figure:
    """Send messages of one delay level evenly over some seconds. They are due that delay after their store time."""
    arrivals = Arrivals(count)
    due_ns: Times = np.zeros(count + 1, np.int64)
    async with (
        Producer("bench-delay", broker.namesrv) as producer,
        _consuming(broker, "bench-delay", "BenchDelay", arrivals),
    ):
        for number in range(1, count + 1):
            message = _message("BenchDelay", number)
            message.delay_level = DELAY_LEVEL
            due_ns[number] = time.time_ns() + DELAY_MS * 1_000_000
            await producer.send(message)
            await asyncio.sleep(0.001)
        await arrivals.wait()
    late_ms = (arrivals.ns - due_ns)[1:] / 1e6
    return Figure(
        "delayed_delivery_late_by_p99",
        float(np.percentile(late_ms, 99)),
        "ms",
        aims=[Aim("value", 50)],
        more={"p50_ms": float(np.median(late_ms)), "most_ms": float(late_ms.max()), "messages": count},
    )


def _rate(broker: Server, count: int) -> Figure:
    """A new group reads a topic from its beginning; the floor is the same responses, pulled raw and decoded."""
    fill(broker, "BenchRate", count)
    check_stored(broker, "BenchRate", count)
    seconds, cpu_us = asyncio.run(_consume_all(broker, count))
    floor_s = _pull_all(broker, count)
    return Figure(
        "push_consume",
        count / seconds,
        "messages/s",
        floor=count / floor_s,
        floor_is="the same answers pulled over one raw socket and decoded",
        more_is_better=True,
        more={"broker_µs_CPU/message": cpu_us, "messages": count},
    )


async def _consume_all(broker: Server, count: int) -> tuple[float, float]:
    """Return the seconds from the first message to the last, and the broker's CPU time per message in µs."""
    begin_ns = 0
    left = count
    done = asyncio.Event()

    async def listener(message: MessageExt) -> None:
        nonlocal begin_ns, left
        begin_ns = begin_ns or time.perf_counter_ns()
        left -= 1
        if not left:
            done.set()

    consumer = _consumer(broker, "bench-rate", "BenchRate")
    consumer.listen(listener)
    cpu_ns = broker.cpu_ns()
    async with consumer:
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        seconds = (time.perf_counter_ns() - begin_ns) / 1e9
    return seconds, (broker.cpu_ns() - cpu_ns) / count / 1e3


def _pull_all(broker: Server, count: int) -> float:
    """Return the seconds to pull and decode `count` messages of a topic without a client."""
    pulls = [
        frames.pull_messages("BenchRate", queue_id, offset)
        for offset in range(0, count // frames.QUEUES, frames.BATCH_COUNT)
        for queue_id in range(frames.QUEUES)
    ]
    begin_ns = time.perf_counter_ns()
    drive(broker, pulls, len(pulls))
    answer = ask(broker, pulls[0])
    body = answer[8 + int.from_bytes(answer[5:8], "big") :]
    for _ in pulls:
        decode_many(body)
    return (time.perf_counter_ns() - begin_ns) / 1e9


async def _crowd(broker: Server, groups: int, count: int) -> Figure:
    """All consumers join; after an idle interval, every group gets `count` messages."""
    members = groups * MEMBERS
    arrivals = Arrivals(count, groups)
    async with AsyncExitStack() as running:
        begin_ns = time.perf_counter_ns()
        consumers = [
            await running.enter_async_context(_consuming(broker, f"bench-crowd-{group}", "BenchCrowd", arrivals))
            for _ in range(MEMBERS)
            for group in range(groups)
        ]
        while sum(len(each.queues) for each in consumers) != groups * frames.QUEUES:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)
        joined_s = (time.perf_counter_ns() - begin_ns) / 1e9
        cpu_ns = broker.cpu_ns()
        await asyncio.sleep(IDLE_S)
        idle = (broker.cpu_ns() - cpu_ns) / 1e9 / IDLE_S
        memory = broker.memory()["rss"]
        producer = await running.enter_async_context(Producer("bench-crowd", broker.namesrv))
        cpu_ns = broker.cpu_ns()
        begin_ns = time.perf_counter_ns()
        for number in range(1, count + 1):
            await producer.send(_message("BenchCrowd", number))
        await arrivals.wait()
        seconds = (time.perf_counter_ns() - begin_ns) / 1e9
        cpu_us = (broker.cpu_ns() - cpu_ns) / (count * groups) / 1e3
    return Figure(
        f"{members}_consumers_in_{groups}_groups",
        cpu_us,
        "µs CPU/delivery",
        more={
            "deliveries/s": count * groups / seconds,
            "all_joined_s": joined_s,
            "idle_share_of_a_core": idle,
            "memory_MB": memory,
        },
    )
