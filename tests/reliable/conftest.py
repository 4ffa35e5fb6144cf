"""Databases for the tests of this room: servers started once a run, tables of its own for every test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rucola.reliable import migration
from rucola.reliable.schema import Tables
from support.databases import DatabaseServer, Place, server_user, serving, start_mariadb, start_postgresql, start_redis

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
def empty_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A database without tables of this prefix."""
    return make_place(request, request.param, tmp_path)


@pytest.fixture
def place(empty_place: Place) -> Place:
    """A database with empty tables."""
    return initialized(empty_place)


@pytest.fixture
def sqlite_place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return initialized(make_place(request, "sqlite", tmp_path))


@pytest.fixture
def postgresql_place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return initialized(make_place(request, "postgresql", tmp_path))


def make_place(request: pytest.FixtureRequest, kind: str, directory: Path) -> Place:
    tables = Tables(f"t{next(_numbers)}_")
    if kind == "sqlite":
        place = Place(f"sqlite:///{directory / 'business.db'}", tables)
    else:
        server: DatabaseServer = request.getfixturevalue(kind)
        place = Place(server.url, tables, server)
    request.addfinalizer(place.close)
    return place


def initialized(place: Place) -> Place:
    with place.engine().begin() as connection:
        migration.init(connection, place.tables)
    return place


@pytest.fixture
def run_async() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Runs a coroutine to its end."""
    return asyncio.run


@pytest.fixture
def make_sqlite(tmp_path: Path) -> Callable[[str], Place]:
    """Makes a database file of this name, without tables."""
    return lambda name: Place(f"sqlite:///{tmp_path / name}", Tables())


@pytest.fixture
def new_place(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str, str], Place]:
    """Makes a database of a kind with empty tables of its own; SQLite's in a file of this name."""

    def make(kind: str, name: str) -> Place:
        place = make_place(request, kind, tmp_path)
        if kind == "sqlite":
            place.url = f"sqlite:///{tmp_path / name}"
        return initialized(place)

    return make
