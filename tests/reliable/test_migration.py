"""The tables: created and upgraded by migrations, checked at every start, alike on every database."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import func, insert, inspect, select

from rucola.reliable import migration
from rucola.reliable.errors import ReliableError, SchemaError
from rucola.reliable.migration import VERSION
from rucola.reliable.schema import DEAD, LANES, Tables, now_ms
from support.databases import OutboxDatabase
from support.errors import raises
from support.versions_of_tables import described, make_version_1_0, set_version


def test_tables_of_version_1_0_are_upgraded_with_their_rows(db: OutboxDatabase) -> None:
    """A program of version 1.0 names no column that it does not know."""
    tables, new = db.tables, Tables(f"{db.tables.prefix}new_")
    stub = tables.stub
    old = {"message_id": "old", "topic": "T", "properties": "{}", "body": b"", "lane": 0, "status": DEAD}
    old |= {"awaiting": ",billing,", "created_at": 1}
    with db.engine().begin() as connection:
        make_version_1_0(connection, tables)
        connection.execute(insert(stub).values(**old))
    with db.engine().connect() as connection, pytest.raises(SchemaError):
        migration.check(connection, tables)
    with db.engine().begin() as connection:
        assert migration.migrate(connection, tables) == ("1.0", VERSION)
        migration.check(connection, tables)
        migration.init(connection, new)
        assert described(connection, tables) == described(connection, new)
        assert connection.scalars(select(tables.lane.c.lane)).all() == list(range(LANES))
        connection.execute(insert(stub).values(**old | {"message_id": "newer"}))
        assert connection.scalars(select(stub.c.reopened_at)).all() == [None, None]
        assert len(connection.scalars(select(tables.ledger.c.database_id)).all()) == 1


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


def test_newer_minor_schema_serves_an_older_program_and_a_newer_major_none(sqlite_db: OutboxDatabase) -> None:
    """During an upgrade both versions of the program run."""
    with sqlite_db.engine().begin() as connection:
        tables = sqlite_db.tables
        set_version(connection, tables, "1.7")
        migration.check(connection, tables)
        assert migration.migrate(connection, tables) == ("1.7", "1.7")
        set_version(connection, tables, "2.0")
        for work in (migration.check, migration.migrate):
            with pytest.raises(SchemaError):
                work(connection, tables)


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


def test_the_statements_make_the_same_tables_and_drop_leaves_none(empty_db: OutboxDatabase) -> None:
    tables, by_init = empty_db.tables, Tables(f"{empty_db.tables.prefix}init_")
    with empty_db.engine().begin() as connection:
        migration.init(connection, by_init)
        for statement in migration.statements(empty_db.name, tables):
            connection.exec_driver_sql(statement)
        migration.check(connection, tables)
        assert described(connection, tables) == described(connection, by_init)
        assert connection.scalar(select(func.count()).select_from(tables.lane)) == LANES
        other = migration.statements(empty_db.name, tables)
    assert set(other) - set(migration.statements(empty_db.name, tables)), "each database has an id of its own"
    with empty_db.engine().begin() as connection:
        migration.drop(connection, by_init)
        assert [name for name in inspect(connection).get_table_names() if name.startswith(by_init.prefix)] == []
        migration.init(connection, by_init)  # nothing is left that would be in the way, such as a function
        migration.drop(connection, by_init)


def test_statements_for_another_database_are_refused() -> None:
    with raises(ReliableError):
        migration.statements("oracle", Tables())
