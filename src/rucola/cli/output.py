"""Output shared by all commands: tables, JSON, timestamps in mqadmin's format, and progress bars."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec


def print_json(value: Any) -> None:
    """Print a value as one indented JSON document (see `to_json`)."""
    click.echo(msgspec.json.format(msgspec.json.encode(to_json(value)), indent=2))


def to_json(value: Any) -> Any:
    """Convert a value to JSON's types, with the fields of structs and dataclasses in camelCase.

    Keys of dicts are data, such as names of topics, and stay as they are. Paths become text.
    """
    match value:
        case msgspec.Struct():
            # Fields that the struct's own encoding omits are omitted here, too.
            encoded = msgspec.to_builtins(value, enc_hook=str)
            return {
                _camel_case(field.encode_name): to_json(getattr(value, field.name))
                for field in msgspec.structs.fields(type(value))
                if field.encode_name in encoded
            }
        case list() | tuple() | set() | frozenset():
            return [to_json(one) for one in value]
        case dict():
            return {key: to_json(one) for key, one in value.items()}
        case Path():
            return str(value)
    if dataclasses.is_dataclass(value):
        return {_camel_case(field.name): to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(map(str.capitalize, tail))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, footer: bool = False) -> None:
    """Print rows under column names, numbers right-aligned; with `footer` a line separates the last row.

    On a terminal, long cells are folded to its width. Other output is never wrapped, since a program may parse it.
    """
    from rich.console import Console  # imported here: loading rich takes longer than many a command
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    lines = [list(row) for row in rows]
    for number, column in enumerate(columns):
        numeric = any(isinstance(line[number], int | float) for line in lines)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
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
