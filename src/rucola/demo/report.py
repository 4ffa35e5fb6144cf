"""The report of the demonstration: numbered steps, sentences and tables of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

_WIDTH: Final = 80
_INDENT: Final = 11
_BAR_WIDTH: Final = 30


class Report:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._count = 0
        self._title = ""

    def begin(self, title: str) -> None:
        """Start the next step; its title, of at most seven letters, precedes the next sentence."""
        self._count += 1
        self._title = f"{self._count}. {title}"

    def say(self, text: str) -> None:
        """Print sentences, wrapped between words."""
        for line in textwrap.wrap(text, _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False):
            self._console.print(Text.assemble((f"{self._title:{_INDENT}}", "bold"), line), soft_wrap=True)
            self._title = ""

    def progress(self) -> Progress:
        """Return a progress bar for the step; `take_title` describes its tasks."""
        return Progress(
            TextColumn("[bold]{task.description}"), BarColumn(_BAR_WIDTH), MofNCompleteColumn(), TimeElapsedColumn(),
            console=self._console,
        )  # fmt: skip

    def take_title(self) -> str:
        """Return the step's number and title, and print them no further."""
        title, self._title = self._title, ""
        return f"{title:{_INDENT - 1}}"

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print rows under column names, numbers right-aligned with separators."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="italic")
        for number, column in enumerate(columns):
            is_number = bool(rows) and isinstance(rows[0][number], int | float)
            table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(f"{cell:,}" if isinstance(cell, int | float) else cell for cell in row))
        self._console.print(Padding(table, (0, 0, 0, _INDENT)), width=_WIDTH)

    def problem(self, text: str) -> None:
        """Print a mismatch."""
        self._console.print(Text.assemble(("mismatch ", "bold red"), text), soft_wrap=True)

    def result(self, text: str, details: str) -> None:
        self._console.print(Text(text, "bold green"), soft_wrap=True)
        self.details(details)

    def details(self, text: str) -> None:
        """Print lines as they are."""
        self._console.print(Text(text), soft_wrap=True)
