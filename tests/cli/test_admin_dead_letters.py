"""Commands of `rucola admin` about dead letters, of the golden store and of the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from rucola.client import Message, sync
from support.golden_cluster import GoldenCluster

pytestmark = pytest.mark.usefixtures("_utc")


def bury(cluster: GoldenCluster, group: str, count: int) -> None:
    """Give a group dead letters of topic GB, and one without an original topic."""
    topic = f"%DLQ%{group}"
    cluster.done(f"updateTopic -c DefaultCluster -t {topic} -r 1 -w 1")
    with sync.Producer("buries", cluster.namesrv) as producer:
        for number in range(count):
            letter = Message(topic, b"\xff%d" % number, keys=f"{group}-{number}", properties={"RETRY_TOPIC": "GB"})
            producer.send(letter)
        producer.send(Message(topic, b"lost"))


def test_dead_letters_of_the_golden_store_are_listed(cluster: GoldenCluster) -> None:
    """Apache's broker has stored them."""
    found = cluster.json("dlqList")
    assert [group["group"] for group in found if group["count"]] != []
    for group in found:
        letters = cluster.done(f"printDlq -g {group['group']} --json").splitlines()
        assert len(letters) == group["count"] == group["waiting"]
        assert cluster.json(f"dlqList -g {group['group']}") == [group]
    header, *rows = cluster.rows("dlqList")
    assert header == ["#Group", "#Count", "#Waiting", "#Oldest", "#Newest"]
    assert [row[0] for row in rows] == [group["group"] for group in found]


def test_dead_letters_are_listed_shown_and_redriven(cluster: GoldenCluster, tmp_path: Path) -> None:
    bury(cluster, "D", 3)
    header, *rows = cluster.rows("printDlq -g D")
    assert header[:3] == ["#Offset", "Message", "ID"]
    assert [row[1] for row in rows[:3]] == ["GB", "GB", "GB"]

    would = cluster.admin("redriveDlq -g D --dryRun")
    assert would.exit_code == 1, "one of them cannot go"
    assert [line.split() for line in would.stdout.splitlines()] == [["#Topic", "#Would", "Send"], ["GB", "3"]]
    refused = cluster.admin("redriveDlq -g D", "n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert cluster.json("dlqList -g D")[0]["waiting"] == 4
    nothing = cluster.admin("redriveDlq -g D -e 1000")
    assert (nothing.exit_code, nothing.stdout, "[y/N]" in nothing.stderr) == (0, "", False)

    first = cluster.admin(f"redriveDlq -g D -i {rows[1][0]} --yes --json")
    (result,) = map(json.loads, first.stdout.splitlines())
    assert (result["status"], result["topic"], result["offsetMsgId"]) == ("SENT", "GB", rows[1][0])
    assert len(cluster.done("printDlq -g D --json").splitlines()) == 3
    shown = [json.loads(line) for line in cluster.done("printDlq -g D -a --json").splitlines()]
    assert [letter["redriven"] for letter in shown] == [False, True, False, False]

    rest = cluster.admin("redriveDlq -g D -s 1000 --yes")
    assert rest.exit_code == 1
    assert rest.stdout.split() == ["#Topic", "#Sent", "GB", "2"]
    failed, summary = rest.stderr.splitlines()
    assert "RETRY_TOPIC" in failed
    assert summary == "1 re-driven before, 1 failed"
    for number in range(3):
        assert len(cluster.json(f"queryMsgByKey -t GB -k D-{number}")["messages"]) == 1


def test_dead_letters_are_exported(cluster: GoldenCluster, tmp_path: Path) -> None:
    bury(cluster, "X", 2)
    lines, parquet = tmp_path / "x.jsonl", tmp_path / "x.parquet"
    assert cluster.json(f"exportDlq -g X -o {lines}")["count"] == 3
    assert cluster.rows(f"exportDlq -g X -o {parquet} -f parquet")[0][:2] == ["3", "dead"]
    letters = [json.loads(line) for line in lines.read_text().splitlines()]
    assert letters == [json.loads(line) for line in cluster.done("printDlq -g X --json").splitlines()]
    rows = pyarrow.parquet.read_table(parquet).to_pylist()
    assert [row["body"] for row in rows] == [b"\xff0", b"\xff1", b"lost"]
    for row, letter in zip(rows, letters, strict=True):
        assert dict(row["properties"]) == letter["properties"]
        assert row["storeTimestamp"].timestamp() * 1000 == pytest.approx(letter["storeTimestamp"], abs=0.5)
        for name in ("topic", "msgId", "offsetMsgId", "queueOffset", "originTopic", "redriven"):
            assert row[name] == letter[name]
    cluster.admin("redriveDlq -g X --yes")
    assert cluster.json(f"exportDlq -g X -o {lines}")["count"] == 1
    assert cluster.json(f"exportDlq -g X -o {lines} -a")["count"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.jsonl", "x.parquet"]


def test_an_unwritable_export_file_is_an_error(cluster: GoldenCluster, tmp_path: Path) -> None:
    bury(cluster, "F", 0)
    result = cluster.admin(f"exportDlq -g F -o {tmp_path}/nowhere/file")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "nowhere/file cannot be written" in result.stderr
