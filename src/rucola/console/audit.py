"""The audit: each action and each look at bodies is recorded before it runs, and its result after."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from rucola.console.database import Database

SCHEMA = """
CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, account TEXT NOT NULL, peer TEXT NOT NULL,
    action TEXT NOT NULL, result TEXT
);
"""
MAX_ENTRIES: Final = 1_000_000
MAX_TEXT: Final = 2000
"""Characters of an action or a result: the body of a message is not kept a second time."""


class AuditEntry(NamedTuple):
    id: int
    time_ms: int
    account: str
    peer: str
    action: str
    """The command line that does the same."""
    result: str | None
    """None while the action runs, and if the console ended meanwhile."""


@dataclass(slots=True)
class Outcome:
    has_failed: bool = False
    """The action has ended without an error, but some of its parts failed."""
    undo: str = ""
    """The command line that restores the state before."""


class Audit:
    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def recorded(self, account: str, peer: str, action: str) -> AsyncIterator[Outcome]:
        """Record an action, durably, before the block runs, and how the block ends."""
        entry = await self._begin(account, peer, action)
        outcome, result = Outcome(), "interrupted"
        try:
            yield outcome
            result = "failure" if outcome.has_failed else "success"
            result += f"; undo: {outcome.undo}" if outcome.undo else ""
        except Exception as error:
            result = f"failure: {error}"
            raise
        finally:
            await self._end(entry, result)

    async def _begin(self, account: str, peer: str, action: str) -> int:
        row = time.time_ns() // 1_000_000, account, peer, _shortened(action)

        def insert(connection: sqlite3.Connection) -> int:
            query = "INSERT INTO audit (time_ms, account, peer, action) VALUES (?, ?, ?, ?)"
            entry = connection.execute(query, row).lastrowid or 0
            connection.execute("DELETE FROM audit WHERE id<=?", (entry - MAX_ENTRIES,))
            return entry

        return await self._database.run(insert)

    async def _end(self, entry_id: int, result: str) -> None:
        query = "UPDATE audit SET result=? WHERE id=?"
        await self._database.run(lambda connection: connection.execute(query, (_shortened(result), entry_id)))

    async def entries(self, before: int | None = None, count: int = 100) -> list[AuditEntry]:
        """Return the newest entries whose id is below `before`."""
        query = "SELECT id, time_ms, account, peer, action, result FROM audit WHERE id<? ORDER BY id DESC LIMIT ?"
        limits = before or 1 << 62, count
        return await self._database.run(
            lambda connection: [AuditEntry(*row) for row in connection.execute(query, limits)]
        )


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
