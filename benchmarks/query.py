"""Key queries: how long one takes over the socket among many keys, and what it costs the broker."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Aim, Figure
from floors import ECHO, Options, beside_echo
from load import answer_to
from rucola.message.record import decode_many
from servers import standalone
from stored import check_stored, fill

TOPIC = "BenchQuery"
STORED = 160 * 1024
"""Messages, each with a key of its own; their unique keys are in the index as well."""

FRAMES, COUNT = 2_048, 4_000


def measure(options: Options) -> list[Figure]:
    """Ask for keys in no order; each of them is in one message."""
    with TemporaryDirectory(prefix="rucola-bench-") as folder, standalone(Path(folder)) as broker:
        fill(broker, TOPIC, STORED)
        check_stored(broker, TOPIC, STORED)
        numbers = list(frames.some_numbers(STORED, FRAMES))
        queries = [frames.query(TOPIC, number) for number in numbers]
        found = decode_many(answer_to(broker, queries[0]).body)
        if frames.key(numbers[0]) not in [message.keys for message in found]:
            raise RuntimeError(f"the broker does not find {frames.key(numbers[0])}")
        pairs = beside_echo(broker, queries, options.count(COUNT), options.rounds)
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
                "messages_stored": STORED,
            },
        )
    ]
