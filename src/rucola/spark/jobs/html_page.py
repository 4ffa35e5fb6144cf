"""Elements of a self-contained HTML page: style, tiles, sections and tables, without a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

from rucola.spark.jobs import charts

Row = Mapping[str, Any]

Column = tuple[str, Callable[[Row], str], bool]
"""Title, function that formats a cell, and whether cells are numbers."""

MOST_ROWS: Final = 50

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #667085; --line: #e4e7ec; --paper: #fff; --page: #f5f6f8;
  --c0: #2f6fdf; --c1: #e2813b; --c2: #2e9e6b; --c3: #8a5cd0; --c4: #d1495b; --c5: #2a9fb8;
  --c6: #b59a2b; --c7: #98a2b3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #2c3444; --paper: #171c26;
  --page: #0f131a; --c0: #5b91f5; --c1: #f0a060; --c2: #4fc38d; --c3: #ab86ea; --c4: #ec6f80; --c5: #52c1d8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 28px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 0 0 2px; }
p { margin: 0 0 14px; color: var(--soft); max-width: 75ch; overflow-wrap: anywhere; }
section, .tile { background: var(--paper); border: 1px solid var(--line); border-radius: 12px; }
section { padding: 20px 24px 22px; margin-top: 18px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 24px; }
.tile { padding: 14px 18px; }
.tile b { display: block; font-size: 26px; font-weight: 650; letter-spacing: -0.02em; line-height: 1.25; }
.tile span { color: var(--soft); font-size: 13px; }
.bad b { color: var(--c4); }
svg { display: block; width: 100%; height: auto; font-size: 12px; }
svg text { fill: var(--soft); }
svg .tick, svg .name { text-anchor: end; }
svg .label { text-anchor: middle; }
svg .name, svg .value { font-size: 13px; fill: var(--ink); }
svg .grid { stroke: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--soft); margin-top: 8px; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 12px; white-space: nowrap; }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; }
td { overflow-wrap: anywhere; min-width: 4em; }
.number { text-align: right; white-space: nowrap; }
.nothing { margin: 0; font-style: italic; }
.more { margin: 10px 0 0; font-size: 13px; }
"""


def page(title: str, subtitle: str, content: str) -> str:
    """Return a whole HTML document; `content` is HTML, the other texts are not."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>"
        f"<p>{escape(subtitle)}</p>"
        f"{content}</main></body></html>\n"
    )


def tiles(values: Sequence[tuple[str, str, bool]]) -> str:
    """Return a row of numbers: value, name, and whether the value is bad."""
    shown = "".join(
        f'<div class="tile{" bad" * is_bad}"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name, is_bad in values
    )
    return f'<div class="tiles">{shown}</div>'


def table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return rows as an HTML table."""

    def build(some: Sequence[Row]) -> str:
        head = "".join(f"<th{_NUMBER * is_number}>{escape(title)}</th>" for title, _, is_number in columns)
        body = "".join(
            "<tr>"
            + "".join(f"<td{_NUMBER * is_number}>{escape(text(row))}</td>" for _, text, is_number in columns)
            + "</tr>"
            for row in some
        )
        return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'

    return truncated(rows, build)


_NUMBER: Final = ' class="number"'


def truncated(rows: Sequence[Any], build: Callable[[Sequence[Any]], str], most: int = MOST_ROWS) -> str:
    """Build an element from at most `most` rows, followed by the number of omitted rows."""
    if not rows:
        return charts.no_data()
    more = len(rows) - most
    return build(rows[:most]) + (f'<p class="more">And {more:,} more.</p>' if more > 0 else "")


def section(title: str, caption: str, content: str) -> str:
    """Return a section with a heading and a caption."""
    return f"<section><h2>{title}</h2><p>{escape(caption)}</p>{content}</section>"
