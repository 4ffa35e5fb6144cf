"""Command line options that select the messages of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from rucola.cli.option_types import SINCE_HELP, TIME

_OPTIONS = (
    click.option("-t", "--topic", "topics", multiple=True, help="Only this topic. Can be repeated."),
    click.option("-g", "--tags", help="Only messages with one of these tags: 'TagA || TagB'."),
    click.option(
        "-k", "--key", "keys", multiple=True, help="Only messages with this key or unique key. Can be repeated."
    ),
    click.option("-s", "--sql", help='Only messages whose properties match this SQL92 filter: "price > 5".'),
    click.option("-b", "--begin", type=TIME, help=SINCE_HELP),
    click.option("-e", "--end", type=TIME, help="Only messages stored before this time."),
)


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, whose values are in the argument `conditions`, see `rucola.spark.jobs.selection.Selection`."""

    @wraps(command)
    def with_conditions(
        topics: Sequence[str], tags: str | None, keys: Sequence[str], sql: str | None, begin: int | None,
        end: int | None, **others: Any,
    ) -> Any:  # fmt: skip
        conditions = {
            "topics": tuple(topics) or None,
            "tags": tags,
            "keys": tuple(keys) or None,
            "starting_timestamp": begin,
            "ending_timestamp": end,
            "expression": sql,
        }
        return command(conditions=conditions, **others)

    for option in reversed(_OPTIONS):  # decorators apply from the inside out, and click shows the last one first
        with_conditions = option(with_conditions)
    return with_conditions
