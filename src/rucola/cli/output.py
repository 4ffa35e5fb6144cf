"""Output shared by all commands: tables, JSON, timestamps in mqadmin's format, and progress bars."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rucola.presentation import LAYOUT, Column, duration_text, json_text, optional, printable, time_text, to_json, whole

if TYPE_CHECKING:
    from rich.progress import Progress

Command = TypeVar("Command", bound=Callable[..., Any])

__all__ = [
    "LAYOUT", "Column", "ProgressBar", "cell_width", "duration_text", "fit", "optional", "print_json", "print_table",
    "printable", "progress_bar", "shorten", "time_text", "to_json", "whole", "wide_option",
]  # fmt: skip

_WIDE: Final = "rucola.wide"
_GAP: Final = 2
_LEAST_WIDTH: Final = 12
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?")


def print_json(value: Any) -> None:
    click.echo(json_text(to_json(value)))


def wide_option(command: Command) -> Command:
    return click.option(
        "--wide", is_flag=True, expose_value=False, callback=_note_wide, help="Show all columns of tables in full."
    )(command)


def _note_wide(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    ctx.meta[_WIDE] = value


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under the names of columns.

    On a terminal the table is fitted to its width (see `fit`), and a line on stderr names the columns left out.
    With `--wide`, and in a pipe, whose reader may be a program, nothing is shortened or left out.
    """
    lines = [list(row) for row in rows]
    declared = [column if isinstance(column, Column) else Column(column) for column in columns]
    numeric = {number for line in lines for number, cell in enumerate(line) if isinstance(cell, int | float)}
    cells = [[printable(str(cell)) for cell in line] for line in lines]
    context = click.get_current_context(silent=True)
    width = None if context is not None and context.meta.get(_WIDE) else terminal_width()
    widths = dict(enumerate(_widths([[column.name for column in declared], *cells])))
    if width is not None:
        times = {number for number in widths if _is_time([line[number] for line in cells])}
        widths = fit(declared, cells, numeric | times, width)

    def text(line: Sequence[str]) -> str:
        padded = [
            " " * (size - cell_width(line[n])) + line[n]
            if n in numeric
            else line[n] + " " * (size - cell_width(line[n]))
            for n, size in widths.items()
        ]
        return (" " * _GAP).join(padded).rstrip()

    names = [textwrap.wrap(one.name, widths[n]) if n in widths else [] for n, one in enumerate(declared)]
    for title in zip_longest(*names, fillvalue=""):
        click.secho(text(title), bold=True)
    if cells:
        click.echo("\n".join(text([shorten(cell, widths.get(n, 0)) for n, cell in enumerate(line)]) for line in cells))
    if left_out := [column.name for number, column in enumerate(declared) if number not in widths]:
        click.echo(f"not shown: {', '.join(left_out)}; --wide shows all columns", err=True)


def terminal_width() -> int | None:
    """Return the columns of the terminal on stdout; None without one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], firm: Collection[int], width: int) -> dict[int, int]:
    """Choose the columns that fit into `width`: {index of the column: width}.

    The `firm` ones, numbers and times, and whole columns are never cut. Titles are broken between their words first;
    then other content is shortened, the widest most; then columns are left out from the right, optional ones first,
    but never the first column and never a whole one.
    """
    names = [column.name for column in columns]
    natural = _widths([names, *cells])
    longest_word = [max(map(len, name.split(" "))) for name in names]
    content = _widths([["x" * size for size in longest_word], *cells])
    shown = list(range(len(columns)))
    while True:
        room = width - _GAP * (len(shown) - 1)
        if sum(natural[number] for number in shown) <= room:
            return {number: natural[number] for number in shown}
        widths = {number: content[number] for number in shown}
        elastic = [number for number in shown if number not in firm and not columns[number].is_whole]
        while sum(widths.values()) > room:
            widest = max(elastic, key=lambda number: widths[number], default=None)
            if widest is None or widths[widest] <= max(_LEAST_WIDTH, longest_word[widest]):
                break
            widths[widest] -= 1
        droppable = [number for number in shown[1:] if not columns[number].is_whole]
        if sum(widths.values()) <= room or not droppable:
            return widths
        shown.remove(max(droppable, key=lambda number: (columns[number].is_optional, number)))


def _is_time(cells: Sequence[str]) -> bool:
    return any(cells) and all(_TIME.fullmatch(cell) for cell in cells if cell)


def shorten(text: str, width: int) -> str:
    """Shorten a text to terminal columns by an ellipsis in its middle, since names differ at both ends."""
    if cell_width(text) <= width:
        return text
    head, tail = list(text[: len(text) // 2]), list(text[len(text) // 2 :])
    while (head or tail) and cell_width("".join(head)) + cell_width("".join(tail)) >= width:
        if len(head) > len(tail):
            head.pop()
        else:
            del tail[0]
    return "".join(head) + "…" + "".join(tail)


def cell_width(text: str) -> int:
    """Return the terminal columns that a text occupies."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_width, column)) for column in zip(*lines, strict=True)]


class ProgressBar:
    """A progress bar on a terminal; calling it with (done, total) moves it."""

    def __init__(self, bar: Progress, title: str) -> None:
        self._bar = bar
        self._title = title
        self._task = bar.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def describe(self, phase: str) -> None:
        """Show a phase of the work after the title; none if it is empty."""
        self._bar.update(self._task, description=f"{self._title}: {phase}" if phase else self._title)


@contextmanager
def progress_bar(title: str, *, prints_lines: bool = False) -> Iterator[ProgressBar | None]:
    """Show a progress bar on stderr while the block runs.

    Yields None if stderr is not a terminal, or if the block prints lines to one, with which a bar would be mixed.
    """
    if not sys.stderr.isatty() or (prints_lines and sys.stdout.isatty()):
        yield None
        return
    from rich.console import Console  # imported here: loading rich takes longer than many a command
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield ProgressBar(bar, title)
