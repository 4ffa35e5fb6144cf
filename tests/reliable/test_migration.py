"""The tables: created and upgraded by migrations, checked at every start, alike on every database."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, MetaData, String, Table, insert, inspect, select, update

from rucola.reliable import migration
from rucola.reliable.errors import ReliableError, SchemaError
from rucola.reliable.migration import VERSION
from rucola.reliable.schema import LANES, Tables, now_ms
from support.databases import OutboxDatabase
from support.errors import raises

ENVIRONMENT = """
from alembic import context
from sqlalchemy import create_engine
with create_engine({url!r}).connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""
REVISION = """
from alembic import op
from sqlalchemy import Column, Integer
from rucola.reliable import Tables, migration
revision, down_revision = "a", None

def upgrade():
    op.create_table("before", Column("id", Integer))
    migration.migrate(op.get_bind(), Tables("nested_"))
    op.create_table("after", Column("id", Integer))
"""


def set_version(db: OutboxDatabase, version: str) -> None:
    table = Table(db.tables.version_table, MetaData(), Column("version_num", String(32)))
    with db.engine().begin() as connection:
        connection.execute(update(table).values(version_num=version))


def test_migrations_create_the_tables_that_the_program_uses(db: OutboxDatabase) -> None:
    with db.engine().connect() as connection:
        own = {table.name for table in db.tables.metadata.tables.values()}
        context = MigrationContext.configure(
            connection, opts={"include_object": lambda item, name, kind, *_: kind != "table" or name in own}
        )
        assert compare_metadata(context, db.tables.metadata) == []
        assert connection.scalars(select(db.tables.lane.c.lane)).all() == list(range(LANES))
        for table in db.tables.metadata.tables.values():  # compare_metadata knows nothing of conditions
            found = {index["name"] for index in inspect(connection).get_indexes(table.name)}
            assert found == {index.name for index in table.indexes}
        migration.check(connection, db.tables)


def test_migrate_within_a_migration_of_the_application(sqlite_db: OutboxDatabase, tmp_path: Path) -> None:
    """The application's own Alembic goes on afterwards."""
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENVIRONMENT.format(url=sqlite_db.url))
    (tmp_path / "versions" / "a.py").write_text(REVISION)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    command.upgrade(config, "head")
    with sqlite_db.engine().connect() as connection:
        assert {"before", "after"} <= set(inspect(connection).get_table_names())
        migration.check(connection, Tables("nested_"))


def test_missing_tables_are_named_with_the_command_that_creates_them(empty_db: OutboxDatabase) -> None:
    expected = rf"{empty_db.tables.prefix}\*.*rucola reliable init"
    with empty_db.engine().connect() as connection, pytest.raises(SchemaError, match=expected):
        migration.check(connection, empty_db.tables)


def test_init_refuses_tables_that_exist_and_migrate_leaves_them(db: OutboxDatabase) -> None:
    with db.engine().begin() as connection:
        connection.execute(insert(db.tables.relay).values(owner="kept", seen_until=1))
        with pytest.raises(SchemaError):
            migration.init(connection, db.tables)
        assert migration.migrate(connection, db.tables) == (VERSION, VERSION)
        assert connection.scalar(select(db.tables.relay.c.owner)) == "kept"


def test_older_schema_names_migrate_and_newer_major_names_the_upgrade(sqlite_db: OutboxDatabase) -> None:
    set_version(sqlite_db, "0.9")
    with sqlite_db.engine().connect() as connection, pytest.raises(SchemaError):
        migration.check(connection, sqlite_db.tables)
    set_version(sqlite_db, "2.0")
    with sqlite_db.engine().connect() as connection:
        with pytest.raises(SchemaError):
            migration.check(connection, sqlite_db.tables)
        with pytest.raises(SchemaError):
            migration.migrate(connection, sqlite_db.tables)


def test_newer_minor_schema_serves_an_older_program(sqlite_db: OutboxDatabase) -> None:
    """During an upgrade both versions of the program run."""
    set_version(sqlite_db, "1.7")
    with sqlite_db.engine().connect() as connection:
        migration.check(connection, sqlite_db.tables)


def test_two_prefixes_have_separate_tables(db: OutboxDatabase) -> None:
    other = Tables(f"{db.tables.prefix}b_")
    with db.engine().begin() as connection:
        migration.init(connection, other)
        connection.execute(insert(other.relay).values(owner="x", seen_until=1))
        assert connection.scalar(select(db.tables.relay.c.owner)) is None


def test_tables_can_be_in_a_schema_of_postgresql(postgresql_db: OutboxDatabase) -> None:
    tables = Tables("s_", schema=f"{postgresql_db.tables.prefix}own")
    with postgresql_db.engine().begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {tables.schema}")
        migration.init(connection, tables)
        migration.check(connection, tables)
        assert inspect(connection).has_table("s_stub", schema=tables.schema)


@pytest.mark.parametrize("prefix", ["", "1a", "a b", "Rucola_", "x" * 32, "a;drop"])
def test_prefix_must_be_an_identifier(prefix: str) -> None:
    with raises(ReliableError, subject="prefix"):
        Tables(prefix)


def test_now_ms_is_the_databases_clock(db: OutboxDatabase) -> None:
    with db.engine().connect() as connection:
        before = int(time.time() * 1000)
        at = connection.scalar(select(now_ms()))
        assert before - 5 <= at <= time.time() * 1000 + 5
