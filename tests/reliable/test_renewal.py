"""Renewal of claims: it ends with the delivery, whatever the database does meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.util import await_only

from rucola.message import MessageExt, properties
from rucola.reliable import idempotent
from support.databases import OutboxDatabase
from support.outbox import add
from support.waiting import until


def renewals() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("lease of")]


async def test_renewal_ends_with_its_delivery_although_the_driver_swallows_a_cancellation(
    sqlite_db: OutboxDatabase,
) -> None:
    (message_id,) = add(sqlite_db, "T", [b"x"], groups=["billing"])
    engine = sqlite_db.async_engine()
    renewing, proceed = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        renewing.set()
        await proceed.wait()

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def hold_renewal(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        """Hold the first renewal until the delivery has ended; as a locked database does, and with its error."""
        if statement.startswith("UPDATE") and not renewing.is_set():
            try:
                await_only(wait())
            except asyncio.CancelledError:
                raise sqlite3.OperationalError("database is locked") from None

    @idempotent(engine, "billing", tables=sqlite_db.tables, lease_ms=60)
    async def fail(message: MessageExt, session: AsyncSession) -> None:
        await renewing.wait()
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        await fail(
            MessageExt(
                "T", 0, 7, 0, 0, b"x", {properties.UNIQ_KEY: message_id}, 0, 0, 0, 1, 0, "", 0, "127.0.0.1:1", 0, 0,
                bytes(8),
            )
        )  # fmt: skip
    proceed.set()
    await until(lambda: not renewals(), 5)
    await engine.dispose()
