"""Report of a reconciliation: a self-contained HTML page, made from the counts and the oldest messages of each list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from rucola.presentation import duration_text
from rucola.reliable.schema import CONFIRMED, STATUSES, VOID
from rucola.spark.jobs import charts, html_page
from rucola.spark.jobs.charts import number_text
from rucola.spark.jobs.html_page import Column, Row, section, table, tiles, truncated

TITLES: Final = {
    "resend": "To be sent",
    "never_stored": "Sent, but never stored",
    "never_received": "Stored, but never received",
    "without_stub": "Without a stub",
}

_CAPTIONS: Final = {
    "resend": "Messages that a relay sends at its next check: new ones, and those that a group can no longer receive.",
    "never_stored": "A broker answered with a position, and neither log nor archive has a message with the id.",
    "never_received": "In the log, with neither receipt nor effect of a group that has to confirm. The group will not "
    "receive a message that its offset has passed; the others wait in its backlog.",
    "without_stub": "Effects and messages without a stub, for example sent by a program that does not use the outbox.",
}
_MOST_DAYS: Final = 120


def page(
    sources: Sequence[str], read_at_ms: int, found: Mapping[str, Sequence[Row]], examples: Mapping[str, Sequence[Row]]
) -> str:
    """Return the HTML report of a reconciliation with these sources."""
    counts, stubs = found["counts"], found["stubs"]
    sections = [
        _stubs(stubs),
        _decisions(found["decisions"]),
        *(_list(name, [row for row in counts if row["list"] == name], examples[name]) for name in TITLES),
        _unknown(found["unknown"]),
    ]
    read_at = datetime.fromtimestamp(read_at_ms / 1000, UTC)
    subtitle = f"Stubs as of {read_at:%Y-%m-%d %H:%M:%S}. Compared with {', '.join(sources)}. Times are UTC."
    return html_page.page("Reconciliation of stubs", subtitle, _tiles(counts, stubs) + "".join(sections))


def _tiles(counts: Sequence[Row], stubs: Sequence[Row]) -> str:
    waiting = [row for row in stubs if row["status"] not in (CONFIRMED, VOID)]
    values = [
        (number_text(_total(stubs)), "stubs", False),
        (number_text(_total(waiting)), "not confirmed", False),
        (duration_text(max((row["oldestMs"] for row in waiting), default=None)), "oldest of them", False),
    ]
    for name, title in TITLES.items():
        count = _total([row for row in counts if row["list"] == name])
        values.append((number_text(count), title.lower(), count > 0 and name != "resend"))
    return tiles(values)


def _stubs(rows: Sequence[Row]) -> str:
    statuses = [status for status in STATUSES if any(row["status"] == status for row in rows)]
    return section(
        "Stubs",
        "By status and the day on which they were added.",
        _by_day(rows, "status", statuses) + _by_topic(rows),
    )


def _decisions(rows: Sequence[Row]) -> str:
    bars = [(row["decision"], row["messages"], f"{row['messages']:,}") for row in rows]
    return section(
        "Due stubs",
        "The decision of a relay that checked them now.",
        truncated(bars, lambda some: charts.bars(some, 1)),
    )


def _list(name: str, counts: Sequence[Row], examples: Sequence[Row]) -> str:
    groups = sorted({row["group"] or row["topic"] or "unknown topic" for row in counts})
    shown = [{**row, "name": row["group"] or row["topic"] or "unknown topic"} for row in counts]
    columns: list[Column] = [
        ("Message", lambda row: row["messageId"], False),
        ("Topic", lambda row: row["topic"] or "–", False),
        ("Group", lambda row: row.get("group") or (row.get("awaiting") or "").strip(",") or "–", False),
        ("Position", _position, False),
        ("Why", lambda row: row.get("why") or row.get("reason") or row.get("state") or row.get("kind") or "", False),
        ("Age", lambda row: duration_text(row["ageMs"]), True),
    ]
    content = charts.no_data()
    if counts:
        content = _by_day(shown, "name", groups) + _by_topic(counts) + table(examples, columns)
        omitted = _total(counts) - len(examples)
        if omitted > 0:
            content += f'<p class="more">And {omitted:,} more, in {name}/.</p>'
    return section(TITLES[name], _CAPTIONS[name], content)


def _unknown(rows: Sequence[Row]) -> str:
    columns: list[Column] = [
        ("List", lambda row: TITLES[row["list"]], False),
        ("Reason", lambda row: row["reason"], False),
        ("Messages", lambda row: f"{row['messages']:,}", True),
    ]
    caption = (
        "Neither listed nor excluded: the position is below the first offset of its queue (expired), no source has the "
        "queue (not covered), or the stub may have been purged."
    )
    return section("Unknown", caption, table(rows, columns))


def _by_topic(rows: Sequence[Row]) -> str:
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in rows:
        key = row["topic"] or "–", row.get("group") or "–", row["status"] or "–"
        messages, oldest = found.get(key, (0, 0))
        found[key] = messages + row["messages"], max(oldest, row["oldestMs"])
    lines = [
        {"topic": topic, "group": group, "status": status, "messages": messages, "oldestMs": oldest}
        for (topic, group, status), (messages, oldest) in sorted(found.items(), key=lambda item: -item[1][0])
    ]
    columns: list[Column] = [
        ("Topic", lambda row: row["topic"], False),
        ("Group", lambda row: row["group"], False),
        ("Status", lambda row: row["status"], False),
        ("Messages", lambda row: f"{row['messages']:,}", True),
        ("Oldest", lambda row: duration_text(row["oldestMs"]), True),
    ]
    return table(lines, columns)


def _by_day(rows: Sequence[Row], name: str, names: Sequence[str]) -> str:
    if not rows:
        return charts.no_data()
    last: date = max(row["day"] for row in rows)
    first = max(min(row["day"] for row in rows), last - timedelta(days=_MOST_DAYS - 1))
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    values = ((row[name], (row["day"] - first).days, row["messages"]) for row in rows if row["day"] >= first)
    return charts.stacked([f"{day:%d %b %Y}" for day in days], values, "messages", names=names)


def _position(row: Row) -> str:
    if row.get("brokerName") is None:
        return "–"
    offset: Any = "?" if row["queueOffset"] is None else row["queueOffset"]
    return f"{row['brokerName']}, queue {row['queueId']}, offset {offset}"


def _total(rows: Sequence[Row]) -> int:
    return sum(row["messages"] for row in rows)
