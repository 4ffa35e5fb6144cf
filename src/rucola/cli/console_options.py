"""Options of a console, for `rucola console` and `rucola standalone --console`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from rucola.broker.services.configuration import default_properties
from rucola.cli.extras import require_extra, require_spark
from rucola.cli.lake_options import ArchiveType, catalog_option
from rucola.cli.option_types import PathType

if TYPE_CHECKING:
    from rucola.client.connection_options import ConnectionOptions
    from rucola.console.server import ConsoleServer
    from rucola.spark.archive import Archive

Command = TypeVar("Command", bound=Callable[..., Any])


def default_directory() -> Path:
    """Return the directory of history, audit and sessions, as the XDG base directories say."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rucola" / "console"


def directory_option(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--directory", type=PathType(file_okay=False), show_default=default,
        help="Directory of history, audit and sessions of the console.",
    )  # fmt: skip


body_roles_option: Final = click.option(
    "--body-roles", type=PathType(exists=True, dir_okay=False),
    help="File with the roles that see the bodies of topics, see docs/console.md.",
)  # fmt: skip

_OPTIONS: Final = (
    click.option(
        "--lake", type=ArchiveType(), help="Lake to search for messages that are no longer in the log, and to query."
    ),
    catalog_option,
    click.option(
        "--database", envvar="RUCOLA_DATABASE", show_envvar=True,
        help="URL of the outbox's database (`rucola reliable`), to show what it holds.",
    ),
    click.option(
        "--table-prefix", default="rucola_", show_default=True, help="With --database: prefix of its tables."
    ),
    click.option(
        "--accounts", type=PathType(exists=True, dir_okay=False),
        help="File with the accounts of the console, see docs/console.md.",
    ),
    body_roles_option,
    click.option("--prefix", default="", help="Path under which a proxy serves the console, such as /rucola."),
    click.option(
        "--trusted-proxy", "trusted_proxies", multiple=True, help="Address of a proxy whose X-Forwarded headers count."
    ),
    click.option("--user-header", default="", help="Header in which a trusted proxy names the user."),
)  # fmt: skip


def console_options(command: Command) -> Command:
    """Add the options that `console_server` takes as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def refuse_options(names: Collection[str]) -> None:
    """Raise UsageError if the command line has one of the parameters, which have no effect without a console."""
    context = click.get_current_context()
    for one in context.command.params:
        if one.name in names and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{one.opts[0]} has no effect without a console: add --console")


def console_server(
    *, bind_address: str, port: int, directory: Path, lake: Archive | None, database: str | None, table_prefix: str,
    **settings: Any,
) -> Callable[[str | ConnectionOptions], ConsoleServer]:  # fmt: skip
    """Return what makes the console of a cluster; `settings` are other fields of ConsoleConfig."""
    with require_extra("console"):
        from rucola.console.config import ConsoleConfig
        from rucola.console.server import ConsoleServer
    query_lake, outbox = None, None
    if lake is not None:
        with require_spark():
            from rucola.spark.jobs.sql import run
        query_lake = partial(run, lake)
    if database is not None:
        with require_extra("reliable"):
            from rucola.cli.reliable.command import check_file
            from rucola.console.reliable_outbox import ReliableOutbox
        check_file(database)
        outbox = ReliableOutbox(database, table_prefix)
    config = ConsoleConfig(
        bind_address=bind_address, port=port, directory=directory, lake=lake, query_lake=query_lake, outbox=outbox,
        default_settings=default_properties(), **settings,
    )  # fmt: skip
    return partial(ConsoleServer, config=config)
