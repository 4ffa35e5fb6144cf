"""`rucola pipeline forget`: continue a lake without damaged files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rucola.cli.lake_options import catalog_option
from rucola.cli.output import print_json, print_table, whole, wide_option
from rucola.cli.pipeline.archive import lake_option, progress_option, with_progress
from rucola.cli.pipeline.command import json_option, require_spark

if TYPE_CHECKING:
    from rucola.spark.archive import Archive


@click.command()
@lake_option
@catalog_option
@progress_option
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@wide_option
def forget(
    lake: Path | Archive, progress_directory: Path | None, files: Sequence[str], yes: bool, as_json: bool
) -> None:
    """Remove damaged files from a lake, whose messages are then lost to it.

    FILE is a file of messages that `archive` or another command has named as missing, truncated or unreadable. First
    the lost messages are shown, as ranges of all queues in a file. The files themselves are not deleted. The messages
    still count as archived, so no run archives them again, and `check` names them as a gap. If the log still has them,
    archive it into another lake: brokers with deleteOnlyArchived keep its files.

    \b
    Examples:
      rucola pipeline forget --lake lake lake/data/topic=Orders/date=2026-11-01/0c4b-00000.parquet
    """
    with require_spark():
        archive = with_progress(lake, progress_directory)
    lost = archive.messages_of_files(files)
    rows = sum(each.rows for each in lost)
    if as_json:
        print_json({"lake": str(archive), "rows": rows, "files": lost})
    else:
        print_table(
            ("#Topic", "#Date", "#Messages", "#Broker", whole("#QID"), whole("#Offset"), "#File"),
            [
                (
                    each.topic,
                    each.date,
                    each.rows,
                    each.broker_name or "-",
                    _range_text(each.queue_ids),
                    _range_text(each.queue_offsets),
                    each.path,
                )
                for each in lost
            ],
        )
    if archive.catalog is not None and archive.progress_directory is None:
        click.echo(
            "without --progress, brokers with deleteOnlyArchived are told nothing before the next `archive --progress`",
            err=True,
        )
    if not yes:
        click.confirm(f"lose {rows} messages of {archive}?", abort=True, err=True)
    archive.forget(lost)
    if not as_json:
        click.echo(f"{rows} messages in {len(lost)} files forgotten; the files are still there")


def _range_text(bounds: tuple[int, int] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]} to {bounds[1]}"
