"""Sending: the broker's CPU time per message on one and many connections, in flight and in batches."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Aim, Figure
from floors import ECHO, Options, Pairs, beside_echo
from load import answer_to
from servers import standalone
from stored import check_stored

TOPIC = "BenchSend"
FRAMES = 1024
"""Number of different messages, sent in rotation."""

COUNT_1, COUNT_16, COUNT_64, BATCHES = 8_000, 24_000, 48_000, 1_500


def measure(options: Options) -> list[Figure]:
    """Measure all cases on one broker, which must have stored what it acknowledged."""
    singles = [frames.send(TOPIC, number) for number in range(FRAMES)]
    batches = [
        frames.send_batch(TOPIC, number, number // frames.BATCH_COUNT % frames.QUEUES)
        for number in range(0, FRAMES, frames.BATCH_COUNT)
    ]
    with TemporaryDirectory(prefix="rucola-bench-") as folder, standalone(Path(folder)) as broker:
        answer_to(broker, singles[0])  # creates the topic
        one = beside_echo(broker, singles, options.count(COUNT_1), options.rounds)
        many = beside_echo(broker, singles, options.count(COUNT_16), options.rounds, connections=16)
        window = beside_echo(broker, singles, options.count(COUNT_64), options.rounds, in_flight=64)
        batched = beside_echo(broker, batches, options.count(BATCHES), options.rounds)
        requests = 1 + one.requests + many.requests + window.requests
        check_stored(broker, TOPIC, requests + batched.requests * frames.BATCH_COUNT)
    return [
        figure("sync_send_1_connection", one),
        figure("sync_send_16_connections", many, aims=[Aim("ratio", 2.5), Aim("value", 13)]),
        figure("send_64_in_flight", window),
        figure("send_batches_of_32", batched, messages=frames.BATCH_COUNT, aims=[Aim("value", 4)]),
    ]


def figure(name: str, pairs: Pairs, *, messages: int = 1, aims: list[Aim] | None = None) -> Figure:
    """Return the broker's CPU per message, for requests with `messages` messages each."""
    return Figure(
        name,
        pairs.of_broker(lambda run: run.cpu_us / messages),
        "µs CPU/message",
        floor=pairs.of_echo(lambda run: run.cpu_us / messages),
        floor_is=ECHO,
        aims=aims or [],
        more={
            "messages/s": pairs.of_broker(lambda run: run.rate * messages),
            "p50_ms": pairs.of_broker(lambda run: run.latency_ms(50)),
            "p99_ms": pairs.of_broker(lambda run: run.latency_ms(99)),
            "least_µs": min(run.cpu_us for run in pairs.broker) / messages,
            "least_µs_of_echo": min(run.cpu_us for run in pairs.echo) / messages,
        },
    )
