"""Output shared by all commands: tables, JSON, timestamps in mqadmin's format, and progress bars."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from rucola.presentation import LAYOUT, Column, optional, printable, time_text, to_json, whole

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
_TIME_OF_DAY_WIDTH: Final = len("05:15:00,000")


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(to_json(value)), indent=2))


def wide_option(command: Command) -> Command:
    return click.option(
        "--wide", is_flag=True, expose_value=False, callback=_note_wide, help="Show all columns of tables in full."
    )(command)


def _note_wide(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    ctx.meta[_WIDE] = value


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[object]], *, footer: bool = False) -> None:
    """Print rows under the names of columns; with `footer` a line separates the last row.

    On a terminal the table is fitted to its width (see `fit`), and a line on stderr names the columns left out.
    With `--wide`, and in a pipe, whose reader may be a program, nothing is shortened or left out.
    """
    from rich.console import Console  # imported here: loading rich takes longer than many a command
    from rich.table import Table

    lines = [list(row) for row in rows]
    declared = [column if isinstance(column, Column) else Column(column) for column in columns]
    names = [column.name for column in declared]
    numeric = [any(isinstance(line[number], int | float) for line in lines) for number in range(len(names))]
    cells = [[printable(str(cell)) for cell in line] for line in lines]
    is_time = [_is_time([line[number] for line in cells]) for number in range(len(names))]
    console = Console(highlight=False, markup=False)
    context = click.get_current_context(silent=True)
    is_fitted = console.is_terminal and not (context is not None and context.meta.get(_WIDE))
    shown = dict(enumerate(_natural_widths(names, cells)))
    if is_fitted:
        shown = fit(declared, cells, numeric, is_time, console.width)
    else:
        # rich guesses 80 columns if the output is a pipe. A width that no row reaches switches wrapping off.
        console = Console(highlight=False, markup=False, width=1_000_000)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for number, width in shown.items():
        table.add_column(
            names[number], justify="right" if numeric[number] else "left", overflow="fold", min_width=width,
            max_width=width, no_wrap=not is_fitted,
        )  # fmt: skip
    for count, line in enumerate(cells, 1):
        table.add_row(
            *(line[number] if is_time[number] else shorten(line[number], width) for number, width in shown.items()),
            end_section=footer and count == len(cells) - 1,
        )
    # Ids are printed whole even if they alone are wider than the terminal.
    console.print(table, crop=False, width=max(console.width, sum(shown.values()) + _GAP * len(shown)))
    if left_out := [name for number, name in enumerate(names) if number not in shown]:
        click.echo(f"not shown: {', '.join(left_out)}; --wide shows all columns", err=True)


def fit(
    columns: Sequence[Column],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    is_time: Sequence[bool],
    width: int,
) -> dict[int, int]:
    """Choose the columns that fit into `width`: {index of the column: width}.

    Numbers, times and whole columns are never cut. Other content is shortened first, the widest most; then times are
    broken before the time of day; then columns are left out from the right, optional ones first, but never the first
    column and never a whole one.
    """
    names = [column.name for column in columns]
    natural = _natural_widths(names, cells)
    longest_word = [max(map(len, name.split(" "))) for name in names]
    content = [
        max([cell_width(line[number]) for line in cells] + [longest_word[number]]) for number in range(len(columns))
    ]
    shown = list(range(len(columns)))
    while True:
        room = width - _GAP * (len(shown) - 1)
        if sum(natural[number] for number in shown) <= room:
            return {number: natural[number] for number in shown}
        # Titles are broken between their words before any content is shortened.
        elastic = [n for n in shown if not numeric[n] and not is_time[n] and not columns[n].is_whole]
        for of_times in ({}, {n: max(_TIME_OF_DAY_WIDTH, longest_word[n]) for n in shown if is_time[n]}):
            widths = {number: content[number] for number in shown} | of_times
            while sum(widths.values()) > room:
                widest = max(elastic, key=lambda number: widths[number], default=None)
                if widest is None or widths[widest] <= max(_LEAST_WIDTH, longest_word[widest]):
                    break
                widths[widest] -= 1
            if sum(widths.values()) <= room:
                return widths
        droppable = [number for number in shown[1:] if not columns[number].is_whole]
        if not droppable:
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


def _natural_widths(names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max([cell_width(name)] + [cell_width(line[number]) for line in cells]) for number, name in enumerate(names)]


def duration_text(milliseconds: float | None) -> str:
    """Format a duration: `45 s`, `12.0 min`, `3.5 h`, `2.1 d`; a dash for None."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size * 2:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


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
    from rich.console import Console  # imported here, as in print_table
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield ProgressBar(bar, title)
