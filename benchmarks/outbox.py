"""Databases of the `reliable` benchmarks: servers, tables with stubs, and counts of statements."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.orm import Session

from rucola.client import Message
from rucola.reliable import Outbox, Tables, migration

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from support.databases import server_user, serving, start_mariadb, start_postgresql

GROUP: Final = "billing"
BODY: Final = b"x" * 1024
KEYS: Final = 1000
"""Sharding keys among which the messages are distributed in turn."""

# Commits are durable, unlike those of the tests. pg_stat_statements counts what each connection executes.
_POSTGRESQL: Final = {
    "fsync": "on",
    "full_page_writes": "on",
    "shared_preload_libraries": "pg_stat_statements",
    "autovacuum_naptime": "10s",
}
# Unlike PostgreSQL, MariaDB does not use the system's page cache: its own has to hold the tables.
_MARIADB: Final = {"innodb-buffer-pool-size": "1G"}
_IS_BEGIN_OR_COMMIT: Final = "query ~* '^(BEGIN|COMMIT|ROLLBACK)'"


class BenchmarkDatabase:
    """A database with empty tables of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.tables = Tables()
        self.engine: Engine = create_engine(url)
        with self.engine.begin() as connection:
            migration.init(connection, self.tables)

    def clear(self) -> None:
        """Delete all stubs, receipts and done rows."""
        with self.engine.begin() as connection:
            for table in (self.tables.stub, self.tables.receipt, self.tables.done):
                connection.execute(text(f"TRUNCATE TABLE {table.name}"))

    def scalar(self, query: str, **parameters: Any) -> Any:
        with self.engine.connect() as connection:
            return connection.scalar(text(query), parameters)

    def close(self) -> None:
        self.engine.dispose()


@contextmanager
def postgresql() -> Iterator[BenchmarkDatabase]:
    """A PostgreSQL with durable commits, and statistics of its statements."""
    with serving("postgresql", server_user("postgres"), partial(start_postgresql, settings=_POSTGRESQL)) as server:
        database = BenchmarkDatabase(server.url)
        with database.engine.begin() as connection:
            connection.execute(text("CREATE EXTENSION pg_stat_statements"))
        try:
            yield database
        finally:
            database.close()


@contextmanager
def mariadb() -> Iterator[BenchmarkDatabase]:
    """A MariaDB whose buffer pool holds the tables."""
    with serving("mariadb", server_user("mysql"), partial(start_mariadb, settings=_MARIADB)) as server:
        database = BenchmarkDatabase(server.url)
        try:
            yield database
        finally:
            database.close()


def messages(topic: str, count: int) -> Iterator[tuple[str, Message]]:
    """Yield messages of 1 KB with their sharding keys."""
    for number in range(count):
        yield f"customer-{number % KEYS}", Message(topic, BODY, tags="TagA")


def add(connection: Connection, database: BenchmarkDatabase, some: Sequence[tuple[str, Message]]) -> None:
    """Add messages to a transaction, through an outbox."""
    outbox = Outbox([GROUP], tables=database.tables)
    with Session(connection) as session:
        for key, message in some:
            outbox.add(session, message, shard_key=key)
        session.flush()
        session.commit()


def forget_statements(connection: Connection) -> None:
    """Reset PostgreSQL's statistics of statements."""
    connection.execute(text("SELECT pg_stat_statements_reset()"))


def statement_counts(database: BenchmarkDatabase) -> tuple[int, int]:
    """Return the statements that PostgreSQL has executed since the reset, and their number without BEGIN and COMMIT.

    Each is a round trip: SQLAlchemy and psycopg send one at a time.
    """
    query = f"SELECT sum(calls), sum(calls) FILTER (WHERE NOT {_IS_BEGIN_OR_COMMIT}) FROM pg_stat_statements"
    with database.engine.connect() as connection:
        every, own = connection.execute(text(query + " WHERE query NOT LIKE '%pg_stat_statements%'")).one()
    return int(every or 0), int(own or 0)
