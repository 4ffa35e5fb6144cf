"""Search of one key in a lake, by Spark and without it: time, and the share of the lake that is read.

Spark writes the lake by the steps of the archive job: rows of some 200 bytes with a unique key and two keys each, of
four topics, 30 days and eight commits. `--full` writes 20 million rows, which takes minutes and some 4 GB. Each search
is for another key, which one message has.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

from figures import Aim, Figure, median
from floors import Options
from rucola.spark.archive import Archive, SearchResult
from rucola.spark.jobs import search
from rucola.spark.jobs.selection import Selection
from rucola.spark.session import local_session

ROWS = 1_000_000
FULL_ROWS = 20_000_000
COMMITS = 8
DAY_MS = 86_400_000
BEGIN_MS = 1_700_006_400_000


def measure(options: Options) -> list[Figure]:
    """Fill a lake and search it."""
    rows = FULL_ROWS if options.is_full else options.count(ROWS)
    session = local_session("rucola-bench")
    try:
        with TemporaryDirectory(prefix="rucola-bench-") as name:
            lake = Path(name) / "lake"
            begin = time.perf_counter()
            for number in range(COMMITS):
                with Archive(lake).open() as opened:
                    begin_row, end_row = rows * number // COMMITS, rows * (number + 1) // COMMITS
                    opened.append_in_spark(messages(session, begin_row, end_row, rows), iter)
                    opened.commit({})
            fill_s = time.perf_counter() - begin
            more = {
                "rows": rows,
                "GB_of_messages": sum(path.stat().st_size for path in lake.glob("topic=*/*/*.parquet")) / 1e9,
                "GB_of_keys": sum(path.stat().st_size for path in lake.glob("_rucola/keys/*.parquet")) / 1e9,
                "rows/s_filled": rows / fill_s,
            }
            return _search(session, lake, rows, options.rounds, more)
    finally:
        session.stop()


def messages(session: SparkSession, begin: int, end: int, rows: int) -> DataFrame:
    """Return rows like those of the data source, derived from their numbers."""
    stored = f"timestamp_millis({BEGIN_MS} + cast(id as bigint) * {30 * DAY_MS} div {rows})"
    columns = {
        "topic": "concat('Topic', id % 4)",
        "flag": "0",
        "body": "cast(concat(sha2(cast(id as string), 256), repeat(' and more of the like', 5)) as binary)",
        "properties": "map('UNIQ_KEY', msgId, 'KEYS', array_join(keys, ' '), 'TAGS', tags)",
        "brokerName": "'broker-a'",
        "queueId": "cast(id div 4 % 4 as int)",
        "queueOffset": "id div 16",
        "bornTimestamp": stored,
        "storeTimestamp": stored,
        "tags": "concat('Tag', id % 8)",
        "keys": "array(concat('order-', id), concat('customer-', id * 7919 % 1000000))",
        "msgId": "upper(md5(cast(id as string)))",
        "offsetMsgId": "concat('7F00000100002A9F', lpad(hex(id * 300), 16, '0'))",
        "commitLogOffset": "id * 300",
        "storeSize": "300",
        "sysFlag": "0",
        "bornHost": "'127.0.0.1:40000'",
        "storeHost": "'127.0.0.1:10911'",
        "reconsumeTimes": "0",
        "preparedTransactionOffset": "0L",
    }
    made = session.range(begin, end)
    for name in ("msgId", "keys", "tags"):  # properties are derived from these
        made = made.selectExpr("*", f"{columns[name]} as {name}")
    others = [name if name in made.columns else f"{column} as {name}" for name, column in columns.items()]
    return made.selectExpr(*others)


def _search(session: SparkSession, lake: Path, rows: int, rounds: int, more: dict[str, float]) -> list[Figure]:
    numbers = random.Random(2013)

    def without_spark(key: str) -> SearchResult:
        return Archive(lake).by_key([key])

    def with_spark(key: str) -> SearchResult:
        return search.run(session, lake, Selection(keys=(key,)))

    java = session.sparkContext._jvm.ProcessHandle.current().pid()  # type: ignore[union-attr]
    size = 1e9 * (more["GB_of_messages"] + more["GB_of_keys"])
    figures = []
    for name, find, pids in (("search", without_spark, ["self"]), ("search_spark", with_spark, ["self", java])):
        runs = [_run(find, numbers.randrange(rows), pids) for _ in range(rounds + 1)][1:]
        figures.append(
            Figure(f"{name}_a_key", median(lambda run: run[0], runs), "s", aims=[Aim("value", 3)], more=more)
        )
        share = 100 * median(lambda run: run[1], runs) / size
        figures.append(Figure(f"{name}_reads", share, "% of the lake", aims=[Aim("value", 1)]))
        more = {}
    return figures


def _run(find: Callable[[str], SearchResult], number: int, pids: list[object]) -> tuple[float, int]:
    """Return the seconds of a search, and the bytes that these processes read for it."""
    before, begin = _bytes_read(pids), time.perf_counter()
    found = find(f"order-{number}")
    seconds = time.perf_counter() - begin
    if [each.message.physical_offset for each in found.messages] != [number * 300]:
        raise RuntimeError(f"the key of message {number} finds {found}")
    return seconds, _bytes_read(pids) - before


def _bytes_read(pids: list[object]) -> int:
    """Return the bytes that these processes have read, by the kernel's count: with sockets, without mapped files."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/io").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("rchar:"))
