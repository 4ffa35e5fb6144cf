"""Options, database transactions and message selection shared by the commands of `rucola reliable`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

import click

from rucola.cli.extras import require_extra

with require_extra("reliable"):
    from sqlalchemy import Connection, make_url
    from sqlalchemy.exc import ArgumentError

    from rucola.reliable import ReliableError, Tables, migration, operations
    from rucola.reliable.database import Database, named_errors
    from rucola.reliable.operations import StubView
    from rucola.reliable.schema import DEFAULT_PREFIX, STATUSES

P = ParamSpec("P")
T = TypeVar("T")

Command: TypeAlias = Callable[..., Any]

MAX_SELECTED = 10_000

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")


class Where(NamedTuple):
    """The tables of a command."""

    url: str
    prefix: str = DEFAULT_PREFIX
    schema: str | None = None

    def open(self) -> tuple[Tables, Database]:
        """Return the tables and the database, without a connection."""
        try:
            return Tables(self.prefix, self.schema), Database(self.url)
        except ReliableError as error:
            raise click.UsageError(str(error)) from None

    def run(self, work: Callable[[Connection, Tables], T]) -> T:
        """Run `work` in a transaction, without a check of the tables."""
        tables, database = self.open()
        with named_errors(database):
            result: T = database.run_sync(work, tables)
            return result

    def run_checked(
        self, work: Callable[Concatenate[Connection, Tables, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Run `work` in a transaction; ReliableError if the version of the tables does not fit."""
        check_file(self.url)

        def checked(connection: Connection, tables: Tables) -> T:
            migration.check(connection, tables)
            return work(connection, tables, *arguments, **options)

        return self.run(checked)


def check_file(url: str) -> None:
    """Raise ReliableError if the file of an SQLite database is missing: SQLite would create it, empty."""
    with suppress(ArgumentError, ValueError):  # `Where.open` names what is wrong
        parsed = make_url(url)
        name = parsed.database if parsed.get_backend_name() == "sqlite" else None
        if name and not name.startswith((":", "file:")) and not Path(name).exists():
            raise ReliableError(f"{url}: there is no such file; `rucola reliable init` creates a database")


def database_options(function: Command) -> Command:
    """Add the options of a database; the function gets them as `where`."""

    @functools.wraps(function)
    def command(database: str, prefix: str, schema: str | None, **options: Any) -> Any:
        return function(where=Where(database, prefix, schema), **options)

    return _with_options(
        command,
        click.option(
            "-d", "--database", required=True, envvar="RUCOLA_DATABASE", show_envvar=True, help="URL of the database."
        ),
        click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the table names."),
        click.option("--schema", help="Database schema of the tables."),
    )


class _Url(click.types.StringParamType):
    """A URL; in the environment variable each is a line, since a file's name may have blanks."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [line for line in rv.splitlines() if line.strip()]


def tenant_options(function: Command) -> Command:
    """Add the options of a database, for several tenants; the function gets them as `places`, by name."""

    @functools.wraps(function)
    def command(databases: tuple[str, ...], prefix: str, schemas: tuple[str, ...], **options: Any) -> Any:
        places = [Where(url, prefix, schema) for url in databases for schema in schemas or (None,)]
        return function(places=_by_name(places), **options)

    return _with_options(
        command,
        click.option(
            "-d", "--database", "databases", required=True, multiple=True, type=_Url(), envvar="RUCOLA_DATABASE",
            show_envvar=True, help="URL of the database. Repeated, each is a tenant.",
        ),
        click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the table names."),
        click.option(
            "--schema", "schemas", multiple=True, help="Database schema of the tables. Repeated, each is a tenant."
        ),
    )  # fmt: skip


def _by_name(places: Sequence[Where]) -> dict[str, Where]:
    """Return the places by database and schema, or by URL and schema if names repeat."""
    if len(set(places)) < len(places):
        raise click.UsageError("a tenant is given twice: name each --database and --schema once")
    from rucola.reliable.database import shown_url

    urls = [place.open()[1].url for place in places]
    shown = [shown_url(url) for url in urls]
    schemas = [f".{place.schema}" if place.schema else "" for place in places]
    names = [(url.database or text) + schema for url, text, schema in zip(urls, shown, schemas, strict=True)]
    if len(set(names)) < len(names):
        names = [text + schema for text, schema in zip(shown, schemas, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} {number}" for number, name in enumerate(names, 1)]
    return dict(zip(names, places, strict=True))


def filter_options(function: Command) -> Command:
    """Add the options that select messages by status, topic and group."""
    return _with_options(
        function,
        click.option(
            "--status",
            type=click.Choice(STATUSES, case_sensitive=False),
            multiple=True,
            help="Only messages in this state. Can be repeated.",
        ),
        click.option("-t", "--topic", help="Only messages of this topic."),
        click.option("-g", "--group", help="Only messages that await this consumer group."),
    )


def _with_options(function: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        function = option(function)
    return function


def select_stubs(
    connection: Connection,
    tables: Tables,
    message_ids: tuple[str, ...],
    status: tuple[str, ...],
    topic: str | None,
    group: str | None,
) -> list[StubView]:
    """Return the selected stubs, at most one more than MAX_SELECTED; ReliableError if an id is unknown."""
    if not message_ids:
        return operations.find(connection, tables, statuses=status, topic=topic, group=group, limit=MAX_SELECTED + 1)
    found = operations.find_by_id(connection, tables, message_ids)
    unknown = sorted(set(message_ids) - {stub.message_id for stub in found})
    if unknown:
        raise ReliableError(f"there is no message {', '.join(unknown)}: purged, or never added; nothing was changed")
    return found
