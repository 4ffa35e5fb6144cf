"""Databases for tests, as a plugin of pytest: servers started once a run, tables of its own for every test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from rucola.reliable import migration
from rucola.reliable.schema import Tables
from support.databases import (
    DatabaseServer,
    OutboxDatabase,
    server_user,
    serving,
    start_mariadb,
    start_postgresql,
    start_redis,
)

T = TypeVar("T")
_numbers = itertools.count(1)


@contextmanager
def _server(name: str, user: str, start: Callable[[Path, int, str | None], DatabaseServer]) -> Iterator[DatabaseServer]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(serving(name, server_user(user), start))
        except (RuntimeError, KeyError) as error:
            pytest.fail(str(error))
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[DatabaseServer]:
    with _server("postgresql", "postgres", start_postgresql) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[DatabaseServer]:
    with _server("mariadb", "mysql", start_mariadb) as server:
        yield server


@pytest.fixture
def redis_server() -> Iterator[DatabaseServer]:
    """A Redis of this test's own, which it may kill, pause and flush."""
    with _server("redis", "redis", start_redis) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def empty_db(request: pytest.FixtureRequest, tmp_path: Path) -> OutboxDatabase:
    """A database without tables of this prefix."""
    return make_db(request, request.param, tmp_path)


@pytest.fixture
def db(empty_db: OutboxDatabase) -> OutboxDatabase:
    """A database with empty tables."""
    return initialized(empty_db)


@pytest.fixture
def sqlite_db(tmp_path: Path, request: pytest.FixtureRequest) -> OutboxDatabase:
    return initialized(make_db(request, "sqlite", tmp_path))


@pytest.fixture
def postgresql_db(tmp_path: Path, request: pytest.FixtureRequest) -> OutboxDatabase:
    return initialized(make_db(request, "postgresql", tmp_path))


def make_db(request: pytest.FixtureRequest, kind: str, directory: Path) -> OutboxDatabase:
    tables = Tables(f"t{next(_numbers)}_")
    if kind == "sqlite":
        db = OutboxDatabase(f"sqlite:///{directory / 'business.db'}", tables)
    else:
        server: DatabaseServer = request.getfixturevalue(kind)
        db = OutboxDatabase(server.url, tables, server)
    request.addfinalizer(db.close)
    return db


def initialized(db: OutboxDatabase) -> OutboxDatabase:
    with db.engine().begin() as connection:
        migration.init(connection, db.tables)
    return db


@pytest.fixture
def make_sqlite(tmp_path: Path) -> Callable[[str], OutboxDatabase]:
    """Makes a database file of this name, without tables."""
    return lambda name: OutboxDatabase(f"sqlite:///{tmp_path / name}", Tables())


@pytest.fixture
def new_db(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str, str], OutboxDatabase]:
    """Makes a database of a kind with empty tables of its own; SQLite's in a file of this name."""

    def make(kind: str, name: str) -> OutboxDatabase:
        db = make_db(request, kind, tmp_path)
        if kind == "sqlite":
            db.url = f"sqlite:///{tmp_path / name}"
        return initialized(db)

    return make
