"""Spark reading a store: all columns of all rows, beside rows of the same columns that are Arrow already."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from figures import Aim, Figure
from floors import Options
from processes import spent_in_turns
from ready import drop, ready_rows, session_with_floor
from rucola.spark.source import data_source
from written import write

TOPIC = "BenchRead"
RECORDS = {1024: (512 * 1024, 0.7), 200: (2 * 1024 * 1024, 0.5)}
"""Record sizes, the number of records, and the aim for the share of the floor's rate."""


def measure(options: Options) -> list[Figure]:
    """Measure stores of two record sizes."""
    session = session_with_floor()
    try:
        return [
            figure
            for size, (count, share) in RECORDS.items()
            for figure in _figures(session, size, options.count(count), share, options.rounds)
        ]
    finally:
        session.stop()


def _figures(session: SparkSession, size: int, count: int, share: float, rounds: int) -> list[Figure]:
    """Return the rate, and the CPU time per row of driver, Java runtime and workers together."""
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        folder = Path(name)
        write(folder / "store", TOPIC, size, count)
        messages = session.read.format(data_source.FORMAT).option("storePath", str(folder / "store")).load()
        found = messages.count()
        if found != count:
            raise RuntimeError(f"{count} messages are stored, and Spark reads {found}")
        ready, ready_count = ready_rows(session, messages, count, folder / "batch.arrow")
        both = spent_in_turns([lambda: drop(ready), lambda: drop(messages)], rounds)
    floors, reads = (
        [(spent.wall_s / rows, spent.cpu_s / rows) for spent in each]
        for each, rows in zip(both, (ready_count, count), strict=True)
    )
    (floor_s, floor_cpu_s), (read_s, read_cpu_s) = (map(median, zip(*each, strict=True)) for each in (floors, reads))
    ratios = [read_cpu / floor_cpu for (_, floor_cpu), (_, read_cpu) in zip(floors, reads, strict=True)]
    floor_is = "Spark taking rows of the same columns that are Arrow already"
    return [
        Figure(
            f"spark_read_of_{size}_byte_records",
            1 / read_s,
            "rows/s",
            floor=1 / floor_s,
            floor_is=floor_is,
            more_is_better=True,
            more={"percent_of_floor": 100 * floor_s / read_s, "MB/s": size / read_s / 1e6, "rows": count},
        ),
        Figure(
            f"spark_read_of_{size}_byte_records_CPU",
            read_cpu_s * 1e6,
            "µs/row",
            floor=floor_cpu_s * 1e6,
            floor_is=floor_is,
            ratios=ratios,
            aims=[Aim("ratio", round(1 / share, 2))],
            more={
                "percent_of_floor": 100 * floor_cpu_s / read_cpu_s,
                "least_ratio": min(ratios),
                "most_ratio": max(ratios),
            },
        ),
    ]
