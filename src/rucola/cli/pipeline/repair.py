"""`rucola pipeline repair`: restore a damaged lake from its remaining files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rucola.cli.output import print_json
from rucola.cli.pipeline.archive import lake_option
from rucola.cli.pipeline.command import json_option, master_option, require_spark, show_tasks


@click.command()
@lake_option
@click.option("--dry-run", is_flag=True, help="Report the damage and the planned repair, and change nothing.")
@click.option("--allow-loss", is_flag=True, help="Repair the lake even if messages are lost.")
@click.option(
    "--store",
    "stores",
    metavar="NAME",
    multiple=True,
    help="Name of a broker that was archived from its store directory. Can be repeated.",
)
@click.option("--live", metavar="NAME", multiple=True, help="Name of a broker that was archived live. Can be repeated.")
@master_option
@json_option
@click.pass_context
def repair(
    ctx: click.Context,
    lake: Path,
    dry_run: bool,
    allow_loss: bool,
    stores: Sequence[str],
    live: Sequence[str],
    master: str | None,
    as_json: bool,
) -> None:
    """Restore a lake whose own files are missing or damaged.

    A lost snapshot is rebuilt from the row files, and a lost part of the key index from the rows. No file is deleted:
    files that belong to no commit are moved to _rucola/aside. If messages are lost, the command names them and changes
    nothing without --allow-loss. It can be killed at any time and started again.

    The exit code is 1 if a dry run finds damage, or if the lake cannot be repaired.

    \b
    Examples:
      rucola pipeline repair --lake lake --dry-run
      rucola pipeline repair --lake lake
    """
    with require_spark():
        from rucola.spark.archive import Archive
        from rucola.spark.session import LazySession
    session = LazySession("rucola pipeline repair", master)
    with show_tasks(session, "repair"):
        result = Archive(lake).repair(session, dry_run=dry_run, allow_loss=allow_loss, stores=stores, live=live)
    if as_json:
        print_json(result.to_json())
    else:
        for finding in result.findings:
            click.echo(finding)
        for loss in result.losses:
            click.echo(f"lost: {loss}")
        for path in result.asides:
            click.echo(f"set aside: {path}")
        done = "is sound" if result.is_sound else "would be restored" if dry_run else "is restored"
        click.echo(f"{lake} {done}, with {result.rows} messages in {result.row_files} files")
    ctx.exit(1 if dry_run and not result.is_sound else 0)
