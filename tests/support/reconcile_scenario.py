"""A scenario for the job reconcile, with messages in every relation to the tables, and the lists that it must find."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rucola.reliable.policy import LEAST_PURGE_AFTER_MS
from rucola.reliable.schema import CONFIRMED, MANUAL, NEW, STUCK, VOID
from rucola.spark.jobs import archive
from rucola.spark.jobs.reconcile import LISTS
from rucola.spark.jobs.reconciled_log import LogSources, log_sources
from rucola.spark.jobs.table_export import TableSource
from rucola.spark.session import LazySession
from support.databases import OutboxDatabase
from support.reconciled import HOUR_MS, database_ms, put_done, put_receipt, put_stub, write_offsets
from support.small_store import SmallStore

BROKER = "broker-a"


def make_scenario(db: OutboxDatabase, folder: Path) -> LogSources:
    """A store of broker-a, a lake of broker-b, and stubs in every relation to them; billing has consumed to 7.

    The offset of `ahead` is beyond the end of its queue: it was committed in a queue that the broker lost.
    """
    now = database_ms(db)
    store = SmallStore(folder / "store")
    for number in range(5):  # one file of the log, which expires
        store.put(queue_id=0, body=bytes(710), at_ms=now - HOUR_MS, UNIQ_KEY=f"X{number}")
    for number in range(5, 12):
        store.put(queue_id=0, at_ms=now if number == 11 else now - HOUR_MS, UNIQ_KEY=f"M{number}")
    store.put(queue_id=2, at_ms=now - LEAST_PURGE_AFTER_MS - HOUR_MS, UNIQ_KEY="OLD")
    store.put("Others", at_ms=now - HOUR_MS, UNIQ_KEY="FOREIGN")
    store.put("%RETRY%billing", at_ms=now - HOUR_MS, UNIQ_KEY="M6")
    min((store.path / "commitlog").iterdir()).unlink()
    write_offsets(store.path, {"T@billing": {0: 7}, "T@stock": {0: 9}, "T@ahead": {0: 99}})
    archived = SmallStore(folder / "archived")
    archived.put(at_ms=now - HOUR_MS, UNIQ_KEY="B0")
    lake = folder / "lake"
    archive.run(LazySession("tests", use_spark=False), archived.path, lake, broker_name="broker-b")

    def at(offset: int, broker: str = BROKER, queue_id: int = 0) -> dict[str, Any]:
        return {"broker": broker, "queue_id": queue_id, "queue_offset": offset}

    put_stub(db, "M5", **at(5))
    put_stub(db, "M6", **at(6))
    put_receipt(db, "M6")
    put_stub(db, "M7", **at(7), awaiting=",billing,stock,")
    put_done(db, "M7", "stock")
    put_stub(db, "M8", status=CONFIRMED, awaiting=",", **at(8))
    put_done(db, "M8")
    put_stub(db, "M10", **at(10), awaiting=",ahead,")
    put_stub(db, "GONE", **at(8))
    put_stub(db, "GONE-VOID", status=VOID, **at(8))
    put_stub(db, "GONE-KEYED", **at(9), shard_key="k")
    put_stub(db, "BEYOND", **at(50))
    put_stub(db, "BEYOND-LATER", due_at=now + HOUR_MS, **at(50))
    put_stub(db, "YOUNG", created_at=now, due_at=now + HOUR_MS, **at(60))
    put_stub(db, "NO-QUEUE", status=CONFIRMED, awaiting=",", **at(0, queue_id=1))
    put_stub(db, "EXPIRED", status=STUCK, **at(2))
    put_stub(db, "ELSEWHERE", **at(0, "broker-z"))
    put_stub(db, "B0", **at(0, "broker-b"))
    put_stub(db, "B9", **at(9, "broker-b"))
    put_stub(db, "EARLY", due_at=now + HOUR_MS, **at(6))
    put_stub(db, "FRESH", status=NEW, sends=0, awaiting=",")
    put_stub(db, "FIRST", status=MANUAL, sends=3, shard_key="key")
    put_stub(db, "SECOND", status=NEW, sends=0, shard_key="key")
    put_done(db, "NO-STUB")
    put_done(db, "NO-STUB-OLD", ago_ms=LEAST_PURGE_AFTER_MS + HOUR_MS)
    return log_sources([store.path, lake], [BROKER])


RESEND = {("M5", True), ("M7", True), ("BEYOND", True), ("EARLY", False), ("FRESH", True)}
NEVER_STORED = {
    ("GONE", "absent"),
    ("GONE-KEYED", "absent"),
    ("EARLY", "absent"),
    ("BEYOND", "beyond the end"),
    ("BEYOND-LATER", "beyond the end"),
    ("NO-QUEUE", "beyond the end"),
}
NEVER_RECEIVED = {
    ("M5", "billing", "passed"),
    ("M7", "billing", "waiting"),
    ("M10", "ahead", "waiting"),
    ("B0", "billing", "waiting"),
}
WITHOUT_STUB = {("done", "NO-STUB"), ("message", "M9")}
UNKNOWN = {
    ("never_stored", "expired", 1),
    ("never_stored", "not covered", 1),
    ("never_stored", "not archived", 1),
    ("without_stub", "may be purged", 2),
}


def check_lists(found: Mapping[str, Any], out: Path) -> None:
    """Check the JSON of a result, and the lists that it has written."""
    assert rows(out, "resend", "messageId", "isDue") == RESEND
    assert rows(out, "never_stored", "messageId", "reason") == NEVER_STORED
    assert rows(out, "never_received", "messageId", "group", "state") == NEVER_RECEIVED
    assert rows(out, "without_stub", "kind", "messageId") == WITHOUT_STUB
    assert {tuple(row.values()) for row in found["unknown"]} == UNKNOWN
    assert [found["lists"][name]["messages"] for name in LISTS] == [5, 6, 4, 2]


def source_of(db: OutboxDatabase) -> TableSource:
    return TableSource(db.url, db.tables.prefix)


def rows(out: Path, name: str, *columns: str) -> set[Any]:
    """Some columns of a list."""
    found = [tuple(row[column] for column in columns) for row in pq.read_table(out / name).to_pylist()]
    assert len({*found}) == len(found)
    return {each[0] for each in found} if len(columns) == 1 else {*found}
