"""`rucola cluster`: a cluster on one machine."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from pathlib import Path

import click
from click.core import ParameterSource

from rucola.cli.log_format import log_options
from rucola.cli.option_types import PathType
from rucola.cli.output import duration_text, print_json, print_table, whole, wide_option
from rucola.cluster.layout import MOST_MASTERS, MOST_NAMESRVS, MOST_SLAVES, Size, namesrv_addr
from rucola.cluster.supervisor import ServerStatus, Supervisor, read_status, supervisor

logger = logging.getLogger("rucola")

COLUMNS = ("#Name", "#Role", whole("#Addr"), "#State", "#Since", "#Restarts", "#Last Exit", "#PID")


@click.command()
@click.argument("directory", type=PathType(file_okay=False))
@click.option(
    "--masters", type=click.IntRange(1, MOST_MASTERS), default=1, show_default=True, help="Number of broker groups."
)
@click.option(
    "--slaves", type=click.IntRange(0, MOST_SLAVES), default=0, show_default=True, help="Number of slaves per master."
)
@click.option(
    "--namesrvs", type=click.IntRange(1, MOST_NAMESRVS), default=1, show_default=True, help="Number of name servers."
)
@click.option("--sync", is_flag=True, help="Masters acknowledge a message once a slave has it (SYNC_MASTER).")
@click.option("--etcd", is_flag=True, help="Start etcd, which elects the masters: slaves take over by themselves.")
@click.option("--status", is_flag=True, help="Show the servers of a running cluster, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@wide_option
@log_options
@click.pass_context
def cluster(
    ctx: click.Context, directory: Path, masters: int, slaves: int, namesrvs: int, sync: bool, etcd: bool,
    status: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a cluster in DIRECTORY: name servers, masters and slaves, each a process, on 127.0.0.1.

    The first start chooses ports and writes a configuration file per server; the numbers can be left out afterwards.
    Servers that end are started again, after a pause that grows from 1 to 30 s. Prints `rucola ready
    namesrv=HOST:PORT;...` when all are ready; SIGTERM and SIGINT stop them in order, SIGHUP reloads them. A broker uses
    one core: start one master per core to use all cores.

    \b
    Examples:
      rucola cluster data --masters 2
      rucola cluster data --masters 2 --slaves 1 --namesrvs 2 --sync
      rucola cluster data --slaves 1 --sync --etcd
      rucola cluster data --status
    """
    if sync and not slaves:
        raise click.UsageError("--sync needs --slaves 1 or more: a master without a slave would acknowledge nothing")
    if etcd and not slaves:
        raise click.UsageError("--etcd needs --slaves 1 or more: there would be nothing to elect")
    if as_json and not status:
        raise click.UsageError("--json belongs to --status")
    if status:
        _print_status(read_status(directory), as_json)
        return
    names = ("masters", "slaves", "namesrvs", "sync", "etcd")
    is_given = any(ctx.get_parameter_source(name) is not ParameterSource.DEFAULT for name in names)
    size = Size(masters, slaves, namesrvs, sync, etcd) if is_given else None
    with supervisor(directory, size) as running:
        asyncio.run(_run(running))


async def _run(running: Supervisor) -> None:
    serving = asyncio.create_task(_serve(running))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    loop.add_signal_handler(signal.SIGHUP, running.reload)
    try:
        await serving
    except asyncio.CancelledError:
        logger.info("stopping")
    finally:
        await running.stop()


async def _serve(running: Supervisor) -> None:
    await running.start()
    print(f"rucola ready namesrv={namesrv_addr([server.spec for server in running.servers])}", flush=True)
    await running.wait()


def _print_status(servers: list[ServerStatus], as_json: bool) -> None:
    if as_json:
        print_json(servers)
        return
    now_ms = time.time() * 1000
    rows = [
        (
            server.name, server.role, server.address, server.state, duration_text(now_ms - server.since * 1000),
            server.restarts, server.last_exit or "", server.pid or "",
        )
        for server in servers
    ]  # fmt: skip
    print_table(COLUMNS, rows)
