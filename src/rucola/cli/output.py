"""What all commands print alike: tables for people, JSON for programs, times as mqadmin writes them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
import msgspec


def print_json(value: Any) -> None:
    """One JSON document, indented."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, footer: bool = False) -> None:
    """Rows under column names, numbers to the right; with `footer` the last row is a sum, under a line.

    A terminal gives the width. Elsewhere nothing is cut or wrapped, since a program may be reading.
    """
    from rich.console import Console  # here, so that commands without a table do not wait for it
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    lines = [list(row) for row in rows]
    for number, column in enumerate(columns):
        numeric = any(isinstance(line[number], int | float) for line in lines)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for count, line in enumerate(lines, 1):
        table.add_row(*map(str, line), end_section=footer and count == len(lines) - 1)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=100_000)
    console.print(table)


def time_text(timestamp_ms: int) -> str:
    """`2013-01-01 05:15:00,000` in local time; empty for 0 and less, which stand for "never"."""
    if timestamp_ms <= 0:
        return ""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))},{milliseconds:03}"


def parse_time_option(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Read an option that is a time: milliseconds since 1970, or a local time as ISO 8601 has it."""
    if text is None:
        return None
    try:
        return int(text) if text.isascii() and text.isdigit() else int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise click.BadParameter("give milliseconds, or a time such as 2013-01-01T05:15:00") from None


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr, to be told (done, in all), that vanishes at the end; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # here, so that commands without a terminal do not wait for it
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
