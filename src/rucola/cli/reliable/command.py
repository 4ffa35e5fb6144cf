"""Options, database transactions and message selection shared by the commands of `rucola reliable`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from rucola.cli.extras import require_reliable

with require_reliable():
    from sqlalchemy import Connection
    from sqlalchemy.exc import DBAPIError

    from rucola.reliable import ReliableError, Tables, migration, operations
    from rucola.reliable.database import Database
    from rucola.reliable.operations import StubView
    from rucola.reliable.schema import DEFAULT_PREFIX, STATUSES

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

MAX_SELECTED = 10_000

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")


def database_options(function: F) -> F:
    options = [
        click.option(
            "-d", "--database", required=True, envvar="RUCOLA_DATABASE", show_envvar=True, help="URL of the database."
        ),
        click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the table names."),
        click.option("--schema", help="Database schema of the tables."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def selection_options(function: F) -> F:
    """Add the options that select messages by id, or by status, topic and group."""
    options = [
        click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]..."),
        click.option(
            "--status",
            type=click.Choice(STATUSES, case_sensitive=False),
            multiple=True,
            help="Only messages in this state. Can be repeated.",
        ),
        click.option("-t", "--topic", help="Only messages of this topic."),
        click.option("-g", "--group", help="Only messages that await this consumer group."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def run_checked(
    database: str,
    prefix: str,
    schema: str | None,
    work: Callable[Concatenate[Connection, Tables, P], T],
    *arguments: P.args,
    **options: P.kwargs,
) -> T:
    """Run `work` in a transaction; ReliableError if the version of the tables does not fit."""
    check_file(database)

    def checked(connection: Connection, tables: Tables) -> T:
        migration.check(connection, tables)
        return work(connection, tables, *arguments, **options)

    return run(database, prefix, schema, checked)


def check_file(database: str) -> None:
    """Raise ReliableError if the file of an SQLite database is missing: SQLite would create it, empty."""
    scheme, _, path = database.partition(":///")
    path = path.partition("?")[0]
    is_file = scheme.startswith("sqlite") and path and not path.startswith((":memory:", "file:"))
    if is_file and not Path(path).exists():
        raise ReliableError(f"{database}: there is no such file; `rucola reliable init` creates a database")


def run(database: str, prefix: str, schema: str | None, work: Callable[[Connection, Tables], T]) -> T:
    """Run `work` in a transaction, without a check of the tables."""
    tables, opened = open_database(database, prefix, schema)
    with named_errors(opened):
        result: T = opened.run_sync(work, tables)
        return result


def open_database(database: str, prefix: str, schema: str | None) -> tuple[Tables, Database]:
    """Return the tables and the database that `database_options` name, without a connection."""
    try:
        return Tables(prefix, schema), Database(database)
    except ReliableError as error:
        raise click.UsageError(str(error)) from None


@contextmanager
def named_errors(database: Database) -> Iterator[None]:
    """Raise errors of the driver as ReliableErrors that name the database."""
    try:
        yield
    except DBAPIError as error:
        why = " ".join(str(error.orig).split())
        where = database.url.render_as_string(hide_password=True)
        raise ReliableError(f"{where}: {why}; check the URL, and that the database is reachable") from None


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


def check_selection(
    message_ids: tuple[str, ...], status: tuple[str, ...], topic: str | None, group: str | None
) -> None:
    """Raise UsageError unless messages are named either by id or by status, topic and group."""
    has_filter = bool(status or topic or group)
    if message_ids and has_filter:
        raise click.UsageError("name messages by id or by --status, --topic and --group, not by both")
    if not message_ids and not has_filter:
        raise click.UsageError("name messages by id, or by --status, --topic or --group")
