"""An SQLite file in a thread of its own, so that a slow disk delays no request."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

PAGE_SIZE: Final = 4096


class Database:
    """A file with a schema; in memory, with `is_kept` false, if there is no path or its directory is read-only."""

    def __init__(self, path: Path | None, schema: str, max_bytes: int = 0) -> None:
        self.is_kept = path is not None
        self._path = path
        self._schema = schema
        self._max_bytes = max_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="console-database")
        self._connection: sqlite3.Connection

    async def open(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    def _open(self) -> None:
        if self._path is not None:
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._connection = self._connect(str(self._path))
                return
            except (OSError, sqlite3.Error) as error:
                logger.warning("%s cannot be used, and is kept in memory: %s", self._path, error)
                self.is_kept = False
        self._connection = self._connect(":memory:")

    def _connect(self, path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if self._max_bytes:
            connection.execute(f"PRAGMA max_page_count={self._max_bytes // PAGE_SIZE}")
        connection.executescript(self._schema)
        connection.commit()
        return connection

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction, which is durable when this returns. Raises sqlite3.Error."""

        def transaction() -> T:
            with self._connection:
                return work(self._connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()
