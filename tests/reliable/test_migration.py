"""The tables: created and upgraded by migrations, checked at every start, alike on every database."""

from __future__ import annotations

import time

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, MetaData, String, Table, insert, inspect, select, update

from rucola.reliable import migration
from rucola.reliable.errors import ReliableError, SchemaError
from rucola.reliable.migration import VERSION
from rucola.reliable.schema import LANES, Tables, now_ms
from support.databases import Place


def set_version(place: Place, version: str) -> None:
    table = Table(place.tables.version_table, MetaData(), Column("version_num", String(32)))
    with place.engine().begin() as connection:
        connection.execute(update(table).values(version_num=version))


def test_migrations_create_the_tables_that_the_program_uses(place: Place) -> None:
    with place.engine().connect() as connection:
        own = {table.name for table in place.tables.metadata.tables.values()}
        context = MigrationContext.configure(
            connection, opts={"include_object": lambda item, name, kind, *_: kind != "table" or name in own}
        )
        assert compare_metadata(context, place.tables.metadata) == []
        assert connection.scalars(select(place.tables.lane.c.lane)).all() == list(range(LANES))
        for table in place.tables.metadata.tables.values():  # compare_metadata knows nothing of conditions
            found = {index["name"] for index in inspect(connection).get_indexes(table.name)}
            assert found == {index.name for index in table.indexes}
        migration.check(connection, place.tables)


def test_newest_migration_is_the_version_that_is_checked(sqlite_place: Place) -> None:
    with sqlite_place.engine().connect() as connection:
        config = migration.alembic_config(connection, sqlite_place.tables)
        assert ScriptDirectory.from_config(config).get_heads() == [VERSION]


def test_missing_tables_are_named_with_the_command_that_creates_them(empty_place: Place) -> None:
    expected = rf"{empty_place.tables.prefix}\*.*rucola reliable init"
    with empty_place.engine().connect() as connection, pytest.raises(SchemaError, match=expected):
        migration.check(connection, empty_place.tables)


def test_init_refuses_tables_that_exist_and_migrate_leaves_them(place: Place) -> None:
    with place.engine().begin() as connection:
        connection.execute(insert(place.tables.relay).values(owner="kept", seen_until=1))
        with pytest.raises(SchemaError, match="migrate"):
            migration.init(connection, place.tables)
        assert migration.migrate(connection, place.tables) == (VERSION, VERSION)
        assert connection.scalar(select(place.tables.relay.c.owner)) == "kept"


def test_older_schema_names_migrate_and_newer_major_names_the_upgrade(sqlite_place: Place) -> None:
    set_version(sqlite_place, "0.9")
    with sqlite_place.engine().connect() as connection, pytest.raises(SchemaError, match="rucola reliable migrate"):
        migration.check(connection, sqlite_place.tables)
    set_version(sqlite_place, "2.0")
    with sqlite_place.engine().connect() as connection:
        with pytest.raises(SchemaError, match="upgrade rucola"):
            migration.check(connection, sqlite_place.tables)
        with pytest.raises(SchemaError, match="upgrade rucola"):
            migration.migrate(connection, sqlite_place.tables)


def test_newer_minor_schema_serves_an_older_program(sqlite_place: Place) -> None:
    """During an upgrade both versions of the program run."""
    set_version(sqlite_place, "1.7")
    with sqlite_place.engine().connect() as connection:
        migration.check(connection, sqlite_place.tables)


def test_two_prefixes_have_separate_tables(place: Place) -> None:
    other = Tables(f"{place.tables.prefix}b_")
    with place.engine().begin() as connection:
        migration.init(connection, other)
        connection.execute(insert(other.relay).values(owner="x", seen_until=1))
        assert connection.scalar(select(place.tables.relay.c.owner)) is None


def test_tables_can_be_in_a_schema_of_postgresql(postgresql_place: Place) -> None:
    tables = Tables("s_", schema=f"{postgresql_place.tables.prefix}own")
    with postgresql_place.engine().begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {tables.schema}")
        migration.init(connection, tables)
        migration.check(connection, tables)
        assert inspect(connection).has_table("s_stub", schema=tables.schema)


@pytest.mark.parametrize("prefix", ["", "1a", "a b", "Rucola_", "x" * 32, "a;drop"])
def test_prefix_must_be_an_identifier(prefix: str) -> None:
    with pytest.raises(ReliableError, match="prefix"):
        Tables(prefix)


def test_now_ms_is_the_databases_clock(place: Place) -> None:
    with place.engine().connect() as connection:
        before = int(time.time() * 1000)
        at = connection.scalar(select(now_ms()))
        assert before - 5 <= at <= time.time() * 1000 + 5
