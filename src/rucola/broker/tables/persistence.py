"""Writing tables of a broker into their files after each change: in a thread, so that no message waits for the disk.

Many changes that come close together are written at once. Whoever has to answer for a change waits with
`wait_persisted` until
it is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rucola.protocol.command import RemotingCommand

logger = logging.getLogger(__name__)

SnapshotWriter = Callable[[], Callable[[], None]]
"""Takes a table as it is, and returns a call for any thread that writes it."""


class TablePersistence:
    """Keeps the files of some tables as the tables are. Belongs to one event loop."""

    def __init__(self) -> None:
        self._changed: set[SnapshotWriter] = set()
        self._turn: asyncio.Task[None] | None = None

    def schedule(self, table: SnapshotWriter) -> None:
        """A table is other than its file: write it as soon as possible."""
        self._changed.add(table)
        if self._turn is None or self._turn.done():
            self._turn = asyncio.ensure_future(self._write())
            self._turn.add_done_callback(_log_failure)

    async def wait_persisted(self) -> None:
        """Wait until every change up to now is on disk. OSError where it could not be written."""
        if self._turn is not None and not self._turn.done():
            await asyncio.shield(self._turn)

    def reply_when_persisted(self, answer: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        """The answer, where something is being written as what waits for that."""
        return answer if self._turn is None or self._turn.done() else self._after_turn(answer)

    async def _after_turn(self, answer: RemotingCommand) -> RemotingCommand:
        await self.wait_persisted()
        return answer

    async def stop(self, *tables: SnapshotWriter) -> None:
        """Write these tables for the last time. OSError as in `wait_persisted`."""
        for table in tables:
            self.schedule(table)
        await self.wait_persisted()

    async def _write(self) -> None:
        while self._changed:
            table = self._changed.pop()
            try:
                await asyncio.to_thread(table())
            except OSError:
                self._changed.add(table)
                raise


def _log_failure(turn: asyncio.Task[None]) -> None:
    if not turn.cancelled() and (error := turn.exception()) is not None:
        logger.error("a table could not be written: %s", error)
