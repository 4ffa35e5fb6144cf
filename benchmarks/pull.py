"""Pulling: the broker's CPU time per message in responses of 32 messages."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import frames
from figures import Figure
from floors import Options, beside_echo
from send import figure
from servers import standalone
from stored import check_stored, fill

TOPIC = "BenchPull"
STORED = 64 * 1024
FIRST_OFFSET = 10_000
"""Offsets of five digits, so that all requests have one size."""

COUNT = 6_000


def measure(options: Options) -> list[Figure]:
    """Read queue 0 repeatedly from begin to end."""
    with TemporaryDirectory(prefix="rucola-bench-") as folder, standalone(Path(folder)) as broker:
        fill(broker, TOPIC, STORED)
        check_stored(broker, TOPIC, STORED)
        end = STORED // frames.QUEUES - frames.BATCH_COUNT
        pulls = [frames.pull_messages(TOPIC, 0, offset) for offset in range(FIRST_OFFSET, end, frames.BATCH_COUNT)]
        pairs = beside_echo(broker, pulls, options.count(COUNT), options.rounds)
    return [figure("pull_32_an_answer", pairs, messages=frames.BATCH_COUNT)]
