"""`rucola mcp`: the commands of `rucola admin` as tools of an assistant."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import click

from rucola.admin import AdminClient
from rucola.admin.commands.authorization import Account, parse_grants
from rucola.cli.console_options import body_roles_option, default_directory
from rucola.cli.log_format import log_options
from rucola.cli.option_types import PathType, namesrv_option
from rucola.cli.servers import run_server
from rucola.console import audit
from rucola.console.actions import Actions
from rucola.console.body_policy import BodyPolicy
from rucola.console.database import Database
from rucola.console.mcp import MAX_LINE_BYTES, McpServer
from rucola.name_server_addresses import DEFAULT_NAMESRV


@click.command()
@namesrv_option("namesrv", "Name servers of the cluster.", default=DEFAULT_NAMESRV)
@click.option("--allow-writes", is_flag=True, help="Offer the commands that change the cluster, too.")
@click.option(
    "--grants", show_default="viewer, or admin with --allow-writes",
    help="What the tools may do, as in the accounts of the console: 'viewer Topic:orders-*, viewer Group:billing'.",
)  # fmt: skip
@click.option(
    "--directory", type=PathType(file_okay=False), show_default="~/.local/state/rucola/console",
    help="Directory of the audit, which the console shows if it has the same.",
)  # fmt: skip
@body_roles_option
@log_options
def mcp(
    namesrv: str, allow_writes: bool, grants: str | None, directory: Path | None, body_roles: Path | None
) -> None:  # fmt: skip
    """Offer the commands of `rucola admin` to an assistant, by the Model Context Protocol on stdin and stdout.

    The assistant starts this command. The tools only read the cluster unless --allow-writes is given. Looks at bodies
    and changes are recorded in the audit of the console.

    \b
    Examples:
      rucola mcp -n localhost:9876
      rucola mcp -n localhost:9876 --allow-writes --grants "operator Topic:orders-*, viewer"
    """
    account = Account("mcp", parse_grants(grants or ("admin" if allow_writes else "viewer")))
    database = Database((directory or default_directory()) / "console.db", audit.SCHEMA)

    def write(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    async def serve() -> None:
        async with AsyncExitStack() as running:
            await database.open()
            running.push_async_callback(database.close)
            client = await running.enter_async_context(AdminClient(namesrv))
            actions = Actions(client, audit.Audit(database), BodyPolicy(body_roles))
            server = McpServer(client, actions, account, write, allows_writes=allow_writes)
            reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
            running.callback(transport.close)
            await server.serve(reader)

    run_server(serve())
