"""`rucola pipeline repair`: restore a damaged lake from its remaining files."""

from __future__ import annotations

from pathlib import Path

import click

from rucola.cli.output import print_json
from rucola.cli.pipeline.archive import lake_option
from rucola.cli.pipeline.command import json_option, require_spark


@click.command()
@lake_option
@click.option("--dry-run", is_flag=True, help="Report the damage and the planned repair, and change nothing.")
@click.option("--allow-loss", is_flag=True, help="Repair the lake even if messages are lost.")
@json_option
@click.pass_context
def repair(ctx: click.Context, lake: Path, dry_run: bool, allow_loss: bool, as_json: bool) -> None:
    """Restore a lake whose own files are missing or damaged.

    A lost snapshot is rebuilt from its previous copy and the row files, and the key index from the rows. No file is
    deleted: files that belong to no commit are moved to _rucola/aside. If messages are lost, the command names them and
    changes nothing without --allow-loss. It can be killed at any time and started again.

    The exit code is 1 if a dry run finds damage, or if the lake cannot be repaired.

    \b
    Examples:
      rucola pipeline repair --lake lake --dry-run
      rucola pipeline repair --lake lake
    """
    with require_spark():
        from rucola.spark.archive import Archive
    result = Archive(lake).repair(dry_run=dry_run, allow_loss=allow_loss)
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
