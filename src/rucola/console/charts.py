"""Charts: series of the history in a time range, as rows of a table that `charts.js` draws."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rucola.console.history import History

RANGES: Final = {"2h": 2 * 3600, "2d": 2 * 86_400, "90d": 90 * 86_400}
"""Seconds of the ranges that a page offers, those of the resolutions of the history."""
POINTS: Final = 60
"""Rows of a chart, each the mean of its period."""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    unit: str
    """`rate`, `number`, `seconds`, `percent` or `size`."""
    columns: Sequence[str]
    rows: Sequence[tuple[int, Sequence[float | None]]]
    """Time in ms and a value for each column, oldest first; periods without any value are left out."""
    period_s: int


def range_of(text: str) -> str:
    """Return the name of a range, the shortest for anything else."""
    return text if text in RANGES else next(iter(RANGES))


async def chart(history: History, title: str, unit: str, series: Mapping[str, Sequence[str]], range_: str) -> Chart:
    """Return a chart whose columns are sums of series of the history."""
    end_s = int(time.time())
    period_s = RANGES[range_] // POINTS
    begin_s = (end_s // period_s - POINTS + 1) * period_s
    columns: list[dict[int, float]] = []
    for names in series.values():
        total: dict[int, float] = {}
        for name in names:
            periods: dict[int, list[float]] = {}
            for sample in await history.samples(name, begin_s, end_s):
                periods.setdefault(sample.time_s // period_s * period_s, []).append(sample.value)
            for at_s, values in periods.items():
                total[at_s] = total.get(at_s, 0.0) + sum(values) / len(values)
        columns.append(total)
    times = sorted({at_s for column in columns for at_s in column})
    rows = [(at_s * 1000, [column.get(at_s) for column in columns]) for at_s in times]
    return Chart(title, unit, list(series), rows, period_s)
