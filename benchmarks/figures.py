"""Figure: a measured number with its floor and aims; the table and the JSON of many figures.

The floor is the same measurement of a program that does only the unavoidable part, taken in the same run. `ratio` is
the cost as a multiple of the floor's, for times as for rates: 1.0 is as cheap as the floor. Aims are printed with the
result, and change no exit code, because on a shared machine other programs would decide it.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import sched_getaffinity
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rucola import speed


@dataclass(frozen=True)
class Aim:
    """An aim: "value" or "ratio" is at most `limit`."""

    of: str
    limit: float


@dataclass
class Figure:
    """One number. `floor` is in the same unit; `more` has further numbers without an aim."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_is: str = ""
    more_is_better: bool = False
    ratios: Sequence[float] = ()
    """The ratio of each round, if figure and floor alternate; then the ratio of the figure is their median."""
    aims: Sequence[Aim] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """The cost as a multiple of the floor's; None without a floor."""
        if self.ratios:
            return float(statistics.median(self.ratios))
        if not self.floor or not self.value:
            return None
        return self.floor / self.value if self.more_is_better else self.value / self.floor

    def is_met(self, aim: Aim) -> bool:
        measured = self.value if aim.of == "value" else self.ratio
        return measured is not None and measured <= aim.limit

    def aim_text(self, aim: Aim) -> str:
        return f"<= {aim.limit:g} {self.unit}" if aim.of == "value" else f"<= {aim.limit:g} x floor"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "floor": None if self.floor is None else {"value": self.floor, "is": self.floor_is},
            "ratio": self.ratio,
            "aims": [
                {"of": aim.of, "at_most": aim.limit, "text": self.aim_text(aim), "met": self.is_met(aim)}
                for aim in self.aims
            ],
            "more": self.more,
        }


def median(measure: Callable[[Any], float], runs: Sequence[Any]) -> float:
    """Return the median of one measure over several runs."""
    return float(statistics.median(map(measure, runs)))


def machine() -> dict[str, Any]:
    """Return the conditions of the figures: processor, memory, kernel, Python."""
    return {
        "cores": len(sched_getaffinity(0)),
        "processor": _first("/proc/cpuinfo", "model name"),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "accelerated": speed.is_used,
    }


def _first(path: str, field_name: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field_name:
            return value.strip()
    return "unknown"


def show(figures: Sequence[Figure], console: Console) -> None:
    """Print the figures as a table, with one line per aim."""
    table = Table(title="Rucola's figures and their floors", title_justify="left")
    table.add_column("what", no_wrap=True)
    for title in ("figure", "floor", "ratio"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("aim", no_wrap=True)
    table.add_column("met", no_wrap=True)
    table.add_column("besides")
    for figure in figures:
        aims = [figure.aim_text(aim) for aim in figure.aims]
        met = ["[green]yes[/]" if figure.is_met(aim) else "[red]no[/]" for aim in figure.aims]
        table.add_row(
            figure.name.replace("_", " "),
            f"{_number(figure.value)} {figure.unit}",
            "" if figure.floor is None else f"{_number(figure.floor)} {figure.unit}",
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            "\n".join(aims),
            "\n".join(met),
            ", ".join(
                f"{name.replace('_', ' ')} {_number(value)}"
                for name, value in figure.more.items()
                if isinstance(value, (int, float))
            ),
        )
    console.print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
