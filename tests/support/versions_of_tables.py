"""Tables of earlier versions, and what a database knows of tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.engine.interfaces import ReflectedIndex

from rucola.reliable.schema import Tables


def set_version(connection: Connection, tables: Tables, version: str) -> None:
    connection.execute(text(f"UPDATE {tables.version_table} SET version_num = '{version}'"))


def where_of(index: ReflectedIndex) -> list[str]:
    return [str(where) for name, where in index.get("dialect_options", {}).items() if name.endswith("_where")]


def described(connection: Connection, tables: Tables) -> dict[str, Any]:
    """What a database knows of the tables, by name without their prefix."""
    inspector = inspect(connection)
    found: dict[str, Any] = {}
    for table in tables.metadata.tables.values():
        columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns(table.name)}
        found[table.name.removeprefix(tables.prefix)] = (
            columns,
            {
                str(index["name"]).removeprefix(tables.prefix): (
                    index["column_names"],
                    index["unique"],
                    where_of(index),
                )
                for index in inspector.get_indexes(table.name)
            },
        )
    return found


def make_version_1_0(connection: Connection, tables: Tables) -> None:
    """Take from new tables what later versions added."""
    stub = tables.stub
    tables.ledger.drop(connection)
    connection.execute(text(f"ALTER TABLE {stub.name} DROP COLUMN reopened_at"))
    if connection.dialect.name != "mysql":
        connection.execute(text(f"DROP INDEX {stub.name}_order"))
        where = "shard_key IS NOT NULL AND status IN ('NEW', 'MANUAL')"
        of_keys = f"{stub.name} (shard_key, status, seq) WHERE {where}"
        connection.execute(text(f"CREATE INDEX {stub.name}_order ON {of_keys}"))
    set_version(connection, tables, "1.0")
