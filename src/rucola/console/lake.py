"""The lake of a console: the state of its tables, and queries of its messages within limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from rucola.admin.commands.archive_query import MessageArchive
from rucola.errors import ConfigError

MAX_ROWS: Final = 200
MAX_EXPORTED_ROWS: Final = 10_000
MAX_BYTES: Final = 16 << 20
MAX_S: Final = 10.0
MAX_RUNNING: Final = 2
MEMORY: Final = "1GB"
FRESH_S: Final = 10.0


class LakeQuery(Protocol):
    """As `rucola.spark.jobs.sql.run` for one lake; its result has `columns`, `rows`, `is_cut` and their views."""

    def __call__(
        self, query: str, *, topics: Callable[[str], bool], limit: int, max_bytes: int, timeout_s: float, memory: str
    ) -> Any: ...


class ConsoleLake:
    """Reads in threads, so that a slow disk delays no page. Raises as the archive does."""

    def __init__(self, archive: MessageArchive, query: LakeQuery) -> None:
        self.archive = archive
        self._query = query
        self._status: tuple[float, Any] | None = None
        self._reading = asyncio.Lock()
        self._running = 0

    async def status(self) -> Any:
        """Return the state of the tables, at most FRESH_S old."""
        async with self._reading:
            if self._status is None or time.monotonic() - self._status[0] >= FRESH_S:
                self._status = time.monotonic(), await asyncio.to_thread(self.archive.status)
            return self._status[1]

    async def query(self, sql: str, topics: Callable[[str], bool], limit: int) -> Any:
        """Return the first rows of a query of the messages of some topics. ConfigError if too many run."""
        if self._running >= MAX_RUNNING:
            raise ConfigError(f"{MAX_RUNNING} queries run already: wait a moment", subject="sql")
        self._running += 1
        try:
            return await asyncio.to_thread(
                self._query, sql, topics=topics, limit=limit, max_bytes=MAX_BYTES, timeout_s=MAX_S, memory=MEMORY
            )
        finally:
            self._running -= 1
