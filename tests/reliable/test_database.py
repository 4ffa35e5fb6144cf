"""Transactions of relays and consumers on an engine whose connections end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import NullPool, QueuePool

from rucola.reliable.database import IDLE_TIMEOUT_S, BlockingDatabase, Database, engine_of
from support.databases import OutboxDatabase

ID = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
END = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}


def end_connection(db: OutboxDatabase, engine: Engine) -> None:
    """Let the server end the connection that the engine's pool holds."""
    with engine.connect() as connection:
        number = connection.scalar(text(ID[db.name]))
    admin = create_engine(db.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(END[db.name].format(number)))


def one(connection: Connection) -> int | None:
    return connection.scalar(text("SELECT 1"))


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_ended_connection_is_a_database_error_and_the_next_one_works(
    kind: str, new_db: Callable[[str, str], OutboxDatabase]
) -> None:
    db = new_db(kind, "")
    engine = create_engine(db.url, pool_size=1)
    database = Database(engine)
    for run in (database.run, database.run_one, BlockingDatabase(engine).run):
        end_connection(db, engine)
        with pytest.raises(DBAPIError):
            await run(one)
        assert _taken(engine) == 0
        assert await run(one) == 1
    engine.dispose()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_ended_connection_of_an_async_engine_is_a_database_error(
    kind: str, new_db: Callable[[str, str], OutboxDatabase]
) -> None:
    db = new_db(kind, "")
    database = Database(db.async_url)
    number = await database.run(lambda connection: connection.scalar(text(ID[db.name])))
    with db.engine().execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(END[db.name].format(number)))
    with pytest.raises(DBAPIError):
        await database.run(one)
    assert _taken(database.engine) == 0
    assert await database.run(one) == 1
    await database.close()


def _taken(engine: Engine | AsyncEngine) -> int:
    """Return the number of connections that the pool lacks."""
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedout()


def test_mariadb_ends_transactions_whose_client_is_away_by_a_setting_that_mysql_ignores(
    new_db: Callable[[str, str], OutboxDatabase],
) -> None:
    """MySQL, which does not know the setting, takes `/*M! ... */` for a comment."""
    engine = engine_of(new_db("mariadb", "").url)
    assert isinstance(engine, Engine)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT @@SESSION.idle_transaction_timeout, @rucola")).one()
    engine.dispose()
    assert tuple(found) == (IDLE_TIMEOUT_S, 1)
