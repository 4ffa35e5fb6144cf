"""The reports of audit and reconcile: pages that need nothing but themselves, whatever the numbers are."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rucola.presentation import duration_text, size_text
from rucola.spark.jobs import audit, charts, reconcile_report, report
from rucola.spark.jobs.audit import TABLES
from rucola.spark.jobs.charts import Series
from rucola.spark.jobs.reconcile import EXAMPLES, LISTS
from rucola.spark.jobs.time_axis import MOST_STEPS, TimeAxis
from rucola.spark.session import LazySession
from support.small_store import SmallStore

BEGIN = datetime(2023, 11, 15, 22, tzinfo=UTC)
NOTHING: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}


class Page(HTMLParser):
    """The tags and attributes of a page, and whether each that was opened was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def tables(hours: int, topics: int) -> dict[str, list[dict[str, Any]]]:
    """Tables with this much in them, some of it hostile."""
    names = [f"Topic{n}" for n in range(topics)]
    retries = {f"%RETRY%g{n}": n for n in range(1, 12)}
    times = {"p50": 3, "p95": 40, "p99": 2500, "most": 90_000_000}
    span = {"first": BEGIN, "last": BEGIN + timedelta(hours=hours - 1)}
    steps = TimeAxis.between(span["first"], span["last"])
    step = timedelta(milliseconds=steps.step_ms)
    return {
        "topics": [
            {"topic": name, "kind": "message", "queues": 4, "messages": 10 * hours, "bytes": 5000 * hours, **times}
            | {"averageSize": 500.0, "largestSize": 900, "repeatedIds": 1, "repeatedBodies": 2, **span}
            for name in names
        ]
        + [
            {"topic": name, "kind": "retry", "queues": 1, "messages": count, "bytes": 9, **times}
            | {"averageSize": 1.0, "largestSize": 1, "repeatedIds": 0, "repeatedBodies": 0, **span}
            for name, count in retries.items()
        ],
        "hours": [],  # not drawn
        "timeline": [
            {"topic": name, "kind": "message", "group": None, "begin": BEGIN.replace(hour=0 if step.days else 22)}
            | {"messages": 10 * hours, "bytes": 5000 * hours, "peakPerSecond": 7, **times}
            for name in names
        ]
        + [
            {"topic": name, "kind": "retry", "group": f"g{count}", "begin": BEGIN, "messages": count, "bytes": 9}
            | {"peakPerSecond": 1, **times}
            for name, count in retries.items()
        ],
        "failures": [
            {"group": f"g{n}", "kind": "retry", "originTopic": "T", "hour": BEGIN, "messages": n, "mostTries": 1}
            for n in range(1, 12)
        ],
        "sizes": [
            {"topic": "T", "upto": 256, "messages": 5, "bytes": 900},
            {"topic": "T", "upto": 4096, "messages": 1},
        ],
        "hot_keys": [{"topic": "T", "key": "<script>alert('é')</script>", "messages": 9, "rank": 1}],
        "consumption": [{"group": "g", "topic": "T", "known": "trace", "messages": 3, **times}],
        "lags": [
            {"group": "g", "topic": "T", "queueId": q, "messages": q, "bytes": 9, "waitingMs": 70} for q in range(3)
        ],
    }


@pytest.mark.parametrize("content", [NOTHING, tables(1, 1), tables(50, 12), tables(500, 60)])
def test_a_report_page_needs_no_other_file(content: dict[str, list[dict[str, Any]]]) -> None:
    check_self_contained(report.page(["/store & more"], content))


def check_self_contained(text: str) -> None:
    """Fail unless a page loads nothing, is escaped and draws inside its pictures."""
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not [(name, value) for name, value in page.attributes if name in ("src", "href") or name.startswith("on")]
    assert "http" not in text
    assert "/store &amp; more" in text
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        box = ElementTree.fromstring(drawing)
        _, _, width, height = map(float, box.attrib["viewBox"].split())
        for mark in box.iter("rect"):
            x, y, w, h = (float(mark.attrib[name]) for name in ("x", "y", "width", "height"))
            assert 0 <= x <= x + w <= width + 0.1
            assert 0 <= y <= y + h <= height + 0.1


def test_charts_show_the_counted_numbers() -> None:
    text = report.page(["s"], tables(50, 12))
    assert "Stored from 2023-11-15 22:00:00 to 2023-11-17 23:00:00" in text
    assert "15 Nov 22:00 · Topic0: 500 messages" in text
    assert "15 Nov 22:00 · other topics: 2,566 messages" in text  # seven have colours of their own
    assert "15 Nov 22:00 · g11 · retry: 11 messages" in text
    assert "&lt;script&gt;alert(&#x27;é&#x27;)&lt;/script&gt;" in text
    assert "g · T: 3 · 27 B · 70 ms" in text
    assert "≤ 512 B" in text  # between the classes that have records
    assert '<td class="number">1 d</td>' in text
    # A log of months is drawn by day, and of many topics the largest are listed.
    text = report.page(["s"], tables(2000, 60))
    assert "15 Nov 2023 · Topic0: 20k messages" in text
    assert "And 21 more." in text
    assert "There are no messages" in report.page(["s"], NOTHING)


def reconciled(days: int, groups: int) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]]]:
    """Counts and oldest messages of a reconciliation with this much in it, some of it hostile."""
    span = [date(2023, 11, 15) + timedelta(days=number) for number in range(days)]
    counted = {"messages": 30, "oldestMs": 7_200_000}
    counts = [
        {"list": name, "topic": None if name == "without_stub" else "T", "group": f"<g{group}>", "day": day, **counted}
        | {"status": None if name == "without_stub" else "SENT"}
        for name in LISTS
        for group in range(groups)
        for day in span
    ]
    found: dict[str, list[dict[str, Any]]] = {
        "counts": counts,
        "stubs": [
            {"topic": "T", "status": status, "day": day, **counted} for day in span for status in ("SENT", "VOID")
        ],
        "decisions": [{"decision": "RESEND", "messages": 12_345}] * bool(days),
        "unknown": [{"list": "never_stored", "reason": "expired", "messages": 7}] * bool(days),
    }
    row = {
        "messageId": "<b>ID</b>",
        "topic": "T",
        "brokerName": "b",
        "queueId": 3,
        "queueOffset": None,
        "ageMs": 90_000,
    }
    reasons = {"resend": "why", "never_stored": "reason", "never_received": "state", "without_stub": "kind"}
    examples = {name: [{**row, reasons[name]: f"because of {name}"}] * (EXAMPLES * bool(days)) for name in LISTS}
    return found, examples


@pytest.mark.parametrize("content", [reconciled(0, 0), reconciled(1, 1), reconciled(200, 12)])
def test_page_of_a_reconciliation_needs_no_other_file(content: tuple[Any, Any]) -> None:
    check_self_contained(reconcile_report.page(["/store & more"], 1_700_000_000_000, *content))


def test_page_of_a_reconciliation_shows_counts_and_oldest_messages() -> None:
    text = reconcile_report.page(["s"], 1_700_000_000_000, *reconciled(200, 12))
    assert "Stubs as of 2023-11-14 22:13:20" in text
    assert "01 Jun 2024 · &lt;g0&gt;: 30 messages" in text
    assert "01 Jun 2024 · others: 150 messages" in text  # seven have colours of their own
    assert "15 Nov 2023" not in text  # the latest days are drawn
    assert "RESEND: 12,345" in text
    assert "&lt;b&gt;ID&lt;/b&gt;" in text
    for name in LISTS:
        assert f"because of {name}" in text
        assert f"And {200 * 12 * 30 - EXAMPLES:,} more, in {name}/." in text
    assert "b, queue 3, offset ?" in text
    assert "expired" in text
    assert "None." in reconcile_report.page(["s"], 0, *reconciled(0, 0))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (9500, "9,500"), (12_345, "12.3k"), (1_250_000, "1.25M"), (2e9, "2G"), (0.25, "0.25")],
)
def test_numbers_are_abbreviated(value: float, text: str) -> None:
    assert charts.number_text(value) == text


def test_sizes_and_durations_have_units() -> None:
    assert [size_text(size) for size in (0, 1023, 1536, 5 << 20, 3 << 40)] == [
        "0 B", "1,023 B", "1.5 KiB", "5 MiB", "3 TiB",
    ]  # fmt: skip
    assert [duration_text(ms) for ms in (None, 0, 999, 1500, 90_000, 7_200_000, -2000)] == [
        "-", "0 s", "999 ms", "1.5 s", "1.5 min", "2 h", "-2 s",
    ]  # fmt: skip


def test_an_axis_reaches_the_largest_value() -> None:
    for most in (1, 7, 10, 99, 100, 101, 123_456, 0.03):
        drawing = charts.columns(["a"], [Series("s", [most])], "x")
        ticks = re.findall(r'class="tick">([^<]*)<', drawing)
        assert 3 <= len(ticks) <= 6
        (height,) = (float(h) for h in re.findall(r'height="([0-9.]+)" rx', drawing))
        assert charts.HEIGHT / 3 < height <= charts.HEIGHT - 46


SPANS = [
    (30, "second", 31, "23:59:50"),
    (2 * 3600, "2 minutes", 61, "15 Nov 23:58"),
    (3 * 86_400, "hour", 73, "15 Nov 23:00"),
    (90 * 86_400, "day", 91, "15 Nov 2023"),
    (5 * 365 * 86_400, "week", 262, "09 Nov 2023"),
]


@pytest.mark.parametrize(("seconds", "unit", "steps", "first"), SPANS)
def test_the_unit_of_a_time_chart_fits_the_span(
    seconds: int, unit: str, steps: int, first: str, small_store: SmallStore, tmp_path: Path
) -> None:
    """Across midnight, so that seconds and minutes are labelled with their day as well."""
    begin = datetime(2023, 11, 15, 23, 59, 50, tzinfo=UTC)
    for number in range(61):
        small_store.put(at_ms=int((begin.timestamp() + seconds * number / 60) * 1000))
    audit.run(LazySession("tests", use_spark=False), [small_store.path], tmp_path / "audit")
    text = (tmp_path / "audit" / "report.html").read_text()
    chart = re.findall(r"<svg.*?</svg>", text, re.DOTALL)[0]
    assert f"By {unit}, the largest topics first." in text
    assert steps <= MOST_STEPS or unit == "week"
    labels = TimeAxis(int(begin.timestamp() * 1000), int((begin.timestamp() + seconds) * 1000)).labels
    assert len(labels) == steps
    assert labels[0].endswith(first)
    assert f"{labels[0]} · T:" in chart
    assert f"{labels[-1]} · T:" in chart
    counted = sum(int(count) for count in re.findall(r" · T: ([0-9]+) messages", chart))
    assert counted == 61
    shown = re.findall(r'class="label">([^<]*)<', chart)
    assert 2 <= len(shown) <= 20


def test_one_day_is_labelled_without_the_date() -> None:
    noon = int(datetime(2023, 11, 15, 12, tzinfo=UTC).timestamp() * 1000)
    assert TimeAxis(noon, noon + 2_500).labels == ["12:00:00", "12:00:01", "12:00:02"]
    assert TimeAxis(noon, noon + 5_400_000).labels[:2] == ["12:00", "12:01"]
    assert TimeAxis(noon, noon).unit == "second"


def test_without_offsets_what_groups_have_consumed_is_unknown(small_store: SmallStore, tmp_path: Path) -> None:
    """As in a lake; 0 would say that everything is consumed."""
    small_store.put()
    audit.run(LazySession("tests", use_spark=False), [small_store.path], tmp_path / "audit")
    text = (tmp_path / "audit" / "report.html").read_text()
    for name in ("groups with offsets", "waiting to be consumed"):
        assert re.search(rf"unknown(<[^>]*>|\s)*{name}", text), name
