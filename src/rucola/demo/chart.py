"""Chart of the demonstration's results: the messages' way, carriers by mean delay, messages by hour of departure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

GREEN, GREY = "#3f7d20", "#8a8f87"


def draw(
    path: Path,
    way: Sequence[tuple[str, int]],
    carriers: Sequence[tuple[str, float]],
    hours: Sequence[tuple[int, int]],
) -> None:
    """Write an SVG file: (step, messages), (name, mean delay in minutes), worst first, and (hour of day, messages)."""
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplot_mosaic([["way", "way"], ["left", "right"]], height_ratios=[1, 2])
    left, right = axes["left"], axes["right"]
    steps = axes["way"].barh([step for step, _ in reversed(way)], [count for _, count in reversed(way)], color=GREEN)
    axes["way"].bar_label(steps, fmt="{:,.0f}", padding=3, color=GREY)
    axes["way"].set_title("The messages' way: each step has all of them")
    names = [name for name, _ in reversed(carriers)]
    bars = left.barh(names, [delay for _, delay in reversed(carriers)], color=GREEN)
    left.bar_label(bars, fmt="%.1f", padding=3, color=GREY)
    left.set_title("Worst carriers by mean departure delay")
    left.set_xlabel("minutes")
    right.bar([hour for hour, _ in hours], [count for _, count in hours], color=GREEN)
    right.set_title("Messages by scheduled hour of departure")
    right.set_xlabel("hour of day")
    right.set_xticks(range(0, 24, 3))
    for each in axes.values():
        _style_axes(each)
    figure.suptitle("Flights from New York, 2013: read back from the archive")
    figure.savefig(path)


def _style_axes(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=GREY)
