"""Spark reading a store: all columns of all rows, beside rows of the same columns that are Arrow already."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from figures import Aim, Figure
from floors import Options, in_turns
from ready import drop, ready_rows, session_with_floor
from rucola.spark import source
from written import write

TOPIC = "BenchRead"
RECORDS = {1024: (512 * 1024, 0.6), 200: (2 * 1024 * 1024, 0.4)}
"""Sizes of a record, how many are read, and the share of the floor's rate that is hoped for."""


def measure(options: Options) -> list[Figure]:
    """Stores of two sizes of records."""
    session = session_with_floor()
    try:
        return [
            _figure(session, size, options.count(count), share, options.rounds)
            for size, (count, share) in RECORDS.items()
        ]
    finally:
        session.stop()


def _figure(session: SparkSession, size: int, count: int, share: float, rounds: int) -> Figure:
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        folder = Path(name)
        write(folder / "store", TOPIC, size, count)
        messages = session.read.format(source.FORMAT).option("storePath", str(folder / "store")).load()
        found = messages.count()
        if found != count:
            raise RuntimeError(f"{count} messages are stored, and Spark reads {found}")
        ready, ready_count = ready_rows(session, messages, count, folder / "batch.arrow")
        ready_s, messages_s = in_turns([lambda: drop(ready), lambda: drop(messages)], rounds)
    rate, floor = count / messages_s, ready_count / ready_s
    return Figure(
        f"spark_read_of_{size}_byte_records",
        rate,
        "rows/s",
        floor=floor,
        floor_is="Spark taking rows of the same columns that are Arrow already",
        more_is_better=True,
        aims=[Aim("ratio", round(1 / share, 2))],
        more={"percent_of_floor": 100 * rate / floor, "MB/s": rate * size / 1e6, "rows": count},
    )
