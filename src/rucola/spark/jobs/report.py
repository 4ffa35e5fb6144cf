"""Report of an audit: one self-contained HTML page with SVG charts and no script.

The page is a pure function of the audit's tables (see `rucola.spark.jobs.audit`). Time charts have steps from a second
to a week, as the span of the log needs (`time_axis`). Of many topics only the largest are named; the Parquet files next
to the page have all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from rucola.spark.jobs import charts
from rucola.spark.jobs.charts import MAX_SERIES, Series, duration_text, number_text, size_text
from rucola.spark.jobs.time_axis import TimeAxis

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

Column = tuple[str, Callable[[Row], str], bool]
"""A column of an HTML table: title, function that formats a cell, and whether cells are numbers."""

MOST_ROWS: Final = 50
"""Limit of rows in a table and bars in a chart; the page states how many were omitted."""

_REST: Final = "other topics"

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


def page(sources: Sequence[str], tables: Tables) -> str:
    """Return the HTML report of an audit of these sources."""
    topics = sorted(tables["topics"], key=lambda row: -row["bytes"])
    axis = _axis(topics)
    sections = [
        _traffic(topics, axis, tables["timeline"]),
        _topics(topics),
        _latency(topics, axis, tables["timeline"]),
        _consumption(tables["consumption"]),
        _lags(tables["lags"]),
        _failures(axis, tables["timeline"]),
        _repeats(topics),
        _sizes(tables["sizes"]),
        _hot_keys(tables["hot_keys"]),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Audit of messages</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>"
        "<h1>Audit of messages</h1>"
        f"<p>{escape(_span(topics))}. Source: {escape(', '.join(sources))}. Times are UTC.</p>"
        f"{_tiles(topics, tables)}{''.join(sections)}</main></body></html>\n"
    )


def _span(topics: Sequence[Row]) -> str:
    if not topics:
        return "There are no messages"
    first, last = min(row["first"] for row in topics), max(row["last"] for row in topics)
    return f"Stored from {_time(first)} to {_time(last)}"


def _tiles(topics: Sequence[Row], tables: Tables) -> str:
    waiting = sum(row["messages"] for row in tables["lags"])
    dead = sum(row["messages"] for row in tables["failures"] if row["kind"] == "dead letter")
    retries = sum(row["messages"] for row in tables["failures"] if row["kind"] == "retry")
    tiles = [
        (number_text(sum(row["messages"] for row in topics)), "messages", False),
        (size_text(sum(row["bytes"] for row in topics)), "in the log", False),
        (number_text(len(topics)), "topics", False),
        (number_text(len({row["group"] for row in tables["lags"]})), "groups with offsets", False),
        (number_text(waiting), "waiting to be consumed", waiting > 0),
        (number_text(retries), "retries", False),
        (number_text(dead), "dead letters", dead > 0),
        (number_text(sum(row["repeatedIds"] for row in topics)), "repeated ids", False),
    ]
    shown = "".join(
        f'<div class="tile{" bad" * is_bad}"><b>{escape(value)}</b><span>{name}</span></div>'
        for value, name, is_bad in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _traffic(topics: Sequence[Row], axis: TimeAxis, steps: Sequence[Row]) -> str:
    # If there are more topics than colours, the last colour stands for all topics that are not named.
    largest = [row["topic"] for row in sorted(topics, key=lambda row: -row["messages"])]
    labels = axis.labels
    named = largest if len(largest) <= MAX_SERIES else largest[: MAX_SERIES - 1]
    names = named if len(named) == len(largest) else [*named, _REST]
    counts = {name: [0] * len(labels) for name in names}
    sizes = {name: [0] * len(labels) for name in names}
    for row in steps:
        name = row["topic"] if row["topic"] in counts else _REST
        counts[name][axis.position(row["begin"])] += row["messages"]
        sizes[name][axis.position(row["begin"])] += row["bytes"]
    busiest = max(steps, key=lambda row: row["peakPerSecond"], default=None)
    caption = f"By {axis.unit}, the largest topics first."
    if busiest is not None:
        caption += f" Most in one second: {number_text(busiest['peakPerSecond'])} messages to {busiest['topic']}."
    return _section(
        "Messages",
        caption,
        charts.columns(labels, [Series(name, counts[name]) for name in names], "messages"),
    ) + _section(
        "Bytes",
        f"Size of records in the log, by {axis.unit}.",
        charts.columns(labels, [Series(name, sizes[name]) for name in names], "bytes"),
    )


def _topics(topics: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("Topic", lambda row: row["topic"], False),
        ("Queues", lambda row: number_text(row["queues"]), True),
        ("Messages", lambda row: f"{row['messages']:,}", True),
        ("Bytes", lambda row: size_text(row["bytes"]), True),
        ("Average", lambda row: size_text(row["averageSize"]), True),
        ("Largest", lambda row: size_text(row["largestSize"]), True),
        ("First", lambda row: _time(row["first"]), True),
        ("Last", lambda row: _time(row["last"]), True),
    ]
    return _section("Topics", "The largest first.", _table(topics, columns))


def _latency(topics: Sequence[Row], axis: TimeAxis, steps: Sequence[Row]) -> str:
    labels = axis.labels
    worst = {share: [0] * len(labels) for share in ("p50", "p95", "p99")}
    for row in steps:
        for share, values in worst.items():
            at = axis.position(row["begin"])
            values[at] = max(values[at], row[share])
    chart = charts.lines(labels, [Series(share, values) for share, values in worst.items()], "ms")
    columns: list[Column] = [("Topic", lambda row: row["topic"], False), *_TIMES]
    slowest = sorted(topics, key=lambda row: -row["p99"])
    return _section(
        "From birth to store",
        f"From the producer's clock to the broker's, for the slowest topic of each {axis.unit}. Delayed and retried "
        f"messages keep their original born timestamp.",
        chart + _table(slowest, columns),
    )


def _consumption(rows: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("Group", lambda row: row["group"], False),
        ("Topic", lambda row: row["topic"], False),
        ("Known by", lambda row: row["known"], False),
        ("Messages", lambda row: f"{row['messages']:,}", True),
        *_TIMES,
    ]
    return _section(
        "From store to consumption",
        "A store has no consumption times. They are known for consumers that send traces, and estimated for messages "
        "that were given back.",
        _table(rows, columns),
    )


def _lags(rows: Sequence[Row]) -> str:
    by_group: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_group.setdefault((row["group"], row["topic"]), []).append(row)
    found = [
        (
            f"{group} · {topic}",
            sum(row["messages"] for row in queues),
            sum(row["bytes"] for row in queues),
            max(row["waitingMs"] for row in queues),
        )
        for (group, topic), queues in by_group.items()
    ]
    behind = sorted((each for each in found if each[1]), key=lambda each: -each[1])
    bars = [
        (name, count, f"{number_text(count)} · {size_text(size)} · {duration_text(ms)}")
        for name, count, size, ms in behind
    ]
    caption = (
        f"{len(behind)} of {len(found)} pairs of group and topic have a backlog: messages, bytes, and how long the "
        f"oldest had been waiting when the last message was stored."
        if rows
        else "No committed offsets are known; a store keeps them in config/consumerOffset.json."
    )
    return _section("Lag", caption, _truncated(bars, lambda some: charts.bars(some, 1)))


def _failures(axis: TimeAxis, steps: Sequence[Row]) -> str:
    labels = axis.labels
    counts: dict[str, list[int]] = {}
    for row in steps:
        if row["group"] is not None:
            name = f"{row['group']} · {row['kind']}"
            counts.setdefault(name, [0] * len(labels))[axis.position(row["begin"])] += row["messages"]
    names = sorted(counts, key=lambda name: -sum(counts[name]))
    shown = [Series(name, counts[name]) for name in names[: MAX_SERIES - 1]]
    if names[MAX_SERIES - 1 :]:
        rest = [sum(values) for values in zip(*(counts[name] for name in names[MAX_SERIES - 1 :]), strict=True)]
        shown.append(Series("other groups", rest))
    return _section(
        "Retries and dead letters",
        f"Messages that a group retried, and those that became dead letters, by {axis.unit}.",
        charts.columns(labels, shown, "messages") if shown else charts.no_data(),
    )


def _repeats(topics: Sequence[Row]) -> str:
    rows = sorted(
        (row for row in topics if row["repeatedIds"] or row["repeatedBodies"]),
        key=lambda row: (-row["repeatedIds"], -row["repeatedBodies"]),
    )
    columns: list[Column] = [
        ("Topic", lambda row: row["topic"], False),
        ("Messages", lambda row: f"{row['messages']:,}", True),
        ("Same msgId as another", lambda row: f"{row['repeatedIds']:,}", True),
        ("Same body as another", lambda row: f"{row['repeatedBodies']:,}", True),
    ]
    return _section("Repeats", "Messages with the msgId or the body of an earlier message.", _table(rows, columns))


def _sizes(rows: Sequence[Row]) -> str:
    found: dict[int, int] = {}
    for row in rows:
        found[row["upto"]] = found.get(row["upto"], 0) + row["messages"]
    classes = []
    upto = min(found, default=1)
    while upto <= max(found, default=0):
        classes.append(upto)
        upto *= 2
    chart = charts.columns(
        [f"≤ {size_text(each)}" for each in classes], [Series("records", [found.get(each, 0) for each in classes])], ""
    )
    return _section("Sizes", "Records by their size in the log.", chart)


def _hot_keys(rows: Sequence[Row]) -> str:
    hottest = sorted(rows, key=lambda row: -row["messages"])
    bars = [(f"{row['topic']} · {row['key']}", row["messages"], f"{row['messages']:,}") for row in hottest]
    return _section("Hot keys", "The most frequent keys.", _truncated(bars, lambda some: charts.bars(some, 2), most=20))


_TIMES: Final[list[Column]] = [
    ("Half within", lambda row: duration_text(row["p50"]), True),
    ("95 %", lambda row: duration_text(row["p95"]), True),
    ("99 %", lambda row: duration_text(row["p99"]), True),
    ("Longest", lambda row: duration_text(row["most"]), True),
]


def _axis(topics: Sequence[Row]) -> TimeAxis:
    """Return the time axis of all topics."""
    if not topics:
        return TimeAxis(0, 0)
    return TimeAxis.between(min(row["first"] for row in topics), max(row["last"] for row in topics))


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
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

    return _truncated(rows, build)


_NUMBER: Final = ' class="number"'


def _truncated(rows: Sequence[Any], build: Callable[[Sequence[Any]], str], most: int = MOST_ROWS) -> str:
    """Build an element from at most `most` rows, followed by the number of omitted rows."""
    if not rows:
        return charts.no_data()
    more = len(rows) - most
    return build(rows[:most]) + (f'<p class="more">And {more:,} more.</p>' if more > 0 else "")


def _section(title: str, caption: str, content: str) -> str:
    return f"<section><h2>{title}</h2><p>{escape(caption)}</p>{content}</section>"


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC)


def _time(time: datetime) -> str:
    return f"{_utc(time):%Y-%m-%d %H:%M:%S}"
