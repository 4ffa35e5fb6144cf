"""History: samples of series in three resolutions, in a file of bounded size.

    10 s for 2 hours · 1 min for 2 days · 15 min for 90 days

A sample is stored in each resolution, as the mean of its period so far. If the file is full, the oldest tenth of each
resolution is deleted, first of series of single topics and groups, of which there may be thousands.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rucola.console.database import Database

MAX_BYTES: Final = 200 << 20


class Resolution(NamedTuple):
    period_s: int
    kept_s: int


RESOLUTIONS: Final = Resolution(10, 2 * 3600), Resolution(60, 2 * 86_400), Resolution(900, 90 * 86_400)
_DETAILS: Final = "series IN (SELECT id FROM series WHERE name LIKE 'topic %' OR name LIKE 'group %')"
"""Samples of single topics and groups: `topic puts_per_s Orders`."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS sample (
    period_s INTEGER, time_s INTEGER, series INTEGER, value REAL, count INTEGER,
    PRIMARY KEY (period_s, series, time_s)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sample_time ON sample (period_s, time_s);
"""


class Sample(NamedTuple):
    time_s: int
    value: float


class History:
    def __init__(self, path: Path | None, max_bytes: int = MAX_BYTES) -> None:
        self._database = Database(path, _SCHEMA, max_bytes)

    @property
    def is_kept(self) -> bool:
        """Whether the history outlives the console."""
        return self._database.is_kept

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        await self._database.close()

    async def add(self, time_s: int, values: Mapping[str, float]) -> None:
        """Store the values of series at a time, and delete expired samples."""
        while True:
            try:
                await self._database.run(lambda connection: _add(connection, time_s, values))
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL or not await self._database.run(_delete_oldest):
                    raise
            else:
                return

    async def samples(self, name: str, begin_s: int, end_s: int) -> list[Sample]:
        """Return the samples of a series from `begin_s` to `end_s`, in the finest resolution that reaches back."""

        def read(connection: sqlite3.Connection) -> list[Sample]:
            (latest,) = connection.execute("SELECT coalesce(max(time_s), 0) FROM sample WHERE period_s=10").fetchone()
            reach = [one for one in RESOLUTIONS if latest - one.kept_s <= begin_s] or [RESOLUTIONS[-1]]
            query = (
                "SELECT time_s, value FROM sample JOIN series ON id=series "
                "WHERE name=? AND period_s=? AND time_s BETWEEN ? AND ? ORDER BY time_s"
            )
            return [Sample(*row) for row in connection.execute(query, (name, reach[0].period_s, begin_s, end_s))]

        return await self._database.run(read)


def _add(connection: sqlite3.Connection, time_s: int, values: Mapping[str, float]) -> None:
    connection.executemany("INSERT OR IGNORE INTO series (name) VALUES (?)", [(name,) for name in values])
    for period_s, kept_s in RESOLUTIONS:
        connection.executemany(
            "INSERT INTO sample SELECT ?, ?, id, ?, 1 FROM series WHERE name=? ON CONFLICT DO UPDATE SET "
            "value=(value*count+excluded.value)/(count+1), count=count+1",
            [(period_s, time_s // period_s * period_s, value, name) for name, value in values.items()],
        )
        connection.execute("DELETE FROM sample WHERE period_s=? AND time_s<?", (period_s, time_s - kept_s))


def _delete_oldest(connection: sqlite3.Connection) -> int:
    """Delete the oldest tenth of the details or, without any, of everything; return the number of samples."""
    for chosen in (_DETAILS, "1"):
        before = connection.total_changes
        for period_s, _ in RESOLUTIONS:
            where = f"period_s=? AND {chosen}"
            query = f"SELECT min(time_s), max(time_s) FROM sample WHERE {where}"  # noqa: S608 - constants
            begin_s, end_s = connection.execute(query, (period_s,)).fetchone()
            if begin_s is not None:
                limit_s = begin_s + (end_s - begin_s) // 10 + 1
                connection.execute(f"DELETE FROM sample WHERE {where} AND time_s<?", (period_s, limit_s))  # noqa: S608
        if connection.total_changes > before:
            break
    return connection.total_changes - before
