"""`rucola pipeline repair`: a damaged lake, restored from its own files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rucola.cli.output import print_json
from rucola.cli.pipeline.archive import lake_option
from rucola.cli.pipeline.command import json_option, master_option, spark_needed, tasks_shown


@click.command()
@lake_option
@click.option("--dry-run", is_flag=True, help="Only report the damage and the planned repair.")
@click.option("--allow-loss", is_flag=True, help="Go on without messages that are in no file any more.")
@click.option("--store", "stores", metavar="NAME", multiple=True, help="This broker was archived from its store.")
@click.option("--live", metavar="NAME", multiple=True, help="This broker was archived live.")
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

    A lost snapshot is built again from the files of messages, a lost part of the key index from the messages. No file
    is deleted: what no commit accounts for is moved to _rucola/aside. Messages that are in no file any more are named,
    and nothing is done without --allow-loss. The command can be killed at any time and started again.

    Exit code 1 if a dry run finds damage, or a repair cannot be done.

    \b
    Examples:
      rucola pipeline repair --lake lake --dry-run
      rucola pipeline repair --lake lake
    """
    with spark_needed():
        from rucola.spark.jobs.repair import run
        from rucola.spark.session import LazySession
    session = LazySession("rucola pipeline repair", master)
    with tasks_shown(session, "repair"):
        summary = run(session, lake, dry_run=dry_run, allow_loss=allow_loss, stores=stores, live=live)
    if as_json:
        print_json(summary.to_json())
    else:
        for finding in summary.findings:
            click.echo(finding)
        for loss in summary.losses:
            click.echo(f"lost: {loss}")
        for path in summary.asides:
            click.echo(f"set aside: {path}")
        done = "is sound" if summary.is_sound else "would be restored" if dry_run else "is restored"
        click.echo(f"{lake} {done}, with {summary.rows} messages in {summary.parquet_files} files")
    ctx.exit(1 if dry_run and not summary.is_sound else 0)
