"""`rucola pipeline rebuild`: rebuild ConsumeQueues and index of a store in parallel."""

from __future__ import annotations

from pathlib import Path

import click

from rucola.cli.option_types import PathType
from rucola.cli.output import print_json
from rucola.cli.pipeline.command import json_option, master_option, require_spark, show_tasks
from rucola.cli.store.directory import config_option, directory_argument, store_settings
from rucola.cli.store.recovery import format_rebuilt


@click.command()
@directory_argument
@config_option
@click.option("--out", type=PathType(file_okay=False), help="Write to this directory, and leave DIR unchanged.")
@master_option
@json_option
def rebuild(directory: Path, config_file: Path | None, out: Path | None, master: str | None, as_json: bool) -> None:
    """Rebuild ConsumeQueues and index of the store DIR from its CommitLog, on all cores.

    Writes the same bytes as `rucola store rebuild`, which uses one core and needs no Java. No broker may serve DIR.

    \b
    Examples:
      rucola pipeline rebuild data
      rucola pipeline rebuild data --out /tmp/derived -c broker.conf
    """
    with require_spark():
        from rucola.spark.jobs.rebuild import run
        from rucola.spark.session import LazySession
    settings = store_settings(directory, config_file)
    session = LazySession("rucola pipeline rebuild", master)
    with show_tasks(session, "rebuild"):
        done = run(session, directory, out, settings=settings)
    if as_json:
        print_json(done)
        return
    click.echo(format_rebuilt(done))
