"""The key index: where in the lake the messages with a key are. What IndexFiles are to a store, at the lake's scale.

    <lake>/_rucola/keys/<commit>-<number>.parquet
        hash             bigint    CRC-32 of the key's UTF-8
        topic            string    where the message is: its partition,
        date             date
        brokerName       string    and its address
        commitLogOffset  bigint

An entry stands here for each of a message's keys and for its msgId, which is its unique key if it has one. As in an
IndexFile there is only the hash of the key, so whoever finds an entry compares the keys of the message itself. The
hash is one that Spark and Python compute alike; the topic is not part of it, so that a key can be looked for in all.

Every commit of messages brings the entries of exactly these, as one run: entries sorted by hash and cut into files,
each of which has a range of hashes to itself. So a search opens one file of each run, and of that reads the row groups
whose statistics say that they may hold the hash. Sorted hashes take two bytes, an entry some eight.

Compaction merges runs of like size, as log-structured merge trees do: eight of a size become one of the next, and with
a thousand million entries there are some twenty runs.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rucola.spark.lake.snapshot import KeyFile, check_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENTRIES_PER_FILE: Final = 4_000_000
HASH_BITS: Final = 32
KEY_OPTIONS: Final = {
    "parquet.block.size": str(1 << 20),
    "parquet.writer.version": "v2",  # whose delta encoding makes sorted hashes small
}
"""How Spark writes the index: small row groups, since a search reads one of each run."""

_DDL: Final = "hash bigint, topic string, date date, brokerName string, commitLogOffset bigint"

_LEAST_TIER: Final = 100_000
"""Runs with at most so many entries are of one size."""
TIER: Final = 8
"""How many times larger the runs of the next size are, and how many runs of a size are merged."""


def key_hash(key: str) -> int:
    """Return the hash under which a key stands in the index."""
    return zlib.crc32(key.encode())


def write_keys(entries: DataFrame, count: int, directory: Path) -> None:
    """Write entries, about `count` of them, as one run: sorted, and cut by hash into files of `ENTRIES_PER_FILE`."""
    from pyspark.sql import functions as F  # noqa: N812 - here, since looking up a key needs no Spark

    files = max(1, -(-count // ENTRIES_PER_FILE))
    number = F.shiftright(F.col("hash") * files, HASH_BITS).cast("int")
    ordered = entries.repartitionById(files, number).sortWithinPartitions("hash", "date", "commitLogOffset")
    ordered.write.options(**KEY_OPTIONS).parquet(str(directory))


def read_keys(spark: SparkSession, root: str | Path, files: Iterable[KeyFile]) -> DataFrame:
    """Return the entries in files of the index, at least one. Raises StoreCorrupt if one is missing or truncated."""
    root, chosen = Path(root).absolute(), list(files)
    check_files(root, chosen)
    return spark.read.schema(_DDL).parquet(*(str(root / file.path) for file in chosen))


def key_entries(rows: DataFrame) -> DataFrame:
    """Return the entries of the index for rows of the lake."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    keys = F.array_distinct(F.concat(F.array("msgId"), F.coalesce("keys", F.array().cast("array<string>"))))
    address = "topic", "date", "brokerName", "commitLogOffset"
    return rows.select(F.explode(keys).alias("key"), *address).select(
        F.crc32(F.encode("key", "utf-8")).alias("hash"), *address
    )


def runs_to_merge(files: Iterable[KeyFile], least_runs: int = TIER) -> frozenset[int]:
    """Return the runs that compaction makes into one; none while no size has `least_runs` of them.

    Where merging a size makes enough runs of the next, these are merged with them at once.
    """
    entries: dict[int, int] = {}
    for file in files:
        entries[file.run] = entries.get(file.run, 0) + file.entries
    merged: set[int] = set()
    total = 0
    for tier in sorted({_tier(count) for count in entries.values()}):
        members = {run for run, count in entries.items() if _tier(count) == tier}
        grown = bool(merged) and _tier(total) >= tier  # what is merged so far, now a run of this size or a greater one
        if len(members) + grown >= least_runs or (grown and _tier(total) > tier):
            merged |= members
            total += sum(entries[run] for run in members)
    return frozenset(merged)


def _tier(entries: int) -> int:
    return 0 if entries <= _LEAST_TIER else math.ceil(math.log(entries / _LEAST_TIER, TIER))
