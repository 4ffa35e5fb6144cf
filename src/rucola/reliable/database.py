"""Short transactions from asyncio: plain functions of a Connection, on an Engine (in a thread) or an AsyncEngine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, create_engine, event, func, literal_column
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rucola.client.daemon_threads import DaemonThreads
from rucola.reliable.dbapi import DriverConnection
from rucola.reliable.errors import ReliableError

T = TypeVar("T")

IDLE_TIMEOUT_S: Final = 30
LOCK_TIMEOUT_S: Final = 2
"""The longest wait for a lock on a connection that tenants share; a relay then pauses, and others use it."""
FORMS: Final = (
    "write sqlite:///FILE, postgresql+psycopg://USER@HOST/NAME or mysql+pymysql://USER@HOST/NAME, with %XX for each of "
    "@ : / ? % in a password"
)
AUTOCOMMIT: Final = "AUTOCOMMIT"
"""Single statements need no BEGIN and COMMIT, each of which would be a round trip."""

_MARIADB_AWAY: Final = (1040, 1053, 2002, 2003, 2006, 2013)
"""Too many connections; shutdown in progress; cannot connect, by socket or by TCP; gone away; lost connection."""

_MARIADB_LOCK_TIMEOUTS: Final = ("innodb_lock_wait_timeout", "lock_wait_timeout")
"""Of rows, and of tables."""


def idle_limit(connection: Connection | DriverConnection, timeout_ms: int) -> list[ColumnElement[str]]:
    """Return columns for a SELECT or RETURNING that limit how long this transaction may wait for its client.

    A paused or vanished client would keep its row locks; PostgreSQL rolls back after `timeout_ms` without a statement.
    A column costs no round trip. MariaDB has the limit per connection, see `engine_of`; SQLite needs none.
    """
    if connection.dialect.name != "postgresql":
        return []
    setting: ColumnElement[str] = literal_column("'idle_in_transaction_session_timeout'")
    return [func.set_config(setting, str(timeout_ms), True)]


class Database:
    """An engine, given or created from a URL; `close` disposes only of an engine created here.

    `connections` bounds those of a URL, which several users share: none waits for a lock longer than `LOCK_TIMEOUT_S`,
    and the database has as many threads of its own, which end with the program even if the database does not answer.
    """

    def __init__(self, engine: Engine | AsyncEngine | URL | str, *, connections: int | None = None) -> None:
        self._owns_engine = isinstance(engine, (str, URL))
        self.engine: Engine | AsyncEngine = engine_of(engine, connections) if isinstance(engine, (str, URL)) else engine
        self._threads: DaemonThreads | None = None  # None: the event loop's
        if connections is not None:
            self._threads = DaemonThreads(connections, f"database {self.engine.url.database}")
        # MariaDB's REPEATABLE READ keeps locks on all rows that a scan visited, not only on matching ones.
        self._isolation_level = "READ COMMITTED" if self.engine.dialect.name != "sqlite" else None

    @property
    def url(self) -> URL:
        return self.engine.url

    @property
    def dialect_name(self) -> str:
        return self.engine.dialect.name

    async def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run `work(connection, ...)` in a new transaction and commit it."""
        return await self._run(self._isolation_level, work, *args, **kwargs)

    async def run_one(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run `work`, which executes a single statement, in autocommit mode."""
        return await self._run(AUTOCOMMIT, work, *args, **kwargs)

    def run_sync(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run `work` as `run` does, in the calling thread."""
        return self._run_sync(self._isolation_level, work, *args, **kwargs)

    @contextmanager
    def connect_sync(self) -> Iterator[Connection]:
        if isinstance(self.engine, AsyncEngine):
            raise ReliableError("an AsyncEngine works only on an event loop: pass an Engine")
        with self._translated_errors(), self.engine.connect() as connection:
            yield connection

    async def _run(self, level: str | None, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if isinstance(self.engine, AsyncEngine):
            with self._translated_errors():
                async with self.engine.connect() as connection:
                    return await connection.run_sync(_run_at, level, work, *args, **kwargs)
        return await self._in_thread(partial(self._run_sync, level, work, *args, **kwargs))

    def _run_sync(self, level: str | None, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        with self.connect_sync() as connection:
            return _run_at(connection, level, work, *args, **kwargs)

    async def is_away(self, error: DBAPIError) -> bool:
        """Return whether the server is unreachable, rather than refusing user, password or database."""
        return await self._in_thread(partial(self._is_away, error))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        run = partial(copy_context().run, work)
        if self._threads is None:
            return await asyncio.get_running_loop().run_in_executor(None, run)
        return await asyncio.wrap_future(self._threads.submit(run))

    def _is_away(self, error: DBAPIError) -> bool:
        if error.connection_invalidated:
            return True
        match self.dialect_name:
            case "postgresql":
                from psycopg import pq

                conninfo = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
                return pq.PGconn.ping(conninfo.encode()) in (pq.Ping.REJECT, pq.Ping.NO_RESPONSE)
            case "sqlite":
                return getattr(error.orig, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            case _:
                return bool(error.orig and error.orig.args and error.orig.args[0] in _MARIADB_AWAY)

    async def close(self) -> None:
        if self._owns_engine:
            if isinstance(self.engine, AsyncEngine):
                await self.engine.dispose()
            else:
                self.engine.dispose()
        if self._threads is not None:
            self._threads.close()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise driver errors as DBAPIError; SQLAlchemy does not when it sets the isolation level."""
        driver = self.engine.dialect.dbapi
        assert driver is not None
        try:
            yield
        except driver.Error as error:
            raise DBAPIError.instance("SET TRANSACTION ISOLATION LEVEL", None, error, driver.Error) from error


def shown_url(url: URL) -> str:
    """Return a URL for messages: without its password, and its options, where one can be as well."""
    return url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def named_errors(database: Database) -> Iterator[None]:
    """Raise errors of the driver as ReliableErrors that name the database."""
    try:
        yield
    except DBAPIError as error:
        why = " ".join(str(error.orig).split())
        raise ReliableError(
            f"{shown_url(database.url)}: {why}; check the URL, and that the database is reachable"
        ) from None


class BlockingDatabase(Database):
    """A database of programs without an event loop: `run` and `run_one` block the calling thread, and never suspend."""

    async def _run(self, level: str | None, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self._run_sync(level, work, *args, **kwargs)


def complete(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError(f"{coroutine!r} waits for an event loop")


def _run_at(connection: Connection, level: str | None, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run `work`. The level as an option of the engine would leak connections after driver errors."""
    if level is not None:
        try:
            connection.execution_options(isolation_level=level)
        except Exception as error:
            connection.invalidate(error)
            raise
    if level == AUTOCOMMIT:
        return work(connection, *args, **kwargs)
    with connection.begin():
        return work(connection, *args, **kwargs)


def _limit_locks(connection: Any, record: object) -> None:
    """Limit the waits for locks on a new connection to PostgreSQL, unless its URL or role has a limit."""
    cursor = connection.cursor()
    cursor.execute(
        f"SELECT set_config('lock_timeout', '{LOCK_TIMEOUT_S}s', false) WHERE current_setting('lock_timeout') = '0'"
    )
    cursor.close()
    connection.commit()


def engine_of(url: str | URL, connections: int | None = None) -> Engine | AsyncEngine:
    """Create an Engine from a URL, or an AsyncEngine if its driver is async. ReliableError for an invalid URL.

    It has at most `connections`, whose waits for locks end after `LOCK_TIMEOUT_S`; by default as many as SQLAlchemy's,
    with the database's own limit. Unless the URL has an `init_command`, MariaDB ends transactions that wait for the
    client longer than `IDLE_TIMEOUT_S`.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # of a port; both may quote a password
        scheme, separator, _ = str(url).partition("://")
        shown = f"{scheme}://***" if separator else "***"
        raise ReliableError(f"database {shown}: this is no URL with a port that is a number; {FORMS}") from None
    try:
        options: dict[str, Any] = {} if connections is None else {"pool_size": connections, "max_overflow": 0}
        if parsed.get_backend_name() in ("mysql", "mariadb") and "init_command" not in parsed.query:
            # MySQL has no such setting, and ignores MariaDB's comments.
            limit = f"SET @rucola = 1 /*M!100300 , SESSION idle_transaction_timeout = {IDLE_TIMEOUT_S} */"
            if connections is not None:
                limit += "".join(f", SESSION {name} = {LOCK_TIMEOUT_S}" for name in _MARIADB_LOCK_TIMEOUTS)
            options["connect_args"] = {"init_command": limit}
        engine = (
            create_async_engine(parsed, **options)
            if parsed.get_dialect().is_async
            else create_engine(parsed, **options)
        )
        if connections is not None and parsed.get_backend_name() == "postgresql":
            event.listen(engine.sync_engine if isinstance(engine, AsyncEngine) else engine, "connect", _limit_locks)
        return engine
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise ReliableError(f"database {shown_url(parsed)}: {error}; {FORMS}") from None
