"""Reconcile job: compares stubs, receipts and effects with the messages that brokers and archives have.

    resend           stubs that a relay sends now, by its own decision, and those it would find lost at its next check
    never_stored     a broker answered with a position, and there is no message with the id
    never_received   stored, but an awaited group has neither receipt nor effect
    without_stub     an effect or a message whose stub does not exist

Offsets, receipts, effects and stubs are read first (see `table_export`), then ends of queues and messages: so a message
that is sent, consumed or confirmed in the meantime is in no list. For `without_stub` the order is wrong: messages
stored less than a horizon before the stubs were read are left out, as are young stubs from never_stored.

`run` writes each list as Parquet files, and the counts and report.html next to them. `hand_over` makes the listed stubs
due, so that a relay decides about them again: it never sends because of an outdated list.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from rucola.files import local_path, make_directory
from rucola.reliable import Policy, operations
from rucola.reliable.operations import SeenStub
from rucola.reliable.schema import SENT
from rucola.spark.error_translation import translate_spark_errors
from rucola.spark.jobs import reconcile_report, reconciled_tables, table_export
from rucola.spark.jobs.progress import ProgressCallback
from rucola.spark.jobs.reconciled_log import ENDS, LogSources
from rucola.spark.jobs.reconciled_tables import ABSENT, BEYOND, RESEND, SEND, Evidence
from rucola.spark.jobs.table_export import TableSource
from rucola.spark.session import AnySession, resolve_session
from rucola.spark.shared_files import write_parquet

HORIZON_MS: Final = 600_000
EXAMPLES: Final = 20
HAND_OVER_ROWS: Final = 500
"""Stubs changed in one transaction."""

LISTS: Final = ("resend", "never_stored", "never_received", "without_stub")


@dataclass(frozen=True)
class ReconcileResult:
    """Counts of a reconciliation, and the oldest messages of each list.

    `tables` are the Arrow tables `counts` (by list, topic, group, status and day), `stubs` (by topic, status and day),
    `decisions` (about due stubs) and `unknown` (rows that can be neither listed nor excluded, by list and reason).
    """

    sources: tuple[str, ...]
    read_at_ms: int
    tables: Mapping[str, pa.Table]
    examples: Mapping[str, Sequence[Mapping[str, Any]]]
    missing: tuple[str, ...] = ()
    """A sentence for each live broker that was not read; its messages are unknown."""

    def count(self, name: str) -> int:
        """Return the number of rows in a list."""
        counts = self.tables["counts"]
        rows = zip(counts["list"].to_pylist(), counts["messages"].to_pylist(), strict=True)
        return sum(messages for each, messages in rows if each == name)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON-serializable dict."""
        lists = {name: {"messages": self.count(name), "oldest": list(self.examples[name])} for name in LISTS}
        rows = {name: table.to_pylist() for name, table in self.tables.items()}
        found = {"sources": list(self.sources), "missing": list(self.missing), "readAt": self.read_at_ms}
        return {**found, "lists": lists, **rows}


@translate_spark_errors()
def run(
    spark: AnySession,
    tables: TableSource | Path,
    log: LogSources,
    out: Path,
    *,
    consumers: Sequence[TableSource] = (),
    policy: Policy | None = None,
    horizon_ms: int = HORIZON_MS,
) -> ReconcileResult:
    """Reconcile a database, or an export of it, with a log; write lists, counts and report.html into `out`.

    Raises SchemaError or ReliableError for a database, StoreError for an incomplete export.
    """
    session = resolve_session(spark)
    out = local_path(out).absolute()  # the Java runtime may have another working directory
    make_directory(out)
    with _exported(tables, consumers, log, out) as directory:
        frames, read_at_ms = table_export.load(session, directory)
        read = log.read(session)
        messages = read.messages.persist(StorageLevel.MEMORY_AND_DISK)
        last = {tuple(end[:3]): end.end for end in sorted(read.ends, key=lambda end: end.end)}
        evidence = Evidence(
            **{name: _of_topics(reconciled_tables.camel(frames[table]), log) for name, table in _FRAMES.items()},
            log=messages,
            ends=session.createDataFrame([(*queue, end) for queue, end in last.items()], ENDS),
            commits=frames[table_export.OFFSET],
            brokers=read.brokers,
            now_ms=read_at_ms,
            horizon_ms=horizon_ms,
        )
        try:
            tables_found, examples = _write_lists(session, evidence, policy or Policy(), out, log)
        finally:
            messages.unpersist()
    result = ReconcileResult(tuple(log.names), read_at_ms, tables_found, examples, tuple(read.missing))
    for name, table in result.tables.items():
        pq.write_table(table, out / f"{name}.parquet")
    found = {name: table.to_pylist() for name, table in result.tables.items()}
    (out / "report.html").write_text(reconcile_report.page(result.sources, read_at_ms, found, examples))
    return result


_FRAMES: Final = {"stubs": "stub", "receipts": "receipt", "done": "done"}


def _of_topics(frame: DataFrame, log: LogSources) -> DataFrame:
    if log.topics is None or "topic" not in frame.columns:
        return frame
    return frame.where(F.col("topic").isin(*log.topics))


@contextmanager
def _exported(
    tables: TableSource | Path, consumers: Sequence[TableSource], log: LogSources, out: Path
) -> Iterator[Path]:
    """Yield the directory of an export. A new one is in `out`, which workers share, and is removed."""
    if isinstance(tables, Path):
        yield tables
        return
    with tempfile.TemporaryDirectory(prefix="export-", dir=out) as directory:
        table_export.write(tables, Path(directory), log.commits, consumers=consumers)
        with translate_spark_errors():  # while the files exist, whose absence on a worker shows that it has others
            yield Path(directory)


def _write_lists(
    session: SparkSession, evidence: Evidence, policy: Policy, out: Path, log: LogSources
) -> tuple[dict[str, pa.Table], dict[str, list[dict[str, Any]]]]:
    checked = reconciled_tables.checked(evidence, policy).persist(StorageLevel.MEMORY_AND_DISK)
    missing = reconciled_tables.missing(evidence).persist(StorageLevel.MEMORY_AND_DISK)
    without = reconciled_tables.without_stub(evidence, log.topics).persist(StorageLevel.MEMORY_AND_DISK)
    lists = {
        "resend": checked.where(F.col("decision").isin(SEND, RESEND)),
        "never_stored": missing.where(F.col("reason").isin(ABSENT, BEYOND)),
        "never_received": reconciled_tables.never_received(evidence),
        "without_stub": without.where("reason IS NULL").drop("reason"),
    }
    try:
        written = {}
        for name, rows in lists.items():
            write_parquet(rows, out / name, mode="overwrite")
            written[name] = session.read.schema(rows.schema).parquet(str(out / name))
        counts = [reconciled_tables.counts(rows, name) for name, rows in written.items()]
        unknown = [
            _reasons(missing.where(~F.col("reason").isin(ABSENT, BEYOND)), "never_stored"),
            _reasons(without.where("reason IS NOT NULL"), "without_stub"),
        ]
        due = checked.where("isDue").groupBy("decision").agg(F.count("*").alias("messages"))
        frames = {
            "counts": reduce(DataFrame.unionByName, counts).orderBy("list", "topic", "group", "status", "day"),
            "stubs": reconciled_tables.stub_counts(evidence),
            "decisions": due.orderBy("decision"),
            "unknown": reduce(DataFrame.unionByName, unknown).orderBy("list", "reason"),
        }
        tables = {name: frame.toArrow() for name, frame in frames.items()}
        oldest = {name: rows.orderBy(F.desc("ageMs"), "messageId").limit(EXAMPLES) for name, rows in written.items()}
        return tables, {name: rows.toArrow().to_pylist() for name, rows in oldest.items()}
    finally:
        for frame in (checked, missing, without):
            frame.unpersist()


def _reasons(rows: DataFrame, name: str) -> DataFrame:
    return rows.groupBy("reason").agg(F.count("*").alias("messages")).select(F.lit(name).alias("list"), "*")


@dataclass(frozen=True)
class HandedOver:
    """Number of stubs in a list, and how many of them were changed."""

    listed: int
    changed: int


def hand_over(
    source: TableSource, out: Path, *, is_dry: bool = True, progress: ProgressCallback | None = None
) -> dict[str, HandedOver]:
    """Make the stubs of a reconciliation due now, unless they have changed since; return counts by list.

    From `never_stored` these are the SENT ones, whose position is removed.
    """
    found = {}
    for name, condition, forget in (
        ("resend", ~ds.field("isDue"), False),
        ("never_stored", ds.field("status") == SENT, True),
    ):
        rows = ds.dataset(out / name, schema=_SEEN if forget else _SEEN.append(pa.field("isDue", pa.bool_())))
        total = rows.count_rows(filter=condition)
        changed = done = 0
        if not is_dry:
            with table_export.connected(source) as connection:
                for batch in rows.to_batches(filter=condition, columns=_SEEN.names, batch_size=HAND_OVER_ROWS):
                    seen = [SeenStub(*row.values()) for row in batch.to_pylist()]
                    if seen:
                        changed += operations.hasten(connection, source.tables, seen, forget_position=forget)
                        connection.commit()
                    done += len(seen)
                    if progress is not None:
                        progress(done, total)
        found[name] = HandedOver(total, changed)
    return found


_SEEN: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("status", pa.string()),
        ("sends", pa.int32()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
    ]
)
