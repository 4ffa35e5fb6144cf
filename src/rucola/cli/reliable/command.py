"""What the commands of `rucola reliable` share: their options, a checked connection, a choice of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from rucola.cli.extras import reliable_needed

with reliable_needed():
    from sqlalchemy import Connection
    from sqlalchemy.exc import DBAPIError

    from rucola.reliable import ReliableError, Tables, migration, operations
    from rucola.reliable.database import Database
    from rucola.reliable.operations import StubView
    from rucola.reliable.schema import DEFAULT_PREFIX, STATUSES

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SELECTED = 10_000
"""The most messages that one command changes."""

json_option = click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do it without asking first.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")


def database_options(function: F) -> F:
    """The options that name a database and its tables."""
    options = [
        click.option("-d", "--database", required=True, envvar="RUCOLA_DATABASE", show_envvar=True, help="Its URL."),
        click.option("--prefix", default=DEFAULT_PREFIX, show_default=True, help="What the tables' names begin with."),
        click.option("--schema", help="The database's schema with the tables."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def selection_options(function: F) -> F:
    """Messages by id or by what they have in common."""
    options = [
        click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]..."),
        click.option(
            "--status", type=click.Choice(STATUSES, case_sensitive=False), multiple=True, help="In this state."
        ),
        click.option("-t", "--topic", help="Of this topic."),
        click.option("-g", "--group", help="Awaiting this consumer group."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def ask(
    database: str,
    prefix: str,
    schema: str | None,
    work: Callable[Concatenate[Connection, Tables, P], T],
    *arguments: P.args,
    **options: P.kwargs,
) -> T:
    """Run `work` in a transaction on tables of the right version. ReliableError says what is wrong with them."""

    def checked(connection: Connection, tables: Tables) -> T:
        migration.check(connection, tables)
        return work(connection, tables, *arguments, **options)

    return run(database, prefix, schema, checked)


def run(database: str, prefix: str, schema: str | None, work: Callable[[Connection, Tables], T]) -> T:
    """Run `work` in a transaction, whatever tables there are."""
    try:
        result: T = Database(database).run_sync(work, Tables(prefix, schema))
        return result
    except DBAPIError as error:
        raise ReliableError(f"the database refuses: {error.orig}") from None


def select(
    connection: Connection,
    tables: Tables,
    message_ids: tuple[str, ...],
    status: tuple[str, ...],
    topic: str | None,
    group: str | None,
) -> list[StubView]:
    """The stubs that ids or the other options name. ReliableError if nothing is named, or an id is unknown."""
    if message_ids:
        shown = {message_id: operations.show(connection, tables, message_id).stub for message_id in message_ids}
        unknown = [message_id for message_id, stub in shown.items() if stub is None]
        if unknown:
            raise ReliableError(f"there is no stub of {', '.join(unknown)}: purged, or never added")
        return [stub for stub in shown.values() if stub is not None]
    if not (status or topic or group):
        raise ReliableError("name messages by their ids, or by --status, --topic and --group")
    return operations.find(connection, tables, statuses=status, topic=topic, group=group, limit=SELECTED)


def duration(milliseconds: int | None) -> str:
    """`45 s`, `12 min`, `3.5 h`, `2.1 d`; a dash for None."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size * 2:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
