"""`rucola demo`: the demonstration, with its options."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rucola.demo.flights import COUNT

WIDTH = 110
"""Columns of the tables where the output is no terminal."""


@click.command()
@click.option("--flights", type=click.IntRange(1, COUNT), default=COUNT, show_default=True, help="How many flights.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Where store, archive and chart go.",
)
def demo(flights: int, out: Path) -> None:
    """A year of flights through the whole house: send, consume, query, archive with Spark, ask, check.

    Exits with 0 when everything that was sent was stored, consumed and archived and the store is sound.

    \b
    Examples:
      rucola demo
      rucola demo --flights 20000 --out /tmp/flights
    """
    try:
        from rich.console import Console

        from rucola.demo.run import run  # needs the extras `spark` and `demo`
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: the demonstration needs `pip install 'rucola[demo]'`") from None
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    sys.exit(0 if run(flights, out, console) else 1)
