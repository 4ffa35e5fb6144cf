"""`rucola store rebuild` and `repair`: restore derived files, or a damaged log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rucola.cli.option_types import PathType
from rucola.cli.output import print_json, print_table, progress_bar, to_json, wide_option
from rucola.cli.store.directory import config_option, directory_argument, store_settings
from rucola.store.tools.rebuild import RebuildResult
from rucola.store.tools.rebuild import rebuild as rebuild_store
from rucola.store.tools.repair import LostRange, RepairResult
from rucola.store.tools.repair import repair as repair_store


@click.command()
@directory_argument
@config_option
@click.option("--out", type=PathType(file_okay=False), help="Write to this directory, and leave DIR unchanged.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def rebuild(directory: Path, config_file: Path | None, out: Path | None, as_json: bool) -> None:
    """Rebuild the ConsumeQueues and the index of the store DIR from its CommitLog.

    The new files replace the old ones when they are complete and on disk; if the command is interrupted, the old ones
    stay. No broker may serve DIR, and its log must be undamaged (otherwise, see `repair`). New files get the size of
    the old ones; name the broker.conf if there are none, or if its delay levels are not the defaults.

    \b
    Examples:
      rucola store rebuild data
      rucola store rebuild data --out /tmp/derived -c broker.conf
    """
    with progress_bar(f"rebuild {directory}") as progress:
        done = rebuild_store(directory, out, settings=store_settings(directory, config_file), progress=progress)
    if as_json:
        print_json(done)
        return
    click.echo(format_rebuilt(done))


def format_rebuilt(done: RebuildResult) -> str:
    return (
        f"{done.path}: {done.messages} messages read; {done.units} units in {done.queues} queues, "
        f"{done.index_entries} entries in {done.index_files} index files written"
    )


@click.command()
@directory_argument
@config_option
@click.option(
    "--out",
    type=PathType(file_okay=False),
    required=True,
    help="New directory for the repaired copy.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@wide_option
def repair(directory: Path, config_file: Path | None, out: Path, as_json: bool) -> None:
    """Write a repaired copy of the store DIR; report what is missing and why.

    DIR is only read. Every undamaged message keeps its physical offset and its queue offset. A lost message between
    others is replaced by an empty message with a property REPAIRED. The exit code is 0 even if messages were lost: see
    the output, or `leftOut` in the JSON.

    \b
    Examples:
      rucola store repair data --out repaired
      rucola store repair data --out repaired -c broker.conf --json
      rucola store check repaired
    """
    settings = store_settings(directory, config_file, broken=True)
    with progress_bar(f"repair {directory}") as progress:
        done = repair_store(directory, out, settings=settings, progress=progress)
    if as_json:
        print_json(to_json(done) | {"lost": done.lost, "clean": done.clean})
    else:
        _print_repair(done)


def _print_repair(done: RepairResult) -> None:
    print_left_out(done.left_out)
    for line in done.config:
        click.echo(line)
    whole = "the log had no damage" if done.clean else f"{done.lost} known to be lost"
    click.echo(f"{done.out}: {done.kept} messages from {done.begin} to {done.end}; {whole}")


def print_left_out(left_out: Sequence[LostRange]) -> None:
    if left_out:
        print_table(
            ("#From", "#To", "#Left out because", "#Lost messages"),
            [(one.begin, one.end, one.why, " ".join(one.messages) or "none known") for one in left_out],
        )
        click.echo()
