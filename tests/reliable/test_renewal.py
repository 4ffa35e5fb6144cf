"""Renewal of claims: it ends with the delivery, whatever the database does, and reports why it failed."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from rucola.message import MessageExt
from rucola.reliable import idempotent
from support.databases import OutboxDatabase
from support.outbox import add, delivery
from support.waiting import until


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
        await fail(delivery(message_id))
    proceed.set()
    await until(lambda: not any(task.get_name().startswith("leases of") for task in asyncio.all_tasks()))
    await engine.dispose()


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("is_bug", [True, False])
async def test_only_errors_of_the_database_are_logged_without_a_traceback(
    sqlite_db: OutboxDatabase, caplog: pytest.LogCaptureFixture, is_async: bool, is_bug: bool
) -> None:
    """All statements fail once the listener runs: the renewals, and those of the delivery that failed."""
    (message_id,) = add(sqlite_db, "T", [b"x"], groups=["billing"])
    engine = sqlite_db.async_engine() if is_async else create_engine(sqlite_db.url)
    error = TypeError("a bug") if is_bug else sqlite3.OperationalError("database is locked")
    failing = False
    renewed_twice = threading.Event()
    failures: list[str] = []

    @event.listens_for(engine.sync_engine if isinstance(engine, AsyncEngine) else engine, "before_cursor_execute")
    def fail_statement(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if failing:
            failures.append(statement)
            if len(failures) > 1:  # the first failure has been logged
                renewed_twice.set()
            raise error

    async def on_message(message: MessageExt, session: AsyncSession) -> None:
        nonlocal failing
        failing = True
        await until(renewed_twice.is_set, 20)
        raise RuntimeError("on purpose")

    def on_message_sync(message: MessageExt, session: Session) -> None:
        nonlocal failing
        failing = True
        assert renewed_twice.wait(20)
        raise RuntimeError("on purpose")

    decorate = idempotent(engine, "billing", tables=sqlite_db.tables, lease_ms=60)
    listener = decorate(on_message if is_async else on_message_sync)
    message = delivery(message_id)
    with caplog.at_level(logging.INFO, "rucola.reliable"), pytest.raises(RuntimeError, match="on purpose"):
        await (listener(message) if is_async else asyncio.to_thread(listener, message))
    records = [record for record in caplog.records if record.name == "rucola.reliable.idempotent"]
    of_renewals = [record for record in records if record.args and message_id in record.args]
    assert of_renewals
    assert len(records) - len(of_renewals) == 2, "whether it is done, and the release of the claim"
    for record in records:
        logged = record.exc_info[1] if record.exc_info else None
        assert (record.levelno, logged) == ((logging.ERROR, error) if is_bug else (logging.INFO, None))
        assert "\n" not in record.getMessage()
    if isinstance(engine, AsyncEngine):
        await engine.dispose()
    else:
        engine.dispose()
