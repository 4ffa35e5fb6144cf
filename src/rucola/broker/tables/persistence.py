"""Table persistence: writes changed tables to their files, in a thread.

Changes during a write are coalesced into the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rucola.outages import Outages
from rucola.protocol.command import RemotingCommand

logger = logging.getLogger(__name__)

SnapshotWriter = Callable[[], Callable[[], None]]
"""Returns a function that writes a snapshot of a table and may be called in any thread."""


class TablePersistence:
    """Writes tables after their changes. All methods must be called in one event loop."""

    def __init__(self) -> None:
        self._changed: set[SnapshotWriter] = set()
        self._outages = Outages(logger, level=logging.ERROR)
        self._writing: asyncio.Task[None] | None = None

    def schedule(self, table: SnapshotWriter) -> None:
        self._changed.add(table)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())
            self._writing.add_done_callback(self._written)

    async def wait_persisted(self) -> None:
        """Wait until every change up to now is on disk. Raises OSError if a write failed."""
        writing = self._writing
        if writing is not None and not writing.done():
            await asyncio.wait([writing])  # a cancelled caller does not cancel the write
            writing.result()

    def reply_when_persisted(self, response: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Return the response, or an awaitable of it while a write is running."""
        # Without a running write the response needs no task, which is the common case for heartbeats.
        return response if self._writing is None or self._writing.done() else self._reply_later(response)

    async def _reply_later(self, response: RemotingCommand) -> RemotingCommand:
        await self.wait_persisted()
        return response

    async def stop(self, *tables: SnapshotWriter) -> None:
        """Write these tables for the last time. Raises OSError."""
        for table in tables:
            self.schedule(table)
        await self.wait_persisted()

    async def _write(self) -> None:
        while self._changed:
            # Removed before the snapshot: a change during the write schedules the table again.
            table = self._changed.pop()
            try:
                await asyncio.to_thread(table())
            except OSError:
                self._changed.add(table)
                raise

    def _written(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._outages.failed("write of a table", error)
        else:
            self._outages.succeeded("write of a table")
