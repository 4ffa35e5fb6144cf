"""Charts: series of the history in a time range, as one table of a page, whose columns `charts.js` draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rucola.console.collector import ARCHIVE_AGE, ArchiveState
from rucola.console.history import History

RANGES: Final = {"2h": 2 * 3600, "2d": 2 * 86_400, "90d": 90 * 86_400}
"""Seconds of the ranges that a page offers, those of the resolutions of the history."""
POINTS: Final = 48
"""Rows of a table, each the mean of its period."""


class Chart(NamedTuple):
    title: str
    unit: str
    """`rate`, `number`, `seconds`, `percent` or `size`."""
    series: Mapping[str, Sequence[str]]
    """The series of the history of which a column is the sum, by the name of the column."""


class Column(NamedTuple):
    name: str
    unit: str
    chart: int


@dataclass(frozen=True, slots=True)
class Charts:
    charts: Sequence[Chart]
    columns: Sequence[Column]
    rows: Sequence[tuple[int, Sequence[float | None]]]
    """Time in ms and a value for each column, oldest first; periods without any value are left out."""
    range: str
    """The name of the range."""

    @property
    def period_s(self) -> int:
        return RANGES[self.range] // POINTS

    def columns_of(self, chart: int) -> list[int]:
        """Return the numbers of the columns of a chart that have a value."""
        return [
            number
            for number, column in enumerate(self.columns)
            if column.chart == chart and any(values[number] is not None for _, values in self.rows)
        ]


def archive_charts(state: ArchiveState | None, text: Callable[[str], str]) -> list[Chart]:
    """Return the charts of what a lake lacks, of all brokers, and of its last commit; none without a lake."""
    if state is None:
        return []
    title, age = text("Not archived yet"), text("Age of the last commit")
    charts = []
    for unit, is_bytes in (("number", False), ("size", True)):
        names = [lag.series(name) for name, lag in state.lags.items() if lag.is_bytes is is_bytes]
        if names:
            charts.append(Chart(title, unit, {title: names}))
    return [*charts, Chart(age, "seconds", {age: [ARCHIVE_AGE]})]


async def charts_of(history: History, range_: str, wanted: Iterable[Chart]) -> Charts:
    """Read charts of a range, by its name, the shortest for any other text."""
    range_ = range_ if range_ in RANGES else next(iter(RANGES))
    charts = list(wanted)
    period_s = RANGES[range_] // POINTS
    end_s = int(time.time())
    begin_s = (end_s // period_s - POINTS + 1) * period_s
    columns: list[Column] = []
    values: list[dict[int, float]] = []
    for number, chart in enumerate(charts):
        for name, series in chart.series.items():
            columns.append(Column(name, chart.unit, number))
            values.append(await _sum(history, series, begin_s, end_s, period_s))
    times = sorted({at_s for column in values for at_s in column})
    rows = [(at_s * 1000, [column.get(at_s) for column in values]) for at_s in times]
    return Charts(charts, columns, rows, range_)


async def _sum(history: History, names: Sequence[str], begin_s: int, end_s: int, period_s: int) -> dict[int, float]:
    """The sum of the means of some series, by the begin of the period."""
    total: dict[int, float] = {}
    for name in names:
        periods: dict[int, list[float]] = {}
        for sample in await history.samples(name, begin_s, end_s):
            periods.setdefault(sample.time_s // period_s * period_s, []).append(sample.value)
        for at_s, found in periods.items():
            total[at_s] = total.get(at_s, 0.0) + sum(found) / len(found)
    return total
