"""Key queries among two million messages: latency over the socket, the broker's CPU time, and latency of AdminClient's
query, which also compares the keys.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Aim, Figure
from floors import ECHO, Options, beside_echo
from load import answer_to
from rucola.admin import AdminClient
from rucola.message.record import decode_many
from servers import standalone
from stored import check_stored, fill

TOPIC = "BenchQuery"
STORED, QUICKLY_STORED = 977 * 2048, 80 * 2048
"""Number of messages, each with a key of its own; the index has their unique keys as well."""

FRAMES, COUNT = 2_048, 4_000
ASKED = 500
"""Number of queries by AdminClient."""


def measure(options: Options) -> list[Figure]:
    """Query keys in random order, each of one message."""
    stored = STORED if options.divisor == 1 else QUICKLY_STORED
    with TemporaryDirectory(prefix="rucola-bench-") as folder, standalone(Path(folder)) as broker:
        fill(broker, TOPIC, stored)
        check_stored(broker, TOPIC, stored)
        numbers = list(frames.some_numbers(stored, FRAMES))
        queries = [frames.query(TOPIC, number) for number in numbers]
        found = decode_many(answer_to(broker, queries[0]).body)
        if frames.key(numbers[0]) not in [message.keys for message in found]:
            raise RuntimeError(f"the broker does not find {frames.key(numbers[0])}")
        pairs = beside_echo(broker, queries, options.count(COUNT), options.rounds)
        asked_ms = asyncio.run(_ask(broker.namesrv, numbers[:ASKED]))
    return [
        Figure(
            "key_query_p50",
            pairs.of_broker(lambda run: run.latency_ms(50)),
            "ms",
            floor=pairs.of_echo(lambda run: run.latency_ms(50)),
            floor_is=ECHO,
            aims=[Aim("value", 0.2)],
            more={
                "p99_ms": pairs.of_broker(lambda run: run.latency_ms(99)),
                "echo_p99_ms": pairs.of_echo(lambda run: run.latency_ms(99)),
                "µs_CPU/query": pairs.of_broker(lambda run: run.cpu_us),
                "queries/s": pairs.of_broker(lambda run: run.rate),
                "messages_stored": stored,
            },
        ),
        Figure(
            "admin_query_p50",
            statistics.median(asked_ms),
            "ms",
            floor=pairs.of_broker(lambda run: run.latency_ms(50)),
            floor_is="the bare query",
            aims=[Aim("value", 5.0)],
            more={"p99_ms": statistics.quantiles(asked_ms, n=100)[98], "messages_stored": stored},
        ),
    ]


async def _ask(namesrv: str, numbers: Sequence[int]) -> list[float]:
    """Return the milliseconds that AdminClient takes to find each of these keys."""
    took_ms = []
    async with AdminClient(namesrv) as admin:
        for number in numbers:
            begin = time.perf_counter()
            found = await admin.messages.query_by_key(TOPIC, frames.key(number))
            took_ms.append((time.perf_counter() - begin) * 1000)
            if [message.keys for message in found.messages] != [frames.key(number)]:
                raise RuntimeError(f"the broker does not find {frames.key(number)} alone")
    return took_ms
