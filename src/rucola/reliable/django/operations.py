"""The operation of the migrations: creates the tables, or upgrades older ones, like `rucola reliable migrate`."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from django.db import router, transaction
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState

from rucola.reliable import migration
from rucola.reliable.django.models import TABLES, Done, Receipt, Stub
from rucola.reliable.errors import SchemaError


class MigrateTables(Operation):  # type: ignore[misc]  # Django has no types
    """Brings the tables to the version of the installed Rucola; `version` is the one that this migration came with.

    Tables that are there, from `rucola reliable init`, are upgraded. SchemaError if they are incomplete.
    """

    reversible = True

    def __init__(self, version: str) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        for model in (Stub, Receipt, Done):
            state.add_model(ModelState.from_model(model))

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if router.allow_migrate(connection.alias, app_label):
            database = _database(connection)
            migration.check_server(database, connection.get_database_version())
            _execute(schema_editor, migration.statements(database, TABLES, _version(connection)))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop the tables. A migration that only upgraded them leaves them: older programs accept them."""
        connection = schema_editor.connection
        is_first = (app_label, "stub") not in to_state.models
        if is_first and router.allow_migrate(connection.alias, app_label):
            _execute(schema_editor, migration.drop_statements(_database(connection), TABLES))

    def describe(self) -> str:
        return f"Create the tables of rucola.reliable or upgrade them, version {self.version} or newer"


def _database(connection: Any) -> str:
    return "mariadb" if getattr(connection, "mysql_is_mariadb", False) else str(connection.vendor)


def _execute(schema_editor: Any, statements: list[str]) -> None:
    connection = schema_editor.connection
    for are_rows, some in groupby(statements, lambda statement: statement.startswith(("INSERT ", "DELETE "))):
        if are_rows and not schema_editor.collect_sql:
            # Together, also on MariaDB and MySQL, where migrations run without a transaction.
            with transaction.atomic(connection.alias), connection.cursor() as cursor:
                for statement in some:
                    cursor.execute(statement)
        else:
            for statement in some:
                schema_editor.execute(statement, params=None)


def _version(connection: Any) -> str | None:
    with connection.cursor() as cursor:
        present = {*connection.introspection.table_names(cursor)}
        if TABLES.version_table in present:
            cursor.execute(f"SELECT version_num FROM {TABLES.version_table}")  # noqa: S608 - a name
            if row := cursor.fetchone():
                return str(row[0])
    if partly := sorted(present & {table.name for table in TABLES.metadata.tables.values()}):
        raise SchemaError(
            f"database {connection.alias} has {', '.join(partly)} and no version: their creation was interrupted; "
            "complete it by `rucola reliable init`"
        )
    return None
