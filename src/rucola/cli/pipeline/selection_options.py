"""Command line options that select the messages of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from rucola.cli.option_types import SINCE_HELP, TIME

Command = TypeVar("Command", bound=Callable[..., Any])


def selection_options(command: Command) -> Command:
    options = (
        click.option("-t", "--topic", "topics", multiple=True, help="Only this topic. Can be repeated."),
        click.option("-g", "--tags", help="Only messages with one of these tags: 'TagA || TagB'."),
        click.option(
            "-k", "--key", "keys", multiple=True, help="Only messages with this key or unique key. Can be repeated."
        ),
        click.option("-s", "--sql", help='Only messages whose properties match this SQL92 filter: "price > 5".'),
        click.option(
            "-b",
            "--begin",
            type=TIME,
            help=SINCE_HELP,
        ),
        click.option("-e", "--end", type=TIME, help="Only messages stored before this time."),
    )
    # Decorators apply from the inside out, and click shows the last one first.
    for option in reversed(options):
        command = option(command)
    return command


def selection_arguments(
    topics: Sequence[str], tags: str | None, keys: Sequence[str], sql: str | None, begin: int | None, end: int | None
) -> dict[str, Any]:
    """Return the values of `selection_options` as arguments of `rucola.spark.jobs.selection.Selection`."""
    return {
        "topics": tuple(topics) or None,
        "tags": tags,
        "keys": tuple(keys) or None,
        "starting_timestamp": begin,
        "ending_timestamp": end,
        "expression": sql,
    }
