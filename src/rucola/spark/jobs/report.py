"""Report of an audit: one self-contained HTML page with SVG charts and no script, made from the audit's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rucola.presentation import duration_text, size_text
from rucola.spark.jobs import charts, html_page
from rucola.spark.jobs.charts import Series, number_text
from rucola.spark.jobs.html_page import Column, Row, section, table, tiles, truncated
from rucola.spark.jobs.time_axis import TimeAxis

Tables = Mapping[str, Sequence[Row]]


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
    subtitle = f"{_span(topics)}. Source: {', '.join(sources)}. Times are UTC."
    return html_page.page("Audit of messages", subtitle, _tiles(topics, tables) + "".join(sections))


def _span(topics: Sequence[Row]) -> str:
    if not topics:
        return "There are no messages"
    first, last = min(row["first"] for row in topics), max(row["last"] for row in topics)
    return f"Stored from {_time(first)} to {_time(last)}"


def _tiles(topics: Sequence[Row], tables: Tables) -> str:
    lags = tables["lags"]
    waiting = sum(row["messages"] for row in lags)
    dead = sum(row["messages"] for row in tables["failures"] if row["kind"] == "dead letter")
    retries = sum(row["messages"] for row in tables["failures"] if row["kind"] == "retry")
    values = [
        (number_text(sum(row["messages"] for row in topics)), "messages", False),
        (size_text(sum(row["bytes"] for row in topics)), "in the log", False),
        (number_text(len(topics)), "topics", False),
        # Lakes have no offsets, so nothing is known of their groups.
        (number_text(len({row["group"] for row in lags})) if lags else "unknown", "groups with offsets", False),
        (number_text(waiting) if lags else "unknown", "waiting to be consumed", waiting > 0),
        (number_text(retries), "retries", False),
        (number_text(dead), "dead letters", dead > 0),
        (number_text(sum(row["repeatedIds"] for row in topics)), "repeated ids", False),
    ]
    return tiles(values)


def _traffic(topics: Sequence[Row], axis: TimeAxis, steps: Sequence[Row]) -> str:
    largest = [row["topic"] for row in sorted(topics, key=lambda row: -row["messages"])]

    def chart(value: str, unit: str) -> str:
        values = ((row["topic"], axis.position(row["begin"]), row[value]) for row in steps)
        return charts.stacked(axis.labels, values, unit, names=largest, rest="other topics")

    busiest = max(steps, key=lambda row: row["peakPerSecond"], default=None)
    caption = f"By {axis.unit}, the largest topics first."
    if busiest is not None:
        caption += f" Most in one second: {number_text(busiest['peakPerSecond'])} messages to {busiest['topic']}."
    return section(
        "Messages",
        caption,
        chart("messages", "messages"),
    ) + section(
        "Bytes",
        f"Size of records in the log, by {axis.unit}.",
        chart("bytes", "bytes"),
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
    return section("Topics", "The largest first.", table(topics, columns))


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
    return section(
        "From birth to store",
        f"From the producer's clock to the broker's, for the slowest topic of each {axis.unit}. Delayed and retried "
        f"messages keep their original born timestamp.",
        chart + table(slowest, columns),
    )


def _consumption(rows: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("Group", lambda row: row["group"], False),
        ("Topic", lambda row: row["topic"], False),
        ("Known by", lambda row: row["known"], False),
        ("Messages", lambda row: f"{row['messages']:,}", True),
        *_TIMES,
    ]
    return section(
        "From store to consumption",
        "A store has no consumption times. They are known for consumers that send traces, and estimated for messages "
        "that were retried.",
        table(rows, columns),
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
    return section("Lag", caption, truncated(bars, lambda some: charts.bars(some, 1)))


def _failures(axis: TimeAxis, steps: Sequence[Row]) -> str:
    counts = (
        (f"{row['group']} · {row['kind']}", axis.position(row["begin"]), row["messages"])
        for row in steps
        if row["group"] is not None
    )
    return section(
        "Retries and dead letters",
        f"Messages that a group retried, and those that became dead letters, by {axis.unit}.",
        charts.stacked(axis.labels, counts, "messages", rest="other groups"),
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
    return section("Repeats", "Messages with the msgId or the body of an earlier message.", table(rows, columns))


def _sizes(rows: Sequence[Row]) -> str:
    largest = max((row["upto"] for row in rows), default=0)
    classes, upto = list[int](), min((row["upto"] for row in rows), default=1)
    while upto <= largest:
        classes.append(upto)
        upto *= 2
    values = (("records", classes.index(row["upto"]), row["messages"]) for row in rows)
    chart = charts.stacked([f"≤ {size_text(each)}" for each in classes], values, "")
    return section("Sizes", "Records by their size in the log.", chart)


def _hot_keys(rows: Sequence[Row]) -> str:
    hottest = sorted(rows, key=lambda row: -row["messages"])
    bars = [(f"{row['topic']} · {row['key']}", row["messages"], f"{row['messages']:,}") for row in hottest]
    return section("Hot keys", "The most frequent keys.", truncated(bars, lambda some: charts.bars(some, 2), most=20))


_TIMES: Final[list[Column]] = [
    ("Half within", lambda row: duration_text(row["p50"]), True),
    ("95 %", lambda row: duration_text(row["p95"]), True),
    ("99 %", lambda row: duration_text(row["p99"]), True),
    ("Longest", lambda row: duration_text(row["most"]), True),
]


def _axis(topics: Sequence[Row]) -> TimeAxis:
    if not topics:
        return TimeAxis(0, 0)
    return TimeAxis.between(min(row["first"] for row in topics), max(row["last"] for row in topics))


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
