"""Key index of a lake: from message key to the location of the message, the counterpart of IndexFiles.

    <lake>/_rucola/keys/<commit>-<number>.parquet
        hash             bigint    CRC-32 of the key's UTF-8
        topic            string    the partition of the message,
        date             date
        brokerName       string    and its address
        commitLogOffset  bigint

A message has one entry for each key, and one for its msgId, which is the unique key if it has one. Only the hash of a
key, without its topic, is stored, so a search must compare the keys of the messages it finds.

A commit adds its entries as one run: sorted by hash and cut into files with disjoint ranges of hashes, of which a
search opens one. Compaction merges eight runs of a size tier into one of the next.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rucola.files import local_path
from rucola.spark.lake.data_files import FAIL_ON_MISSING_FILES
from rucola.spark.lake.snapshot import KeyFile, check_files
from rucola.spark.shared_files import write_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENTRIES_PER_FILE: Final = 4_000_000
HASH_BITS: Final = 32
KEY_OPTIONS: Final = {
    "parquet.block.size": str(1 << 20),
    "parquet.writer.version": "v2",  # with delta encoding, for the sorted hashes
}
"""Options with which Spark writes the index. Row groups are small, because a search reads one of each run."""

_DDL: Final = "hash bigint, topic string, date date, brokerName string, commitLogOffset bigint"

_LEAST_TIER: Final = 100_000
"""Maximum entries of a run in the first tier."""
TIER: Final = 8
"""The growth factor between tiers, and the number of runs of a tier that are merged."""


def key_hash(key: str) -> int:
    """Return the hash of a key in the index."""
    return zlib.crc32(key.encode())


def write_keys(entries: DataFrame, count: int, directory: Path) -> int:
    """Write about `count` entries as one run, sorted and cut by hash into files, and return their exact number."""
    from pyspark.sql import functions as F  # noqa: N812 - imported here, because lookups need no Spark

    # The file of an entry: equal ranges of hashes, (hash * files) / 2^32.
    files = max(1, -(-count // ENTRIES_PER_FILE))
    number = F.shiftright(F.col("hash") * files, HASH_BITS).cast("int")
    ordered = entries.repartitionById(files, number).sortWithinPartitions("hash", "date", "commitLogOffset")
    return write_parquet(ordered, directory, **KEY_OPTIONS)


def read_keys(spark: SparkSession, root: str | Path, files: Iterable[KeyFile]) -> DataFrame:
    """Return the entries of at least one key file. Raises StoreCorrupt if a file is missing or truncated."""
    root, chosen = local_path(root).absolute(), list(files)
    check_files(root, chosen)
    reader = spark.read.schema(_DDL).options(**FAIL_ON_MISSING_FILES)
    return reader.parquet(*(str(root / file.path) for file in chosen))


def key_entries(rows: DataFrame) -> DataFrame:
    """Return the index entries of lake rows: one for each key and for the msgId."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    keys = F.array_distinct(F.concat(F.array("msgId"), F.coalesce("keys", F.array().cast("array<string>"))))
    address = "topic", "date", "brokerName", "commitLogOffset"
    return rows.select(F.explode(keys).alias("key"), *address).select(
        F.crc32(F.encode("key", "utf-8")).alias("hash"), *address
    )


def runs_to_merge(files: Iterable[KeyFile], least_runs: int = TIER) -> frozenset[int]:
    """Return the runs that compaction merges into one; none if no tier has `least_runs`.

    If the merged run completes the next tier, the runs of that tier are merged as well.
    """
    entries: dict[int, int] = {}
    for file in files:
        entries[file.run] = entries.get(file.run, 0) + file.entries
    # Tiers ascend. `total` is the size of the merged run so far, which counts as a member of its own tier.
    merged: set[int] = set()
    total = 0
    for tier in sorted({_tier(count) for count in entries.values()}):
        members = {run for run, count in entries.items() if _tier(count) == tier}
        grown = bool(merged) and _tier(total) >= tier  # the run merged so far belongs to this tier or a higher one
        if len(members) + grown >= least_runs or (grown and _tier(total) > tier):
            merged |= members
            total += sum(entries[run] for run in members)
    return frozenset(merged)


def _tier(entries: int) -> int:
    """Return the rounded-up logarithm of a run's size."""
    return 0 if entries <= _LEAST_TIER else math.ceil(math.log(entries / _LEAST_TIER, TIER))
