"""`rucola pipeline rebuild`: rebuild ConsumeQueues and index of a store in parallel, or a store from a lake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rucola.cli.lake_options import ArchiveType, catalog_option
from rucola.cli.option_types import PathType
from rucola.cli.output import print_json, to_json, wide_option
from rucola.cli.pipeline.command import json_option, master_option, require_spark, show_tasks, spark_option
from rucola.cli.store.directory import check_store_argument, config_option, new_store_settings, store_settings
from rucola.cli.store.recovery import format_rebuilt, print_left_out

if TYPE_CHECKING:
    from rucola.spark.archive import Archive


@click.command()
@click.argument(
    "directory",
    metavar="[DIR]",
    required=False,
    type=PathType(exists=True, file_okay=False),
    callback=check_store_argument,
)
@config_option
@click.option("--out", type=PathType(file_okay=False), help="Write to this directory, and leave DIR unchanged.")
@click.option(
    "--lake", type=ArchiveType(), help="Write the store of --brokerName to --out from the messages of this lake."
)
@catalog_option
@click.option("--brokerName", "name", help="Name of the store in the lake; by default the only one that it has.")
@master_option
@spark_option
@json_option
@wide_option
def rebuild(
    directory: Path | None,
    config_file: Path | None,
    out: Path | None,
    lake: Archive | None,
    name: str | None,
    master: str | None,
    use_spark: bool | None,
    as_json: bool,
) -> None:
    """Rebuild ConsumeQueues and index of a store, or a store from a lake, on all cores.

    Of the store DIR, reads the CommitLog, and writes the same bytes as `rucola store rebuild`, which uses one core and
    needs no Java. No broker may serve DIR.

    With --lake, writes a new store from archived messages, which get their offsets, ids and properties again. Name the
    broker.conf if the store had other file sizes than the defaults. The exit code is 0 even if the lake lacks messages:
    see the output, or `leftOut` in the JSON.

    \b
    Examples:
      rucola pipeline rebuild data
      rucola pipeline rebuild data --out /tmp/derived -c broker.conf
      rucola pipeline rebuild --lake lake --brokerName broker-a --out data -c broker.conf
    """
    if (directory is None) == (lake is None):
        raise click.UsageError("give either DIR or --lake")
    if lake is None and (name is not None or use_spark is not None):
        raise click.UsageError("--brokerName and --spark are for --lake")
    if lake is not None and out is None:
        raise click.UsageError("--lake needs --out, a new directory")
    with require_spark():
        from rucola.spark.jobs.rebuild import run, run_from_lake
        from rucola.spark.session import LazySession
    session = LazySession("rucola pipeline rebuild", master, use_spark=use_spark)
    if lake is not None:
        assert out is not None
        with show_tasks(session, "rebuild"):
            found = run_from_lake(session, lake, out, broker_name=name, settings=new_store_settings(out, config_file))
        if as_json:
            print_json(to_json(found) | {"lost": found.lost})
            return
        print_left_out(found.left_out)
        click.echo(
            f"{found.out}: {found.kept} messages from {found.begin} to {found.end}; {found.lost} known to be lost"
        )
        return
    assert directory is not None
    settings = store_settings(directory, config_file)
    with show_tasks(session, "rebuild"):
        done = run(session, directory, out, settings=settings)
    if as_json:
        print_json(done)
        return
    click.echo(format_rebuilt(done))
