"""Table persistence: writes changed tables to their files, in a thread.

Changes during a write are coalesced into the next one. A table whose write failed is written again when the next change
is scheduled or waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rucola.outages import Outages

logger = logging.getLogger(__name__)

T = TypeVar("T")

SnapshotWriter = Callable[[], Callable[[], None]]
"""Returns a function that writes a snapshot of a table and may be called in any thread."""


class TablePersistence:
    """Writes tables after their changes. All methods must be called in one event loop."""

    def __init__(self) -> None:
        self._changed: dict[SnapshotWriter, None] = {}  # the oldest change first
        self._outages = Outages(logger, level=logging.ERROR)
        self._writing: asyncio.Task[None] | None = None

    def schedule(self, table: SnapshotWriter) -> None:
        self._changed[table] = None
        self._running_write()

    async def wait_persisted(self) -> None:
        """Wait until every change up to now is on disk. Raises OSError if a write failed."""
        if (writing := self._running_write()) is not None:
            await asyncio.wait([writing])  # a cancelled caller does not cancel the write
            writing.result()

    def when_persisted(self, call: Callable[[], T]) -> T | Awaitable[T]:
        """Call a function, at once if every change is on disk, else after that; awaitable then. Errors as above."""
        return call() if self._running_write() is None else self._call_later(call)  # most need no task

    async def _call_later(self, call: Callable[[], T]) -> T:
        await self.wait_persisted()
        return call()

    async def stop(self, *tables: SnapshotWriter) -> None:
        """Write these tables for the last time. Raises OSError."""
        for table in tables:
            self.schedule(table)
        await self.wait_persisted()

    def _running_write(self) -> asyncio.Task[None] | None:
        """Return the running write, begun if a failed one left changes; None if every change is on disk."""
        if self._writing is None or self._writing.done():
            if not self._changed:
                return None
            self._writing = asyncio.ensure_future(self._write())
            self._writing.add_done_callback(self._written)
        return self._writing

    async def _write(self) -> None:
        failed: dict[SnapshotWriter, Exception] = {}
        while tables := [table for table in self._changed if table not in failed]:
            table = tables[0]
            # Removed before the snapshot: a change during the write schedules the table again.
            del self._changed[table]
            try:
                await asyncio.to_thread(table())
            except Exception as error:
                failed[table] = error
                self._changed[table] = None
        if failed:
            raise next(iter(failed.values()))

    def _written(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._outages.failed("write of a table", error)
        else:
            self._outages.succeeded("write of a table")
