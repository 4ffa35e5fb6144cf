"""`rucola lake`: a lake as other engines see it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rucola.cli.extras import require_spark
from rucola.cli.log_format import log_options
from rucola.cli.option_types import ADDRESS
from rucola.cli.pipeline.archive import lake_option
from rucola.cli.servers import run_server, serve_until_cancelled
from rucola.cli.suggestions import SuggestingGroup
from rucola.files import local_path
from rucola.remoting.addresses import address_of
from rucola.remoting.client import host_and_port

if TYPE_CHECKING:
    from rucola.spark.archive import Archive


@click.group(cls=SuggestingGroup)
def lake() -> None:
    """Serve a lake to other engines, or move it.

    `rucola pipeline` writes and reads it; `rucola pipeline status --lake DIR` shows what it holds, and its lag.

    \b
    Examples:
      rucola lake serve --lake /srv/lake
      rucola lake relocate --lake /disk2/lake
    """


@lake.command()
@lake_option
@click.option(
    "--listen", type=ADDRESS, default="127.0.0.1:8181", show_default=True,
    help="Address to listen on; port 0 picks a free one.",
)  # fmt: skip
@log_options
def serve(lake: Path, listen: str) -> None:
    """Serve the tables of a lake as a read-only Iceberg REST catalog.

    DuckDB, Trino, pyiceberg and other engines find the tables there, and see each commit at once. They read the files
    themselves, so the lake must have the same path on their machines. Any change is refused. There are no accounts:
    whoever reaches the address sees the metadata, which has topics, keys and times, but no bodies. Prints `rucola ready
    http=HOST:PORT` when it is ready; SIGTERM and SIGINT stop it.

    \b
    Examples:
      rucola lake serve --lake /srv/lake
      rucola lake serve --lake /srv/lake --listen 10.0.0.5:8181
    """
    with require_spark():
        from rucola.spark.archive import Archive
    host, port = host_and_port(listen)
    run_server(_serve(Archive(lake), host, port))


@lake.command()
@lake_option
def relocate(lake: Path) -> None:
    """Give a lake that was moved or copied the paths of its directory.

    The tables have absolute paths. Move or copy the whole directory by any program, while no run writes to it; then
    call this with the new directory. Only metadata is written. Brokers need the new archiveProgressPath.

    \b
    Examples:
      mv /srv/lake /disk2/lake && rucola lake relocate --lake /disk2/lake
    """
    with require_spark():
        from rucola.spark.archive import Archive
    former = Archive(lake).relocate()
    click.echo(
        f"{lake} was {former}" if former != str(local_path(lake).resolve()) else f"{lake} is at its path already"
    )


async def _serve(archive: Archive, host: str, port: int) -> None:
    with archive.serve_catalog(host, port) as address:
        await serve_until_cancelled(f"rucola ready http={address_of(address)}")
