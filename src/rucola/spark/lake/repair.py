"""Repair: restores a lake whose own files are missing or damaged.

    1. inventory   every file of the lake is read by itself (see `rucola.spark.lake.file_inventory`)
    2. plan        files to keep, files to set aside, and losses (see `rucola.spark.lake.repair_plan`)
    3. verify      if the snapshot was lost, the old key index and the archive progress show missing messages
    4. index       lost entries of the key index are computed again from the rows
    5. commit      one commit publishes a self-contained snapshot (see `rucola.spark.lake.writer`)

A dry run ends after step 3. A repair deletes no file, and can be killed at any time and started again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.errors import StoreError
from rucola.files import local_path, make_directory
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.lake.file_inventory import Inventory, take_inventory
from rucola.spark.lake.key_index import key_entries, read_keys, write_keys
from rucola.spark.lake.reader import read_rows
from rucola.spark.lake.repair_plan import RepairPlan, RepairPlanner, completable
from rucola.spark.lake.snapshot import (
    METADATA_DIRECTORY,
    PendingCommit,
    Snapshot,
    check_files,
    check_links,
    committed_files,
)
from rucola.spark.lake.writer import LakeWriter, locked
from rucola.spark.session import AnySession, resolve_session

_ADDRESS: Final = ("topic", "date", "brokerName", "commitLogOffset")
_MAX_SENTENCES: Final = 10


@dataclass(frozen=True)
class LakeRepairResult:
    """Result of a repair, or (`is_dry`) its plan: sentences about damage and lost messages, and files to set aside."""

    lake: str
    findings: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    rows: int = 0
    row_files: int = 0
    key_files: int = 0
    asides: tuple[str, ...] = ()
    is_dry: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether the lake was undamaged."""
        return not self.findings and not self.losses

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dict."""
        return {
            "lake": self.lake,
            "dryRun": self.is_dry,
            "sound": self.is_sound,
            "findings": list(self.findings),
            "losses": list(self.losses),
            "rows": self.rows,
            "rowFiles": self.row_files,
            "keyFiles": self.key_files,
            "setAside": list(self.asides),
        }


@translate_spark_errors()
def run(
    spark: AnySession,
    lake: str | Path,
    *,
    dry_run: bool = False,
    allow_loss: bool = False,
    stores: Collection[str] = (),
    live: Collection[str] = (),
) -> LakeRepairResult:
    """Restore a damaged lake, or on an error nothing.

    `stores` and `live` say how brokers were archived, if no file does. Raises StoreError if there is no lake, or if
    messages are lost and `allow_loss` is false; LakeInUse if another run is writing; ConfigError if it is unknown how a
    broker was archived.
    """
    root = local_path(lake).absolute()
    own = root / METADATA_DIRECTORY
    if not own.is_dir() and next(root.glob("topic=*/date=*/*.parquet"), None) is None:
        raise StoreError(
            f"{root} is not a lake; give a directory into which `rucola pipeline archive` has written", subject=root
        )
    check_links(root)
    if not dry_run:
        make_directory(own)
    # A dry run of a lake without `_rucola` does not lock, because the lock file would have to be created.
    with locked(root) if own.is_dir() else nullcontext():
        target = LakeWriter(root)
        found = take_inventory(root)
        if _is_interrupted(found) and not dry_run:
            # Completing the commit moves files, so the inventory has to be taken again.
            target.finish()
            found = take_inventory(root)
        plan = RepairPlanner(found, {**dict.fromkeys(stores, False), **dict.fromkeys(live, True)}).plan()
        losses = _find_losses(spark, found, plan)
        if losses and not dry_run and not allow_loss:
            raise StoreError(
                f"{root} has lost {'; '.join(losses)}. Restore the files from a backup, or allow the loss "
                f"(--allow-loss) to repair the lake without these messages"
            )
        result = LakeRepairResult(
            str(root),
            plan.findings,
            losses,
            sum(file.rows for file in plan.rows),
            len(plan.rows),
            len(plan.keys),
            plan.asides,
            dry_run,
        )
        if dry_run:
            return result
        if result.is_sound:
            target.finish()
            return result
        snapshot = _restore(spark, target, found, plan)
        return _with_files_of(result, snapshot)


def _is_interrupted(found: Inventory) -> bool:
    # 1. There is no commit record whose files all exist: nothing can be completed.
    # 2. There is no snapshot: the record counts if it is a repair, or the very first commit of the lake.
    # 3. There is a snapshot: the record counts if it is a repair, or the commit that follows the snapshot.
    pending = completable(found, found.snapshot or Snapshot())
    if pending is None or found.snapshot is None:
        return pending is not None and (pending.is_repair or not committed_files(found.root))
    return pending.is_repair or pending.number == found.snapshot.number + 1


def _find_losses(spark: AnySession, found: Inventory, plan: RepairPlan) -> tuple[str, ...]:
    """Return sentences about messages that are in no file. Missing files of an old snapshot may have been replaced."""
    if not plan.rebuilds_index:
        return tuple(_first_few(plan.missing))
    session = resolve_session(spark)
    rows = _read_rows(session, found, [file.path for file in plan.rows]).select(*_ADDRESS, "queueId", "queueOffset")
    keys = [file for path, file in found.keys.items() if path not in found.staged_paths]
    lost = _missing_messages(rows, read_keys(session, found.root, keys)) if keys else []
    lost += _missing_tails(rows, plan)
    is_whole = bool(keys) and not any(path.startswith(f"{METADATA_DIRECTORY}/keys/") for path in found.damages)
    return tuple(_first_few(lost if is_whole else [*plan.missing, *lost]))


def _missing_messages(rows: DataFrame, entries: DataFrame) -> list[str]:
    """Count messages with a key index entry but no row, by topic, day and broker."""
    # An anti join keeps the entries without a row. A message has one entry per key, hence the distinct addresses.
    gone = entries.select(*_ADDRESS).distinct().join(rows, list(_ADDRESS), "left_anti")
    counted = gone.groupBy("topic", "date", "brokerName").agg(
        F.count("*").alias("count"), F.min("commitLogOffset").alias("least"), F.max("commitLogOffset").alias("most")
    )
    return [
        f"{row['count']} messages of {row.topic} on {row.date} from {row.brokerName}, at physical offsets "
        f"{row.least} to {row.most}"
        for row in counted.orderBy("topic", "date", "brokerName").collect()
    ]


def _missing_tails(rows: DataFrame, plan: RepairPlan) -> list[str]:
    """Return sentences about queues whose last rows are before their recorded archive progress."""
    counted = rows.groupBy("brokerName", "topic", "queueId").agg(F.max("queueOffset").alias("last")).collect()
    ends = {(row.brokerName, row.topic, str(row.queueId)): row.last + 1 for row in counted}
    lost = []
    for name, progress in sorted(plan.progress.items()):
        for topic, queues in sorted(progress.queues.items()):
            for queue_id, end in sorted(queues.items()):
                held = ends.get((name, topic, queue_id), 0)
                if held < end:
                    lost.append(f"messages of queue {queue_id} of {topic} from {name}, before offset {end}")
    return lost


def _first_few(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - _MAX_SENTENCES
    return [*sentences[:_MAX_SENTENCES], *([f"and {more} more"] if more > 0 else [])]


def _read_rows(spark: SparkSession, found: Inventory, paths: Iterable[str]) -> DataFrame:
    placed: list[str] = []
    staged: list[str] = []
    for path in paths:
        (staged if path in found.staged_paths else placed).append(str(found.current_path(path)))
    rows = read_rows(spark, found.root, placed)
    if staged:
        # <staging>/<run>/rows/topic=.../date=.../<file>
        rows = rows.unionByName(read_rows(spark, Path(staged[0]).parents[2], staged))
    return rows


def _restore(spark: AnySession, target: LakeWriter, found: Inventory, plan: RepairPlan) -> Snapshot:
    written = 0
    if plan.rebuilds_index or plan.completes_index:
        session = resolve_session(spark)
        rows = _read_rows(session, found, [file.path for file in plan.rows])
        if plan.completes_index and plan.keys:
            # Only messages without any entry get new ones; a complete entry set is written per message, never in part.
            held = read_keys(session, found.root, plan.keys).select(*_ADDRESS).distinct()
            rows = rows.join(held, list(_ADDRESS), "left_anti")
        entries = key_entries(rows)
        count = entries.count()
        if count:
            written = write_keys(entries, count, target.staged_keys)
    keys, moves = target.staged_key_files(plan.number, written)
    target.commit(
        PendingCommit(
            number=plan.number,
            at_ms=time.time_ns() // 1_000_000,
            moves={**plan.moves, **moves},
            rows=plan.rows,
            keys=(*plan.keys, *keys),
            progress=plan.progress,
            replaces=plan.replaced,
            is_repair=True,
            asides={path: f"{METADATA_DIRECTORY}/aside/{plan.number:010d}/{path}" for path in plan.asides},
        )
    )
    snapshot = target.snapshot()
    check_files(target.root, (*snapshot.rows, *snapshot.keys))
    return snapshot


def _with_files_of(result: LakeRepairResult, snapshot: Snapshot) -> LakeRepairResult:
    return LakeRepairResult(
        result.lake,
        result.findings,
        result.losses,
        sum(file.rows for file in snapshot.rows),
        len(snapshot.rows),
        len(snapshot.keys),
        result.asides,
    )
