"""Creation and upgrade of the tables by Alembic's operations, and the schema check at every start.

A program of version 1.x works on a schema of version 1.y if y >= x: minor versions only add, see `migrations/versions`.
Upgrade the schema first, then the programs one by one.

`init` and `migrate` work in the caller's transaction, and may run in a migration of the application's own Alembic: they
use none of Alembic's global state. The version table is Alembic's.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, delete, inspect, select

from rucola.reliable.errors import ReliableError, SchemaError
from rucola.reliable.migrations.versions import UPGRADES
from rucola.reliable.schema import Tables

VERSION: Final = list(UPGRADES)[-1]

DATABASES: Final = {
    "sqlite": (3, 35),  # INSERT ... RETURNING
    "postgresql": (12,),
    "mariadb": (10, 6),  # SKIP LOCKED, JSON_TABLE
    "mysql": (10, 6),
}


def version_of(connection: Connection, tables: Tables) -> str | None:
    """Return the version of the tables in this database, or None."""
    if not inspect(connection).has_table(tables.version_table, schema=tables.schema):
        return None
    version: str | None = connection.scalar(select(_version_table(tables).c.version_num))
    return version


def _version_table(tables: Tables) -> Table:
    key = PrimaryKeyConstraint("version_num", name=f"{tables.version_table}_pkc")
    return Table(tables.version_table, MetaData(schema=tables.schema), Column("version_num", String(32)), key)


def check(connection: Connection, tables: Tables) -> None:
    """Raise SchemaError, naming the command to run, unless this program can use the tables. Needs no Alembic."""
    _check_server(connection)
    found = version_of(connection, tables)
    where = f"{connection.engine.url.render_as_string()}, tables {tables.prefix}*"
    if found is None:
        raise SchemaError(f"{where}: there are no reliability tables; create them with `rucola reliable init`")
    if _parts(found)[0] > _parts(VERSION)[0]:
        raise SchemaError(f"{where}: version {found} is newer than this program's {VERSION}; upgrade rucola")
    if _parts(found) < _parts(VERSION):
        raise SchemaError(
            f"{where}: version {found} is older than this program's {VERSION}; run `rucola reliable migrate`"
        )


def init(connection: Connection, tables: Tables) -> None:
    """Create the tables. SchemaError if they exist."""
    found = version_of(connection, tables)
    if found is not None:
        raise SchemaError(
            f"tables {tables.prefix}* are there already, version {found}; `rucola reliable migrate` upgrades them"
        )
    migrate(connection, tables)


def migrate(connection: Connection, tables: Tables) -> tuple[str | None, str]:
    """Upgrade older tables; return the versions before and after. Tables of a newer minor version are unchanged."""
    # Imported here, so that relays and consumers do not load Alembic.
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    _check_server(connection)
    before = version_of(connection, tables)
    if before is not None and _parts(before)[0] > _parts(VERSION)[0]:
        raise SchemaError(f"version {before} is newer than this program's {VERSION}; upgrade rucola")
    if before is not None and _parts(before) > _parts(VERSION):
        return before, before
    operations = Operations(MigrationContext.configure(connection))
    table = _version_table(tables)
    table.create(connection, checkfirst=True)
    for version, upgrade in UPGRADES.items():
        if before is None or _parts(version) > _parts(before):
            upgrade(operations, tables)
            # After each version, since MariaDB commits every change of a table.
            connection.execute(delete(table))
            connection.execute(table.insert().values(version_num=version))
    return before, VERSION


def _parts(version: str) -> tuple[int, int]:
    major, minor = map(int, version.split("."))
    return major, minor


def _check_server(connection: Connection) -> None:
    dialect = connection.dialect
    least = DATABASES.get(dialect.name)
    if least is None or (dialect.name == "mysql" and not getattr(dialect, "is_mariadb", False)):
        raise ReliableError(f"{dialect.name} is not supported: use SQLite, PostgreSQL or MariaDB")
    version = dialect.server_version_info or ()
    if version < least:
        shown, wanted = ".".join(map(str, version)), ".".join(map(str, least))
        raise ReliableError(f"{dialect.name} {shown} is too old: version {wanted} or newer is needed")
