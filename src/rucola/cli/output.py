"""Output shared by all commands: tables, JSON, timestamps in mqadmin's format, and progress bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
import msgspec


def print_json(value: Any) -> None:
    """Print a value as one indented JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, footer: bool = False, whole: Collection[str] = ()
) -> None:
    """Print rows under column names, numbers right-aligned; with `footer` a line separates the last row.

    On a terminal, long cells are folded to its width, except in the columns `whole`, for ids. Other output is never
    wrapped, since a program may parse it.
    """
    from rich.console import Console  # imported here: loading rich takes longer than many a command
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    lines = [list(row) for row in rows]
    for number, column in enumerate(columns):
        numeric = any(isinstance(line[number], int | float) for line in lines)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=column in whole)
    for count, line in enumerate(lines, 1):
        table.add_row(*map(str, line), end_section=footer and count == len(lines) - 1)
    # rich guesses 80 columns if the output is a pipe. A width that no row reaches switches wrapping off.
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=100_000)
    console.print(table)


def time_text(timestamp_ms: int) -> str:
    """Format a timestamp in local time as `2013-01-01 05:15:00,000`; empty for "never", which is 0 or negative."""
    if timestamp_ms <= 0:
        return ""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))},{milliseconds:03}"


def parse_time_option(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Parse a time option (a click callback): milliseconds since 1970, or a local time in ISO 8601."""
    if text is None:
        return None
    try:
        return int(text) if text.isascii() and text.isdigit() else int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise click.BadParameter("give milliseconds, or a time such as 2013-01-01T05:15:00") from None


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on stderr while the block runs; yields its callback (done, total).

    Yields None if stderr is not a terminal. The bar is removed when the block ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # imported here, as in print_table
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
