"""The outbox of a console: stubs by state, and what happens to them next. It only reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rucola.reliable import Tables, migration, operations
from rucola.reliable.database import Database, named_errors
from rucola.reliable.operations import StubView, Unsettled

T = TypeVar("T")


class ReliableOutbox:
    """Raises ReliableError for a database that cannot be used."""

    def __init__(self, url: str, prefix: str) -> None:
        self._tables = Tables(prefix)
        self._database = Database(url)

    async def unsettled(self) -> Unsettled:
        return await self._run(operations.unsettled)

    async def find(self, statuses: Sequence[str], topic: str | None, limit: int) -> list[tuple[StubView, str]]:
        """Return the oldest stubs of these states, and of a topic, with what happens next to each."""
        found = await self._run(operations.find, statuses=statuses, topic=topic, limit=limit)
        return [(one, operations.next_step(one)) for one in found]

    async def _run(self, work: Callable[..., T], **options: Any) -> T:
        def checked(connection: Any) -> T:
            migration.check(connection, self._tables)
            return work(connection, self._tables, **options)

        with named_errors(self._database):
            return await self._database.run(checked)

    async def close(self) -> None:
        with suppress(Exception):
            await self._database.close()
