"""The audit job: its tables against counts made message by message, and the page as something to read."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from click.testing import CliRunner

from rucola.cli.main import main
from rucola.fastjson import dumps_pretty
from rucola.fastjson import loads as load_fastjson
from rucola.message.topics import is_system_topic
from rucola.spark.jobs import archive, audit
from rucola.spark.jobs.selection import Selection
from rucola.spark.jobs.time_axis import TimeAxis
from rucola.spark.session import LazySession
from support.small_store import SmallStore

HOUR_MS = 3_600_000
HERE = LazySession("tests", use_spark=False)  # Spark's tables are compared with these in test_without_spark
MIDNIGHT_MS = 1_700_006_400_000  # 2023-11-15 00:00 UTC


def rows(audited: audit.AuditResult, table: str, *columns: str) -> list[Any]:
    """Some columns of a table, in its order."""
    found = [tuple(row[name] for name in columns) for row in audited.tables[table].to_pylist()]
    return [each[0] for each in found] if len(columns) == 1 else found


def test_a_golden_store_is_counted(golden: Path, tmp_path: Path) -> None:
    store = golden / "g1-clean" / "store"
    lines = (golden / "g1-clean" / "expected.jsonl").read_text().splitlines()
    messages = [row for row in map(json.loads, lines) if not is_system_topic(row["topic"])]
    found = audit.run(HERE, [store], tmp_path / "out", delay_levels="1s")
    by_topic: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for message in messages:
        by_topic[message["topic"]].append(message)
    assert found.messages == len(messages)
    assert rows(found, "topics", "topic", "messages", "bytes", "most") == [
        (
            topic,
            len(each),
            sum(row["storeSize"] for row in each),
            max(row["storeTimestamp"] - row["bornTimestamp"] for row in each),
        )
        for topic, each in sorted(by_topic.items())
    ]
    per_hour = Counter((row["storeTimestamp"] // HOUR_MS, row["topic"]) for row in messages)
    assert [
        (int(hour.timestamp() * 1000) // HOUR_MS, topic, count)
        for hour, topic, count in rows(found, "hours", "hour", "topic", "messages")
    ] == [(hour, topic, count) for (hour, topic), count in sorted(per_hour.items())]
    per_second = Counter((row["topic"], row["storeTimestamp"] // 1000) for row in messages)
    for topic, peak in rows(found, "hours", "topic", "peakPerSecond"):
        assert peak == max(count for (name, _), count in per_second.items() if name == topic)
    step_ms = TimeAxis(*(each(row["storeTimestamp"] for row in messages) for each in (min, max))).step_ms
    per_step = Counter((row["storeTimestamp"] // step_ms, row["topic"]) for row in messages)
    assert [
        (int(begin.timestamp() * 1000) // step_ms, topic, count)
        for begin, topic, count in rows(found, "timeline", "begin", "topic", "messages")
    ] == [(step, topic, count) for (step, topic), count in sorted(per_step.items())]
    failed = {(topic, kind, group) for topic, kind, group in rows(found, "timeline", "topic", "kind", "group") if group}
    assert failed == {
        ("%DLQ%G_g_retry", "dead letter", "G_g_retry"),
        ("%RETRY%G_g_retry", "retry", "G_g_retry"),
    }
    assert rows(found, "failures", "group", "kind", "originTopic", "messages", "mostTries") == [
        ("G_g_retry", "dead letter", "GRetry", 2, 3),
        ("G_g_retry", "retry", "GRetry", 4, 2),
    ]
    classes = Counter((row["topic"], 1 << (row["storeSize"] - 1).bit_length()) for row in messages)
    assert {(topic, upto): n for topic, upto, n in rows(found, "sizes", "topic", "upto", "messages")} == classes
    keys = Counter(("GA", key) for row in by_topic["GA"] for key in set(row["properties"].get("KEYS", "").split()))
    hottest = [(key, n) for topic, key, n in rows(found, "hot_keys", "topic", "key", "messages") if topic == "GA"]
    assert len(hottest) == audit.HOT_KEYS
    assert [n for _, n in hottest] == sorted((n for n in keys.values()), reverse=True)[: audit.HOT_KEYS]
    assert all(keys["GA", key] == n for key, n in hottest)
    # The consumer failed both messages at once; the retries were stored a second later.
    assert rows(found, "consumption", "group", "topic", "known", "messages") == [("G_g_retry", "GRetry", "retried", 2)]
    assert 0 < rows(found, "consumption", "most")[0] < 1000
    committed = load_fastjson((store / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    ends = Counter((row["topic"], row["queueId"]) for row in messages)
    waiting = {}
    for name, offsets in committed.items():
        topic, group = name.split("@")
        for queue_id, offset in offsets.items():
            if not is_system_topic(topic):
                waiting[group, topic, int(queue_id)] = ends[topic, int(queue_id)] - offset
    assert {
        (group, topic, queue_id): count
        for group, topic, queue_id, count in rows(found, "lags", "group", "topic", "queueId", "messages")
    } == waiting
    # What was written is what was found.
    for name, table in found.tables.items():
        assert pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() == table.to_pylist()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<td>GSpam</td>" in page
    assert "G_g_retry · dead letter" in page


def test_repeats_traces_and_lag_of_a_small_store_are_counted(small_store: SmallStore, tmp_path: Path) -> None:
    def put(topic: str, at_ms: int, **given: Any) -> int:
        return small_store.put(topic, at_ms=MIDNIGHT_MS + at_ms, **given)

    put("T", 0, UNIQ_KEY="a", KEYS="é <b>", body=b"same")
    put("T", 1000, UNIQ_KEY="a", KEYS="é", body=b"same")
    put("T", HOUR_MS, UNIQ_KEY="b", KEYS="é", body=b"other")
    put("%RETRY%g", HOUR_MS + 11_500, UNIQ_KEY="b", RETRY_TOPIC="T", body=b"other")
    put("%RETRY%g", HOUR_MS + 19_000, UNIQ_KEY="b", RETRY_TOPIC="T", body=b"other")
    line = "\x01".join(["SubBefore", str(MIDNIGHT_MS + 250), "region", "gé", "request", "a", "0", "é"])
    again = line.replace("\x010\x01é", "\x011\x01é")  # a second try is no first consumption
    put("RMQ_SYS_TRACE_TOPIC", 300, body=f"Pub\x01x\x02{line}\x02{again}\x02".encode())
    (small_store.path / "config").mkdir()
    offsets = {"T@g": {"0": 1}, "T@done": {"0": 3}, "Gone@g": {"0": 7}, "RMQ_SYS_TRACE_TOPIC@x": {"0": 0}}
    (small_store.path / "config" / "consumerOffset.json").write_text(dumps_pretty({"offsetTable": offsets}))
    archive.run(HERE, small_store.path, tmp_path / "lake")

    found = audit.run(HERE, [small_store.path])
    assert rows(found, "topics", "topic", "messages", "repeatedIds", "repeatedBodies") == [
        ("%RETRY%g", 2, 0, 0),
        ("T", 3, 1, 1),
    ]
    assert rows(found, "hours", "topic", "hour", "messages") == [
        ("T", datetime(2023, 11, 15, 0, tzinfo=UTC), 2),
        ("%RETRY%g", datetime(2023, 11, 15, 1, tzinfo=UTC), 2),
        ("T", datetime(2023, 11, 15, 1, tzinfo=UTC), 1),
    ]
    assert rows(found, "hot_keys", "topic", "key", "messages") == [("T", "é", 3)]
    # Both messages with this id were stored before it was consumed.
    assert rows(found, "consumption", "group", "topic", "known", "messages", "most") == [("gé", "T", "trace", 2, 250)]
    lags = rows(found, "lags", "group", "topic", "committed", "end", "messages", "waitingMs")
    assert lags == [
        ("done", "T", 3, 3, 0, 0),
        ("g", "Gone", 7, 7, 0, 0),
        ("g", "T", 1, 3, 2, HOUR_MS + 18_000),
    ]
    of_lake = audit.run(HERE, [tmp_path / "lake"])
    for table in ("topics", "hours", "timeline", "failures", "sizes", "hot_keys"):
        assert of_lake.tables[table].to_pylist() == found.tables[table].to_pylist()
    assert of_lake.tables["lags"].num_rows == 0
    first = audit.run(HERE, [small_store.path], selection=Selection(("T",), ending_timestamp=MIDNIGHT_MS + 1))
    assert first.messages == 1


def test_the_command_prints_a_table_or_json(small_store: SmallStore, tmp_path: Path) -> None:
    small_store.put("T")
    arguments = ["pipeline", "audit", "--from", str(small_store.path)]
    plain = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out")])
    assert plain.exit_code == 0, plain.output
    assert plain.stdout.splitlines()[1].split()[:2] == ["T", "1"]
    assert plain.stdout.splitlines()[-1] == f"1 messages audited; the report is {tmp_path / 'out' / 'report.html'}"
    as_json = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert as_json["messages"] == 1
    assert [row["topic"] for row in as_json["topics"]] == ["T"]
