"""`rucola reliable export`: the tables as Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rucola.cli.extras import require_spark
from rucola.cli.option_types import PathType, namesrv_option
from rucola.cli.output import print_json, progress_bar
from rucola.cli.reliable.command import Where, check_file, database_options, json_option


@click.command()
@click.argument("directory", type=PathType(file_okay=False))
@namesrv_option("name_server", "Name servers; exports consumer offsets, too.", other_source="stores")
@click.option(
    "--store",
    "stores",
    type=PathType(exists=True, file_okay=False),
    multiple=True,
    help="Store directory of a broker; exports its consumer offsets, too. Can be repeated.",
)
@click.option("--brokerName", "names", multiple=True, help="Name of the broker of each --store, in order.")
@json_option
@database_options
def export(
    directory: Path,
    name_server: str | None,
    stores: Sequence[Path],
    names: Sequence[str],
    as_json: bool,
    where: Where,
) -> None:
    """Export stubs, receipts and done rows to Parquet files in the new directory DIRECTORY.

    `rucola pipeline reconcile --tables` reads the export, also on a machine that cannot reach the database. Message
    contents are not exported. Needs `rucola-mq[spark]`.

    \b
    Examples:
      rucola reliable export tables -n localhost:9876
      rucola reliable export tables --store data --brokerName broker-a
    """
    check_file(where.url)
    if names and not stores:
        raise click.UsageError("--brokerName names the broker of a --store, which is missing")
    with require_spark():
        from rucola.spark.jobs import table_export
        from rucola.spark.jobs.reconciled_log import log_sources
        from rucola.spark.jobs.table_export import TableSource
    source = table_export.source_of(TableSource(*where))
    log = log_sources(stores, names, name_server) if stores or name_server else None
    with progress_bar("export") as progress:
        counts = table_export.write(source, directory, log.commits if log else list, progress)
    if as_json:
        print_json(counts)
        return
    click.echo(", ".join(f"{count} {table} rows" for table, count in counts.items()) + f" exported to {directory}")
