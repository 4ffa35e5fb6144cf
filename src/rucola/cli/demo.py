"""`rucola demo`: run the demonstration of `rucola.demo`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rucola.cli.option_types import PathType
from rucola.demo.flights import COUNT
from rucola.errors import missing_extra


@click.command()
@click.option(
    "--flights", type=click.IntRange(1, COUNT), default=COUNT, show_default=True, help="Number of flights to send."
)
@click.option(
    "--out",
    type=PathType(file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Directory for the store, the archive and the chart.",
)
def demo(flights: int, out: Path) -> None:
    """Send a year of flights through all parts of Rucola.

    The steps are broker, producer, consumer, queries, dead letters, Spark archive, SQL and store check.

    The exit code is 0 if every message that was sent was also stored, consumed and archived, and the store is
    undamaged. The output directory is kept, so that you can look around in it.

    \b
    Examples:
      rucola demo
      rucola demo --flights 20000 --out /tmp/flights
    """
    try:
        from rich.console import Console

        from rucola.demo.run import run  # needs the extras `spark` and `demo`
    except ModuleNotFoundError as error:
        raise click.ClickException(missing_extra(error, "demo")) from None
    sys.exit(0 if run(flights, out, Console(highlight=False)) else 1)
