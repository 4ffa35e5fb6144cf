"""A lake of many small commits: CPU of a commit and of a lookup, files of metadata, and Spark's reads of it.

A commit is what `archive --every 60` does in a round: 20 messages of two topics are archived, and small files merged.
An hour is simulated: after each commit the metadata files become a minute older.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import rucola.spark
from figures import Aim, Figure
from floors import Options
from processes import spent_in_turns
from rucola.spark.archive import Archive, ArchiveProgress
from rucola.spark.lake import read_lake
from rucola.spark.session import local_session
from rucola.spark.source.columns import SCHEMA

COMMITS = 500
MINUTES = 60
LOOKUP_AFTER = 300
ROWS = 400_000
_BEGIN_US = 1_700_006_400_000_000


def measure(options: Options) -> list[Figure]:
    """Commit to a lake, and read one."""
    with TemporaryDirectory(prefix="rucola-bench-") as name:
        folder = Path(name)
        figures = _commits(Archive(folder / "commits"), options)
        session = local_session("rucola-bench")
        try:
            return [*figures, *_reads(session, Archive(folder / "read"), options)]
        finally:
            session.stop()


def _commits(lake: Archive, options: Options) -> list[Figure]:
    count = options.count(COMMITS)
    cpu_s, wall_s, lookups_s, files_after_an_hour = [], [], [], 0
    for number in range(count):
        begin_s, begin = time.process_time(), time.perf_counter()
        _append(lake, number * 20, 20, topics=2)
        lake.compact()
        cpu_s.append(time.process_time() - begin_s)
        wall_s.append(time.perf_counter() - begin)
        _age(Path(lake.path), 60)
        if number + 1 == MINUTES:
            files_after_an_hour = max(
                len([*(Path(lake.path) / place).iterdir()]) for place in ("metadata", "_rucola/keys/metadata")
            )
        if number + 1 == min(LOOKUP_AFTER, count):
            lookups_s = [_cpu_s(lambda key=key: lake.by_key([f"k{key}"])) for key in range(0, number * 20, number + 7)]
    early, late = median(cpu_s[5:15]), median(cpu_s[-10:])
    return [
        Figure("lake_commit", late * 1000, "ms CPU", floor=early * 1000, floor_is="the 10th commit",
               aims=[Aim("ratio", 2)], more={"commits": count, "ms": median(wall_s) * 1000}),
        Figure("lake_metadata", files_after_an_hour, "files", aims=[Aim("value", 100)]),
        Figure("lake_lookup", median(lookups_s) * 1000, "ms CPU", aims=[Aim("value", 50)]),
        # A message waits for the next round, which begins a minute after the last one, and ends when it is archived.
        Figure("lake_freshness", 60 + 2 * float(np.quantile(wall_s, 0.99)), "s, at most", aims=[Aim("value", 75)]),
    ]  # fmt: skip


def _age(directory: Path, seconds: float) -> None:
    for path in itertools.chain(directory.glob("metadata/*"), directory.glob("_rucola/keys/metadata/*")):
        written = path.stat().st_mtime - seconds
        os.utime(path, (written, written))


def _cpu_s(act: Callable[[], object]) -> float:
    begin_s = time.process_time()
    act()
    return time.process_time() - begin_s


def _append(lake: Archive, begin: int, count: int, *, topics: int, body: bytes = b"body") -> None:
    numbers = np.arange(begin, begin + count)
    columns = {field.name: pa.nulls(count, field.type) for field in SCHEMA}
    columns |= {field.name: pa.array([0] * count, field.type) for field in SCHEMA if pa.types.is_integer(field.type)}
    columns |= dict.fromkeys(("bornHost", "storeHost"), pa.array(["127.0.0.1:10911"] * count))
    columns |= {
        "topic": pa.array([f"T{number}" for number in numbers % topics]),
        "body": pa.array([body + b"%d" % number for number in numbers], pa.binary()),
        "brokerName": pa.array(["a"] * count),
        "queueId": pa.array(numbers % 4, pa.int32()),
        "queueOffset": pa.array(numbers // 4),
        "commitLogOffset": pa.array(numbers * 300),
        "msgId": pa.array([f"U{number:031d}" for number in numbers]),
        "keys": pa.array([[f"k{number}"] for number in numbers]),
        "properties": pa.array(
            [[("UNIQ_KEY", f"U{number:031d}"), ("KEYS", f"k{number}")] for number in numbers],
            SCHEMA.field("properties").type,
        ),
        "bornTimestamp": pa.array(_BEGIN_US + numbers * 1000, SCHEMA.field("bornTimestamp").type),
        "storeTimestamp": pa.array(_BEGIN_US + numbers * 1000, SCHEMA.field("storeTimestamp").type),
        "storeSize": pa.array(np.full(count, 300, np.int32)),
    }
    with lake.open() as target:
        target.append([pa.RecordBatch.from_arrays([*columns.values()], schema=SCHEMA)])
        target.commit({"a": ArchiveProgress((begin + count) * 300)})


def _reads(session: SparkSession, lake: Archive, options: Options) -> list[Figure]:
    rows, begins = options.count(ROWS), 8
    for number in range(begins):
        _append(lake, number * rows // begins, rows // begins, topics=4, body=b"x" * 300)
    rucola.spark.register(session)
    paths = [str(path) for path in Path(lake.path).glob("data/*/*/*.parquet")]
    schema = read_lake(session, str(lake)).drop("date").schema

    def plain() -> DataFrame:
        return session.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)

    def source() -> DataFrame:
        return session.read.format("rocketmq").option("lake", str(lake)).load()

    def narrow_source() -> DataFrame:
        return session.read.format("rocketmq").option("lake", str(lake)).option("columns", "tags,queueId").load()

    def read_everything(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def read_two(frame: DataFrame) -> None:
        frame.groupBy("tags").sum("queueId").collect()

    acts = [
        lambda: read_everything(plain()), lambda: read_everything(read_lake(session, str(lake))),
        lambda: read_everything(source()), lambda: read_two(plain()), lambda: read_two(read_lake(session, str(lake))),
        lambda: read_two(narrow_source()),
    ]  # fmt: skip
    spent = [median(each.cpu_s for each in of_act) for of_act in spent_in_turns(acts, options.rounds)]
    floors = spent[0], spent[0], spent[3], spent[3]
    names = ("lake_read", "lake_read_source", "lake_read_narrow", "lake_read_narrow_source")
    return [
        Figure(name, cpu_s, "s CPU", floor=floor_s, floor_is="Spark reading the same files as plain Parquet",
               aims=[Aim("ratio", 1.2)], more={"rows": rows})
        for name, cpu_s, floor_s in zip(names, (spent[1], spent[2], spent[4], spent[5]), floors, strict=True)
    ]  # fmt: skip
