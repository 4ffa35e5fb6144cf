"""Creation and upgrade of the tables, and the schema check at every start.

A program of version 1.x works on a schema of version 1.y if y >= x: a minor version only adds what older programs can
ignore (a table, an index, a column that may be NULL or has a default). Upgrade the schema first, then the programs one
by one.

`init` and `migrate` work in the caller's transaction, for example in a migration of the application. `statements` are
for DBAs and `rucola.reliable.django`; `leaves_out` keeps Alembic's autogenerate away from the tables.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import Column, Connection, MetaData, String, Table, create_mock_engine, delete, inspect, text

from rucola.reliable.database import shown_url
from rucola.reliable.errors import ReliableError, SchemaError
from rucola.reliable.schema import LANES, Tables

DATABASES: Final = {
    "sqlite": (3, 35),  # INSERT ... RETURNING
    "postgresql": (12,),
    "mariadb": (10, 6),  # SKIP LOCKED, JSON_TABLE
    "mysql": (8, 0, 16),  # as MariaDB; untested
}


def version_of(connection: Connection, tables: Tables) -> str | None:
    """Return the version of the tables in this database, or None."""
    if not inspect(connection).has_table(tables.version_table, schema=tables.schema):
        return None
    version: str | None = connection.scalar(_version_table(tables).select())
    return version


def _version_table(tables: Tables) -> Table:
    version = Column("version_num", String(32), primary_key=True)
    return Table(tables.version_table, MetaData(schema=tables.schema), version)


def check(connection: Connection, tables: Tables) -> None:
    """Raise SchemaError, naming the command to run, unless this program can use the tables."""
    _check_server(connection)
    found = version_of(connection, tables)
    where = f"{shown_url(connection.engine.url)}, tables {tables.prefix}*"
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
    """Create missing or upgrade older tables; return the versions before and after.

    Tables of a newer minor version are unchanged.
    """
    _check_server(connection)
    before = version_of(connection, tables)
    _upgrade(connection, tables, before)
    return before, VERSION if before is None else max(before, VERSION, key=_parts)


def drop(connection: Connection, tables: Tables) -> None:
    """Drop the tables with all that they hold, as in the downgrade of an application's migration."""
    tables.metadata.drop_all(connection)
    _version_table(tables).drop(connection, checkfirst=True)
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"DROP FUNCTION IF EXISTS {_announce_function(connection, tables)}()"))


def statements(database: str, tables: Tables, before: str | None = None) -> list[str]:
    """Return the SQL that creates the tables in a database, such as "postgresql", without a connection.

    With `before`, the SQL that upgrades tables of that version. For one database: another needs statements of its own,
    since each has an id. ReliableError for an unknown database, SchemaError for tables of a newer major version.
    """
    return _recorded(database, lambda connection: _upgrade(connection, tables, before))


def drop_statements(database: str, tables: Tables) -> list[str]:
    """Return the SQL of `drop`, without a connection."""
    return _recorded(database, lambda connection: drop(connection, tables))


def _recorded(database: str, work: Callable[[Any], None]) -> list[str]:
    if database not in DATABASES:
        raise ReliableError(f"{database} is not supported: use one of {', '.join(DATABASES)}")
    found: list[str] = []

    def add(statement: Any, rows: Any = None, *_: object) -> None:
        values = [statement.values(row) for row in rows] if rows else [statement]
        literal = {"literal_binds": True}
        texts = [str(each.compile(dialect=connection.dialect, compile_kwargs=literal)).strip() for each in values]
        found.extend(texts)

    connection: Any = create_mock_engine(f"{database}://", add)
    work(connection)
    return found


def leaves_out(tables: Tables) -> Callable[[str | None, str, Mapping[str, str | None]], bool]:
    """Return Alembic's `include_name` for an application whose database also has these tables.

        context.configure(..., include_name=migration.leaves_out(Tables()))

    Without it, autogenerate proposes to drop them, since the application's models do not have them.
    """
    names = {tables.version_table, *(table.name for table in tables.metadata.tables.values())}

    def include_name(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
        return kind != "table" or name not in names or parents.get("schema_name") != tables.schema

    return include_name


def _upgrade(connection: Connection, tables: Tables, before: str | None) -> None:
    if before is None:
        _create(connection, tables)
        _set_version(connection, tables, VERSION)
        return
    if _parts(before)[0] > _parts(VERSION)[0]:
        raise SchemaError(f"version {before} is newer than this program's {VERSION}; upgrade rucola")
    for version, upgrade in UPGRADES.items():
        if _parts(version) > _parts(before):
            upgrade(connection, tables)
            _set_version(connection, tables, version)  # after each, since MariaDB commits every change of a table


def _create(connection: Connection, tables: Tables) -> None:
    # Rows come last: MariaDB commits every change of a table, so an interrupted creation can be repeated.
    tables.metadata.create_all(connection)
    _version_table(tables).create(connection, checkfirst=True)
    if connection.dialect.name == "postgresql":
        _announce_new_stubs(connection, tables)
    connection.execute(tables.lane.insert(), [{"lane": number} for number in range(LANES)])
    _add_database_id(connection, tables)


def _announce_new_stubs(connection: Connection, tables: Tables) -> None:
    """One NOTIFY per transaction that adds stubs, from any program. Pages have room for updates."""
    quote = connection.dialect.identifier_preparer
    stub, name = quote.format_table(tables.stub), quote.quote(f"{tables.prefix}announce")
    function = _announce_function(connection, tables)
    for statement in (
        f"ALTER TABLE {stub} SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)",
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_notify('{tables.channel}', ''); RETURN NULL; END $$",
        f"CREATE TRIGGER {name} AFTER INSERT ON {stub} FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
    ):
        connection.execute(text(statement))


def _announce_function(connection: Connection, tables: Tables) -> str:
    quote = connection.dialect.identifier_preparer.quote
    name = quote(f"{tables.prefix}announce")
    return f"{quote(tables.schema)}.{name}" if tables.schema else name


def _add_database_id(connection: Connection, tables: Tables) -> None:
    connection.execute(tables.ledger.insert().values(consumer_group="", database_id=secrets.token_hex(16)))


def _set_version(connection: Connection, tables: Tables, version: str) -> None:
    table = _version_table(tables)
    connection.execute(delete(table))
    connection.execute(table.insert().values(version_num=version))


def _upgrade_to_1_1(connection: Connection, tables: Tables) -> None:
    """Add the time an operator reopened a stub, from which its ages count."""
    stub = connection.dialect.identifier_preparer.format_table(tables.stub)
    connection.execute(text(f"ALTER TABLE {stub} ADD COLUMN reopened_at BIGINT"))


def _upgrade_to_1_2(connection: Connection, tables: Tables) -> None:
    """Add the ledger of each group that keeps its stubs in another database, and index all unsettled keys."""
    tables.ledger.create(connection)
    _add_database_id(connection, tables)
    if connection.dialect.name not in ("mysql", "mariadb"):  # the index has no condition there
        (order,) = (index for index in tables.stub.indexes if str(index.name).endswith("_order"))
        order.drop(connection)
        order.create(connection)


UPGRADES: Final[dict[str, Callable[[Connection, Tables], None]]] = {
    "1.1": _upgrade_to_1_1,
    "1.2": _upgrade_to_1_2,
}
VERSION: Final = list(UPGRADES)[-1]


def _parts(version: str) -> tuple[int, int]:
    major, minor = map(int, version.split("."))
    return major, minor


def _check_server(connection: Connection) -> None:
    dialect = connection.dialect
    name = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
    check_server(name, dialect.server_version_info or ())


def check_server(name: str, version: tuple[Any, ...]) -> None:
    """Raise ReliableError unless this version of a database is supported."""
    least = DATABASES.get(name)
    if least is None:
        raise ReliableError(f"{name} is not supported: use SQLite, PostgreSQL, MariaDB or MySQL 8")
    if version < least:
        shown, wanted = ".".join(map(str, version)), ".".join(map(str, least))
        raise ReliableError(f"{name} {shown} is too old: version {wanted} or newer is needed")
