"""Saved views: addresses of pages with names, which all accounts share."""

from __future__ import annotations

import sqlite3
import time
from typing import Final, NamedTuple

from rucola.console.database import Database
from rucola.errors import ConfigError

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS saved_view (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, path TEXT NOT NULL, account TEXT NOT NULL,
    time_ms INTEGER NOT NULL
);
"""
MAX_VIEWS: Final = 500
MAX_NAME: Final = 100
MAX_PATH: Final = 2000


class SavedView(NamedTuple):
    id: int
    name: str
    path: str
    """With its query, below the prefix of a proxy."""
    account: str
    time_ms: int


class SavedViews:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[SavedView]:
        query = "SELECT id, name, path, account, time_ms FROM saved_view ORDER BY name"
        return await self._database.run(lambda connection: [SavedView(*row) for row in connection.execute(query)])

    async def save(self, name: str, path: str, account: str) -> None:
        """Save a view, in place of the account's own with this name. Raises ConfigError."""
        name = name.strip()
        if not (name and len(name) <= MAX_NAME):
            raise ConfigError(f"the name of a view has 1 to {MAX_NAME} characters", subject="name")
        if (
            not path.startswith("/")
            or path.startswith("//")
            or "\\" in path
            or not path.isprintable()
            or len(path) > MAX_PATH
        ):
            raise ConfigError(f"a view is a page of this console, with at most {MAX_PATH} characters", subject="path")
        row = name, path, account, time.time_ns() // 1_000_000

        def insert(connection: sqlite3.Connection) -> None:
            owner = connection.execute("SELECT account FROM saved_view WHERE name=?", (name,)).fetchone()
            if owner is not None and owner[0] != account:
                raise ConfigError(f"{owner[0]} has a view with the name {name}: take another", subject=name)
            if connection.execute("SELECT count(*) FROM saved_view").fetchone()[0] >= MAX_VIEWS and owner is None:
                raise ConfigError(f"there are {MAX_VIEWS} saved views: delete one", subject=name)
            connection.execute("DELETE FROM saved_view WHERE name=?", (name,))
            connection.execute("INSERT INTO saved_view (name, path, account, time_ms) VALUES (?, ?, ?, ?)", row)

        await self._database.run(insert)

    async def delete(self, id: int, account: str | None) -> None:
        """Delete a view, of this account alone unless it is None."""
        query = "DELETE FROM saved_view WHERE id=? AND account=coalesce(?, account)"
        await self._database.run(lambda connection: connection.execute(query, (id, account)))
