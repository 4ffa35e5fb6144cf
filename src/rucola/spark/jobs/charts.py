"""Inline SVG charts without scripts, external fonts or images; colours are CSS variables of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

from rucola.presentation import short_number

WIDTH: Final = 960
HEIGHT: Final = 260
MAX_SERIES: Final = 8
"""Number of colours, --c0 to --c7."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34
_TICKS: Final = 4
_WIDEST: Final = 72


@dataclass(frozen=True)
class Series:
    """Named values, one for each label of the horizontal axis."""

    name: str
    values: Sequence[float]


def columns(labels: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """Return a stacked column chart, with a legend if there are several series."""
    totals = [sum(values) for values in zip(*(each.values for each in series), strict=True)]
    if not totals or not max(totals):
        return no_data()
    top, ticks = _scale(max(totals))
    step = (WIDTH - _LEFT - _RIGHT) / len(labels)
    width = min(max(step * 0.78, 1.0), _WIDEST)
    marks = [_grid(top, ticks)]
    # Each column is stacked from the bottom; `upper` is the sum of the segments drawn so far, in units of the axis.
    for position, label in enumerate(labels):
        x, upper = _LEFT + position * step + (step - width) / 2, 0.0
        for number, each in enumerate(series):
            value = each.values[position]
            if value:
                y, height = _y(upper + value, top), _y(upper, top) - _y(upper + value, top)
                title = f"{label} · {each.name}: {number_text(value)} {unit}"
                marks.append(_rect(x, y, width, max(height, 0.75), number, title))
                upper += value
    return _svg(marks + _labels(labels, step), HEIGHT) + _legend([each.name for each in series])


def stacked(
    labels: Sequence[str],
    values: Iterable[tuple[str, int, float]],
    unit: str,
    *,
    names: Sequence[str] | None = None,
    rest: str = "others",
) -> str:
    """Return a stacked column chart of (series, position, value), the largest series first or in the order of `names`.

    If there are more series than colours, the last colour is the sum of those that are left.
    """
    sums: dict[str, list[float]] = {}
    for name, position, value in values:
        sums.setdefault(name, [0] * len(labels))[position] += value
    order = (
        sorted(sums, key=lambda name: -sum(sums[name])) if names is None else [name for name in names if name in sums]
    )
    named = order if len(order) <= MAX_SERIES else order[: MAX_SERIES - 1]
    series = [Series(name, sums[name]) for name in named]
    if left := order[len(named) :]:
        series.append(Series(rest, [sum(each) for each in zip(*(sums[name] for name in left), strict=True)]))
    return columns(labels, series, unit)


def lines(labels: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """Return a line chart; negative values are drawn as 0."""
    most = max((value for each in series for value in each.values), default=0)
    if most <= 0:
        return no_data()
    top, ticks = _scale(most)
    step = (WIDTH - _LEFT - _RIGHT) / len(labels)
    marks = [_grid(top, ticks)]
    for number, each in enumerate(series):
        points = [
            (_LEFT + (position + 0.5) * step, _y(max(value, 0), top)) for position, value in enumerate(each.values)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        marks.append(f'<polyline points="{path}" fill="none" stroke="var(--c{number % MAX_SERIES})" stroke-width="2"/>')
        for (x, y), label, value in zip(points, labels, each.values, strict=True):
            title = escape(f"{label} · {each.name}: {number_text(value)} {unit}")
            dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="var(--c{number % MAX_SERIES})">'
            marks.append(f"{dot}<title>{title}</title></circle>")
    return _svg(marks + _labels(labels, step), HEIGHT) + _legend([each.name for each in series])


def bars(rows: Sequence[tuple[str, float, str]], color: int = 0) -> str:
    """Return a horizontal bar chart of (name, value, text of the value)."""
    most = max((value for _, value, _ in rows), default=0)
    if most <= 0:
        return no_data()
    left, right, line = 330, 210, 26
    marks = []
    for number, (name, value, text) in enumerate(rows):
        y = number * line + 4
        shown = name if len(name) <= 44 else name[:20] + "…" + name[-23:]
        length = (WIDTH - left - right) * value / most
        marks.append(f'<text x="{left - 10}" y="{y + 14}" class="name">{escape(shown)}</text>')
        marks.append(_rect(left, y, max(length, 1), line - 8, color, f"{name}: {text}"))
        marks.append(f'<text x="{left + length + 8:.1f}" y="{y + 14}" class="value">{escape(text)}</text>')
    return _svg(marks, len(rows) * line + 8)


def no_data() -> str:
    """Return the placeholder of a chart without data."""
    return '<p class="nothing">None.</p>'


def number_text(value: float) -> str:
    """Format a number for readers: 950, 9,500, 12.3k, 1.25M."""
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit and abs(value) >= 10_000:
            return f"{short_number(value / limit)}{letter}"
    return short_number(value)


def _scale(most: float) -> tuple[float, list[float]]:
    """Return the upper end of an axis that includes `most`, and its round ticks: for 930, 0, 250, 500, 750, 1000."""
    rough = most / _TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    ticks = [step * number for number in range(_TICKS + 1) if step * (number - 1) < most]
    return ticks[-1], ticks


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / top


def _grid(top: float, ticks: Sequence[float]) -> str:
    parts = []
    for tick in ticks:
        y = _y(tick, top)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" class="tick">{number_text(tick)}</text>')
    return "".join(parts)


def _labels(labels: Sequence[str], step: float) -> list[str]:
    """Return every n-th label, with the smallest n for which the labels do not overlap."""
    every = max(1, ceil(max(map(len, labels)) * 8 / step))
    return [
        f'<text x="{_LEFT + (position + 0.5) * step:.1f}" y="{HEIGHT - 12}" class="label">{escape(label)}</text>'
        for position, label in enumerate(labels)
        if position % every == 0
    ]


def _rect(x: float, y: float, width: float, height: float, color: int, title: str) -> str:
    shape = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5"'
    return f'{shape} fill="var(--c{color % MAX_SERIES})"><title>{escape(title)}</title></rect>'


def _svg(marks: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(marks)}</svg>'


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    keys = "".join(
        f'<span><i style="background:var(--c{number % MAX_SERIES})"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<div class="legend">{keys}</div>'
