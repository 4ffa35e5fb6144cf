"""Options that say which messages a job takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from rucola.cli.output import time_given

Command = TypeVar("Command", bound=Callable[..., Any])


def selecting(command: Command) -> Command:
    """Give a command the options that say which messages it takes."""
    options = (
        click.option("-t", "--topic", "topics", multiple=True, help="Only this topic; may be given several times."),
        click.option("-g", "--tags", help="Only messages with one of these tags: 'TagA || TagB'."),
        click.option("-k", "--key", "keys", multiple=True, help="Only messages with this key or unique key; the like."),
        click.option("-s", "--sql", help='Only messages whose properties match this SQL92 filter: "price > 5".'),
        click.option("-b", "--begin", callback=time_given, help="Stored then or later: 2013-01-01T05:15:00, or ms."),
        click.option("-e", "--end", callback=time_given, help="Stored before this time."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def selected(
    topics: Sequence[str], tags: str | None, keys: Sequence[str], sql: str | None, begin: int | None, end: int | None
) -> dict[str, Any]:
    """Return what the options of `selecting` say, as `rucola.spark.jobs.selection.Selection` has it."""
    return {
        "topics": tuple(topics) or None,
        "tags": tags,
        "keys": tuple(keys) or None,
        "starting_timestamp": begin,
        "ending_timestamp": end,
        "expression": sql,
    }
