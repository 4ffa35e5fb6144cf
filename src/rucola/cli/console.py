"""`rucola console`: a cluster in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rucola.cli.console_options import console_options, console_server, default_directory, directory_option
from rucola.cli.extras import require_extra
from rucola.cli.log_format import log_options
from rucola.cli.option_types import namesrv_option
from rucola.cli.servers import PORT, run_server, serve_until_cancelled
from rucola.name_server_addresses import DEFAULT_NAMESRV


@click.command()
@namesrv_option("namesrv", "Name servers of the cluster.", default=DEFAULT_NAMESRV)
@click.option("--port", type=PORT, default=8080, show_default=True, help="Port; 0 picks a free one.")
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on; others need --accounts.")
@directory_option("~/.local/state/rucola/console")
@console_options
@click.option("--hash-password", is_flag=True, help="Ask for a password, print its hash for --accounts, and exit.")
@log_options
def console(
    namesrv: str, port: int, bind: str, directory: Path | None, hash_password: bool, **options: Any
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
    if hash_password:
        click.echo(hashed(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)))
        return
    of_cluster = console_server(bind_address=bind, port=port, directory=directory or default_directory(), **options)

    async def serve() -> None:
        async with of_cluster(namesrv) as server:
            await serve_until_cancelled(f"rucola ready console={server.url}")

    run_server(serve())
