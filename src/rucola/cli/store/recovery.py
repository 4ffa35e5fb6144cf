"""`rucola store rebuild` and `repair`: make a store whole again."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from rucola.cli.output import print_json, print_table, progress_bar
from rucola.cli.store.directory import config_option, directory_argument, settings_of
from rucola.store.tools.rebuild import RebuildResult
from rucola.store.tools.rebuild import rebuild as rebuild_store
from rucola.store.tools.repair import RepairResult
from rucola.store.tools.repair import repair as repair_store


@click.command()
@directory_argument
@config_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write here, and leave DIR as it is.")
@click.option("--json", "as_json", is_flag=True, help="What was written, as JSON.")
def rebuild(directory: Path, config_file: Path | None, out: Path | None, as_json: bool) -> None:
    """Write the ConsumeQueues and the index of the store DIR anew, from its CommitLog.

    They take the place of the old ones when they are complete and on disk; an interruption leaves the old. The log has
    to be sound: `repair` is for one that is not. A directory that a broker serves is refused. Files get the sizes of
    the old ones; where there are none, and for delay levels other than the defaults, name the broker.conf.

    \b
    Examples:
      rucola store rebuild data
      rucola store rebuild data --out /tmp/derived -c broker.conf
    """
    with progress_bar(f"rebuild {directory}") as progress:
        done = rebuild_store(directory, out, settings=settings_of(directory, config_file), progress=progress)
    if as_json:
        print_json(msgspec.to_builtins(done, enc_hook=str))
        return
    click.echo(rebuilt_text(done))


def rebuilt_text(done: RebuildResult) -> str:
    """Say in one line what a rebuild has written."""
    return (
        f"{done.path}: {done.messages} messages read; {done.units} units in {done.queues} queues, "
        f"{done.index_entries} entries in {done.index_files} index files written"
    )


@click.command()
@directory_argument
@config_option
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where the copy goes; a new place."
)
@click.option("--json", "as_json", is_flag=True, help="What was done, as JSON.")
def repair(directory: Path, config_file: Path | None, out: Path, as_json: bool) -> None:
    """Write a sound copy of the store DIR, and say what is not in it and why. DIR is only read.

    Every sound message keeps its physical offset and its place in its queue. A lost one between others gets a
    stand-in: an empty message with a property REPAIRED. Exit code 0 also where something had to be left out: read
    what it prints, or `left_out` in the JSON.

    \b
    Examples:
      rucola store repair data --out repaired
      rucola store repair data --out repaired -c broker.conf --json
      rucola store check repaired
    """
    settings = settings_of(directory, config_file, broken=True)
    with progress_bar(f"repair {directory}") as progress:
        done = repair_store(directory, out, settings=settings, progress=progress)
    if as_json:
        print_json(msgspec.to_builtins(done, enc_hook=str) | {"lost": done.lost, "clean": done.clean})
    else:
        _print_repair(done)


def _print_repair(done: RepairResult) -> None:
    if done.left_out:
        print_table(
            ("#From", "#To", "#Left out because", "#Lost messages"),
            [(one.begin, one.end, one.why, " ".join(one.messages) or "none known") for one in done.left_out],
        )
        click.echo()
    if done.mended:
        print_table(("#At", "#Mended"), done.mended)
        click.echo()
    for line in (*done.moved, *done.config):
        click.echo(line)
    whole = "the log had no damage" if done.clean else f"{done.lost} known to be lost"
    click.echo(f"{done.out}: {done.kept} messages from {done.begin} to {done.end}; {whole}")
