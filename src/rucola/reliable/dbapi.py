"""DB-API connections of applications: sqlite3, psycopg, PyMySQL and mysqlclient, directly or below Django.

`DriverConnection` runs statements in the application's transaction; it never commits or rolls back. A
`django.db.connection` is recognized by the name of its module, so Django need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy import ClauseElement, Dialect
from sqlalchemy.dialects.mysql.mysqldb import MySQLDialect_mysqldb
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import PoolProxiedConnection

from rucola.reliable.errors import ReliableError

_PSYCOPG_IDLE: Final = 0
_MYSQL_IN_TRANSACTION: Final = 1


class DBAPIConnection(Protocol):
    """The part of a DB-API connection that is used; a `django.db.connection` has it, too."""

    def cursor(self) -> Any: ...


class _Driver(NamedTuple):
    """SQL dialect of a driver, and a test whether the next statement would be committed at once."""

    dialect: Dialect
    is_autocommit: Callable[[Any], bool]


def _is_autocommit_sqlite(connection: Any) -> bool:
    # Before Python 3.12 there is no attribute `autocommit`: only `isolation_level=None` selects this mode.
    is_off = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    return is_off and not connection.in_transaction


def _is_autocommit_psycopg(connection: Any) -> bool:
    return bool(connection.autocommit) and connection.info.transaction_status == _PSYCOPG_IDLE


def _is_autocommit_pymysql(connection: Any) -> bool:
    return bool(connection.get_autocommit()) and not connection.server_status & _MYSQL_IN_TRANSACTION


def _is_autocommit_mysqlclient(connection: Any) -> bool:
    return bool(connection.get_autocommit())  # it does not say whether BEGIN was executed


_make_psycopg_dialect: Callable[..., Dialect] = PGDialect_psycopg  # its constructor has no annotations

_DRIVERS: Final = {
    "sqlite3": _Driver(SQLiteDialect_pysqlite(paramstyle="qmark"), _is_autocommit_sqlite),
    "psycopg": _Driver(_make_psycopg_dialect(paramstyle="pyformat"), _is_autocommit_psycopg),
    "pymysql": _Driver(MySQLDialect_pymysql(paramstyle="pyformat"), _is_autocommit_pymysql),
    "MySQLdb": _Driver(MySQLDialect_mysqldb(paramstyle="pyformat"), _is_autocommit_mysqlclient),
}
SUPPORTED: Final = (
    "a Session, AsyncSession or Connection of SQLAlchemy, a connection of sqlite3, psycopg, PyMySQL or "
    "mysqlclient, or Django's connection over one of these"
)


class DriverResult(NamedTuple):
    """The part of SQLAlchemy's Result that this package uses."""

    rows: list[Any]
    rowcount: int

    def one(self) -> Any:
        (row,) = self.rows
        return row


class DriverConnection:
    """Transaction on a DB-API connection, with the part of SQLAlchemy's Connection that this package uses.

    ReliableError for other drivers, and in autocommit mode: a message would be committed without the application's
    changes.
    """

    def __init__(self, connection: DBAPIConnection) -> None:
        if isinstance(connection, PoolProxiedConnection):  # of engine.raw_connection()
            connection = connection.dbapi_connection or connection
        self._connection: Any = connection
        self._django: Any = None
        if type(connection).__module__.startswith("django."):
            self._django = connection
            self._django.ensure_connection()
            self._connection = self._django.connection
        name = next((name for kind in type(self._connection).__mro__ if (name := _package(kind)) in _DRIVERS), None)
        if name is None or not hasattr(connection, "cursor") or "Async" in type(connection).__name__:
            kind = type(self._connection)
            raise ReliableError(f"{kind.__module__}.{kind.__qualname__} is not supported: use {SUPPORTED}")
        self.dialect, is_autocommit = _DRIVERS[name]
        if is_autocommit(self._connection):
            raise ReliableError(
                "the connection is in autocommit mode and outside a transaction, so the message would be committed "
                "without your changes: begin a transaction first (in Django, use transaction.atomic())"
            )

    def execute(self, statement: ClauseElement) -> DriverResult:
        """Execute a statement; IntegrityError of SQLAlchemy for the driver's, other errors are the driver's own."""
        compiled = statement.compile(dialect=self.dialect)
        # A statement with positional parameters has their names in order.
        names: list[str] | None = getattr(compiled, "positiontup", None)
        parameters: Any = compiled.params if names is None else [compiled.params[name] for name in names]
        cursor = self._connection.cursor()
        try:
            cursor.execute(str(compiled), parameters)
            return DriverResult(list(cursor.fetchall()) if cursor.description else [], cursor.rowcount)
        except Exception as error:
            if any(kind.__name__ == "IntegrityError" for kind in type(error).__mro__):
                raise IntegrityError(str(compiled), None, error) from error
            raise
        finally:
            cursor.close()

    def scalar(self, statement: ClauseElement) -> Any:
        rows = self.execute(statement).rows
        return rows[0][0] if rows else None

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call back after the commit, if this is Django's connection; drivers do not announce commits."""
        if self._django is not None:
            self._django.on_commit(callback)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]
