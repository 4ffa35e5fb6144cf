"""The audit log: lines, rotation, floods and failures."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from rucola.access import Action, Caller, Resource
from rucola.acl.audit_log import DENIED_PER_WINDOW, DENIED_WINDOW_MS, MAX_TEXT, AuditLog
from rucola.acl.principal import Principal
from rucola.errors import ConfigError
from rucola.protocol.codes import RequestCode
from support.errors import raises

ALICE = Caller("10.0.0.7:51234", Principal("alice"), "CN=alice,O=Example")


class Clock:
    now_ms = 1_772_360_100_123

    def __call__(self) -> int:
        return self.now_ms


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_what_from_where_and_how_it_ended(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit" / "audit.jsonl", 1 << 20, 3, Clock())
    audit.open()
    resources = [Resource("Orders", "g"), Resource("Orders", producer_group="p")]
    audit.record(ALICE, RequestCode.DELETE_TOPIC_IN_BROKER, Action.DELETE_TOPIC, resources, "done")
    audit.close()
    path = tmp_path / "audit" / "audit.jsonl"
    assert lines_of(path) == [
        {
            "time": "2026-03-01T10:15:00.123Z", "user": "alice", "certificate": "CN=alice,O=Example",
            "address": "10.0.0.7:51234", "request": "DELETE_TOPIC_IN_BROKER 215", "action": "DELETE_TOPIC",
            "topics": ["Orders"], "groups": ["g", "p"], "outcome": "done", "reason": "",
        }
    ]  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_texts_of_peers_are_bounded_and_stay_in_one_line(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl", 1 << 20, 3, Clock())
    audit.open()
    resources = [Resource(f"topic {number}\n\x1b[2J" + "x" * 10_000) for number in range(1000)]
    audit.record(ALICE, 9999, Action.ALTER_TOPIC, resources, "failed", "y" * 10_000)
    audit.close()
    text = (tmp_path / "audit.jsonl").read_text()
    (line,) = lines_of(tmp_path / "audit.jsonl")
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert len(str(line["reason"])) == MAX_TEXT
    assert len(text) < 20 * MAX_TEXT


def test_files_are_rotated_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl", 1000, 3, Clock())
    audit.open()
    for number in range(40):
        audit.record(ALICE, 17, Action.ALTER_TOPIC, [Resource(f"T{number}")], "done")
    audit.close()
    names = ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert all(0 < (tmp_path / name).stat().st_size <= 1000 for name in names)
    topics = [line["topics"] for name in names for line in lines_of(tmp_path / name)]
    assert topics == [[f"T{number}"] for number in range(40 - len(topics), 40)]


def test_a_flood_of_denied_requests_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    audit = AuditLog(tmp_path / "audit.jsonl", 1 << 20, 3, clock)
    audit.open()
    for _ in range(10_000):
        audit.denied(Caller("10.0.0.9:1"), 310, Action.PUBLISH, [Resource("T")], "no")
    audit.denied(ALICE, 310, Action.PUBLISH, [Resource("T")], "no")
    clock.now_ms += DENIED_WINDOW_MS
    audit.denied(Caller("10.0.0.9:1"), 310, Action.PUBLISH, [Resource("T")], "no")
    audit.close()
    lines = lines_of(tmp_path / "audit.jsonl")
    assert len(lines) == DENIED_PER_WINDOW + 3
    assert [line["suppressed"] for line in lines if "suppressed" in line] == [10_000 - DENIED_PER_WINDOW]


def test_a_full_queue_drops_lines_and_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.acl.audit_log.MAX_QUEUED", 5)
    audit = AuditLog(tmp_path / "audit.jsonl", 1 << 20, 3, Clock())  # not opened: nothing takes lines
    for _ in range(8):
        audit.record(ALICE, 17, Action.ALTER_TOPIC, [], "done")
    assert audit.dropped == 3


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(ConfigError, subject="auditLogPath"):
        AuditLog(tmp_path / "file" / "audit.jsonl", 1 << 20, 3, Clock()).open()


def test_a_disk_that_fails_later_loses_lines_and_not_the_log(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    audit = AuditLog(directory / "audit.jsonl", 1 << 20, 3, Clock())
    audit.open()
    (directory / "audit.jsonl").unlink()
    directory.rmdir()
    audit.record(ALICE, 17, Action.ALTER_TOPIC, [], "done")
    audit.close()
    assert audit.dropped == 1
