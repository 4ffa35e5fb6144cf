"""The archive job on a store, beside Spark writing the rows of the finished archive again."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from figures import Aim, Figure, median
from floors import Options
from processes import spent_in_turns
from rucola.spark.jobs import archive
from rucola.spark.lake import read_lake
from rucola.spark.session import local_session
from servers import standalone
from stored import check_stored, fill

TOPIC = "BenchArchive"
STORED = 128 * 1024


def measure(options: Options) -> list[Figure]:
    """Fill a store through a broker, stop the broker, and archive the directory."""
    count = options.count(STORED)
    rounds = max(2, options.rounds // 2)
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        folder = Path(name)
        with standalone(folder / "store") as broker:
            fill(broker, TOPIC, count)
            check_stored(broker, TOPIC, count)
        session = local_session("rucola-bench")
        try:
            return [_archive(session, folder, count, rounds)]
        finally:
            session.stop()


def _archive(session: SparkSession, folder: Path, count: int, rounds: int) -> Figure:
    """Run the whole job into a new lake, including its commits."""
    first = archive.run(session, folder / "store", folder / "lake")
    if first.rows != count:
        raise RuntimeError(f"{count} messages are stored, and {first.rows} were archived")
    numbers = itertools.count()

    def archive_all() -> None:
        archive.run(session, folder / "store", folder / f"lake-{next(numbers)}")

    def write_again() -> None:
        rows = read_lake(session, folder / "lake")
        rows.write.partitionBy("topic", "date").parquet(str(folder / f"copy-{next(numbers)}"))

    copied, archived = spent_in_turns([write_again, archive_all], rounds)
    archive_s = median(lambda each: each.wall_s, archived)
    return Figure(
        "archive",
        median(lambda each: each.cpu_s, archived),
        "s CPU",
        floor=median(lambda each: each.cpu_s, copied),
        floor_is="Spark writing the same rows from ready Parquet",
        ratios=[one.cpu_s / other.cpu_s for one, other in zip(archived, copied, strict=True)],
        aims=[Aim("ratio", 1.2)],
        more={
            "rows/s": count / archive_s,
            "MB/s": first.size / archive_s / 1e6,
            "MB_of_log": first.size / 1e6,
            "MB_of_Parquet": first.file_size / 1e6,
        },
    )
