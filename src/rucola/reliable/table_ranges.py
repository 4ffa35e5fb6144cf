"""Tables read in ranges of an indexed column, in little memory and by short transactions.

    stub       by `seq`
    receipt    by `received_at`
    done       by `done_at`

These columns never change, so a row that exists during the whole scan is read exactly once. The ranges are no snapshot:
rows inserted in the meantime may be missed, changed ones are read before or after the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from sqlalchemy import Column, Connection, Select, func, select

from rucola.reliable.schema import Tables

RANGE_ROWS: Final = 200_000
MOST_RANGES: Final = 4096
FETCH_ROWS: Final = 10_000

COLUMNS: Final = {
    "stub": (
        *("seq", "message_id", "topic", "shard_key", "delay_ms", "status", "awaiting", "sends", "broker", "queue_id"),
        *("queue_offset", "dead_letters", "lease_until", "due_at", "created_at", "confirmed_at", "reopened_at"),
    ),
    "receipt": ("message_id", "consumer_group", "broker", "queue_id", "queue_offset", "received_at"),
    "done": ("message_id", "consumer_group", "done_at"),
}

_KEYS: Final = {"stub": "seq", "receipt": "received_at", "done": "done_at"}


class TableRange(NamedTuple):
    """Rows of a table with `begin` <= key < `end`; None is unbounded."""

    table: str
    begin: int | None
    end: int | None


def plan(connection: Connection, tables: Tables, table: str, range_rows: int = RANGE_ROWS) -> list[TableRange]:
    """Return ranges of about `range_rows` rows that cover a table without overlap."""
    bounds = _steps(connection, tables, range_rows) if table == "stub" else _walk(connection, tables, table, range_rows)
    edges = [None, *bounds, None]
    return [TableRange(table, begin, end) for begin, end in pairwise(edges)]


def query(tables: Tables, part: TableRange) -> Select[Any]:
    key = _key(tables, part.table)
    rows = select(*(key.table.c[name] for name in COLUMNS[part.table]))
    if part.begin is not None:
        rows = rows.where(key >= part.begin)
    return rows if part.end is None else rows.where(key < part.end)


def read(connection: Connection, tables: Tables, part: TableRange) -> Iterator[Sequence[Sequence[Any]]]:
    """Yield the rows of a range, `FETCH_ROWS` at a time, through a server-side cursor."""
    streaming = connection.execution_options(yield_per=FETCH_ROWS)
    yield from streaming.execute(query(tables, part)).partitions()


def _steps(connection: Connection, tables: Tables, range_rows: int) -> list[int]:
    """Return bounds at equal distances: `seq` is dense, and counting would scan InnoDB's clustered index."""
    seq = tables.stub.c.seq
    first, last = connection.execute(select(func.min(seq), func.max(seq))).one()
    if first is None:
        return []
    step = max(range_rows, (last - first) // MOST_RANGES + 1)
    return list(range(first + step, last + 1, step))


def _walk(connection: Connection, tables: Tables, table: str, range_rows: int) -> list[int]:
    """Return every `range_rows`-th key, from an index-only scan: times may be spread unevenly."""
    key = _key(tables, table)
    bounds: list[int] = []
    above = connection.scalar(select(func.min(key)))
    while above is not None and len(bounds) < MOST_RANGES:
        bound = connection.scalar(select(key).where(key >= above).order_by(key).limit(1).offset(range_rows))
        if bound is not None and bound <= above:  # more than `range_rows` rows with one key stay together
            bound = connection.scalar(select(func.min(key)).where(key > above))
        if bound is not None:
            bounds.append(bound)
        above = bound
    return bounds


def _key(tables: Tables, table: str) -> Column[Any]:
    column: Column[Any] = getattr(tables, table).c[_KEYS[table]]
    return column
