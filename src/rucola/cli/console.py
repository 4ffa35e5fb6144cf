"""`rucola console`: a cluster in a browser."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rucola.broker.services.configuration import default_properties
from rucola.cli.extras import require_extra, require_spark
from rucola.cli.lake_options import ArchiveType, catalog_option
from rucola.cli.log_format import log_options
from rucola.cli.option_types import PathType, namesrv_option
from rucola.cli.servers import PORT, run_server, serve_until_cancelled
from rucola.name_server_addresses import DEFAULT_NAMESRV

if TYPE_CHECKING:
    from rucola.spark.archive import Archive


def default_directory() -> Path:
    """Return the directory of history, audit and sessions, as the XDG base directories say."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rucola" / "console"


body_roles_option = click.option(
    "--body-roles", type=PathType(exists=True, dir_okay=False),
    help="File with the roles that see the bodies of topics, see docs/console.md.",
)  # fmt: skip


@click.command()
@namesrv_option("namesrv", "Name servers of the cluster.", default=DEFAULT_NAMESRV)
@click.option("--port", type=PORT, default=8080, show_default=True, help="Port; 0 picks a free one.")
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on; others need --accounts.")
@click.option(
    "--directory", type=PathType(file_okay=False), show_default="~/.local/state/rucola/console",
    help="Directory of history, audit and sessions.",
)  # fmt: skip
@click.option(
    "--lake", type=ArchiveType(), help="Lake to search for messages that are no longer in the log, and to query."
)
@catalog_option
@click.option(
    "--database", envvar="RUCOLA_DATABASE", show_envvar=True,
    help="URL of the outbox's database (`rucola reliable`), to show what it holds.",
)  # fmt: skip
@click.option("--table-prefix", default="rucola_", show_default=True, help="With --database: prefix of its tables.")
@click.option("--accounts", type=PathType(exists=True, dir_okay=False), help="File with accounts, see docs/console.md.")
@body_roles_option
@click.option("--hash-password", is_flag=True, help="Ask for a password, print its hash for --accounts, and exit.")
@click.option("--prefix", default="", help="Path under which a proxy serves the console, such as /rucola.")
@click.option("--trusted-proxy", "proxies", multiple=True, help="Address of a proxy whose X-Forwarded headers count.")
@click.option("--user-header", default="", help="Header in which a trusted proxy names the user.")
@log_options
def console(
    namesrv: str, port: int, bind: str, directory: Path | None, lake: Archive | None,
    database: str | None, table_prefix: str, accounts: Path | None,
    body_roles: Path | None, hash_password: bool, prefix: str, proxies: tuple[str, ...], user_header: str,
) -> None:  # fmt: skip
    """Show a cluster in a browser: brokers, topics, groups, and every command of `rucola admin`.

    Works with Rucola's brokers and Apache's. Listens on 127.0.0.1, for everyone on this machine, unless --accounts says
    who may log in. Prints `rucola ready console=URL` when it is ready; SIGTERM and SIGINT stop it cleanly.

    \b
    Examples:
      rucola console -n localhost:9876
      rucola console -n 10.0.0.1:9876 --bind 0.0.0.0 --accounts console.properties
      rucola console -n 10.0.0.1:9876 --prefix /rucola --trusted-proxy 127.0.0.1
    """
    with require_extra("console"):
        from rucola.console.accounts import hash_password as hashed
        from rucola.console.config import ConsoleConfig
        from rucola.console.server import ConsoleServer
    if hash_password:
        click.echo(hashed(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)))
        return
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
        bind_address=bind, port=port, directory=directory or default_directory(), lake=lake,
        query_lake=query_lake, outbox=outbox, accounts=accounts, default_settings=default_properties(),
        body_roles=body_roles, prefix=prefix, trusted_proxies=proxies, user_header=user_header,
    )  # fmt: skip

    async def serve() -> None:
        async with ConsoleServer(namesrv, config) as server:
            await serve_until_cancelled(f"rucola ready console={server.url}")

    run_server(serve())
