"""docs/backup.md, followed with a broker under load and a ledger of what was acknowledged."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rucola.client import Message
from rucola.client.sync import Producer, PushConsumer
from rucola.store.tools.check import check
from support.documents import Document
from support.ledger import Ledger
from support.servers import RUCOLA, Server, run_here, server

PAGE = Document.read("docs/backup.md").sections()
FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")
SMALL = "mappedFileSizeCommitLog=65536\nmaxHashSlotNum=100\nmaxIndexNum=400\nmappedFileSizeConsumeQueue=2000\n"


@contextmanager
def standalone(path: Path, store: str, extra: str = "") -> Iterator[Server]:
    conf = path / f"{store}.conf"
    conf.write_text(SMALL + extra)
    with server("standalone", "--store", path / store, *FREE_PORTS, "-c", conf, log=path / f"{store}.log") as running:
        running.addresses()
        yield running


def consumed(namesrv: str, group: str, wanted: set[bytes]) -> list[bytes]:
    """The bodies that a group gets, until it has all that are wanted."""
    found: list[bytes] = []
    with PushConsumer(group, namesrv) as consumer:
        consumer.subscribe("T")
        for message in consumer.messages(idle_timeout_ms=10_000):
            found.append(message.body.rstrip())
            if wanted <= set(found):
                break
    return found


def follow(section: str, path: Path) -> None:
    """Run the commands of a section, each of which succeeds."""
    commands = [line[2:] for text in PAGE[section].texts("console") for line in text.splitlines() if line[:2] == "$ "]
    assert commands
    for command in commands:
        words = shlex.split(command)
        program = [*RUCOLA, *words[1:]] if words[0] == "rucola" else ["bash", "-c", command]
        done = subprocess.run(program, cwd=path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["backup", "copy"])
def test_a_copy_made_under_load_has_what_was_acknowledged_before(tmp_path: Path, way: str) -> None:
    with standalone(tmp_path, "data") as running:
        namesrv, _ = running.addresses()
        ledger = Ledger(namesrv, 100)
        try:
            ledger.grows(500)
            seen = consumed(namesrv, "readers", set(ledger.acknowledged[:200]))
            if way == "backup":
                follow("Back up", tmp_path)
                ledger.grows(500)
                before = set(ledger.acknowledged)
                follow("Back up", tmp_path)
            else:
                before = set(ledger.acknowledged)
                follow("With cp, rsync or a snapshot", tmp_path)
            ledger.grows(100)
            running.process.kill()
        finally:
            ledger.stop()
    if way == "backup":
        follow("Restore", tmp_path)
    restored = "restored" if way == "backup" else "copy"
    with standalone(tmp_path, restored, "brokerName=another\n") as running:
        namesrv, _ = running.addresses()
        everything = consumed(namesrv, "others", before)
        assert len(everything) == len(set(everything))
        assert "another" in run_here("admin", "clusterList", "-n", namesrv).stdout
        key = run_here("admin", "queryMsgByKey", "-n", namesrv, "-t", "T", "-k", "k7").stdout
        assert len(key.splitlines()) == 2, "a heading and the message"
        # The group goes on where it was, within the interval of its offsets.
        rest = consumed(namesrv, "readers", before - set(seen))
        assert set(rest) | set(seen) >= before
        assert running.stop() == 0
    assert check(tmp_path / restored) == []


def test_the_commands_print_what_they_did_and_refuse_by_name(tmp_path: Path) -> None:
    with standalone(tmp_path, "data") as running:
        with Producer("g", running.addresses()[0]) as producer:
            result = producer.send(Message("T", b"body"))
        done = run_here("store", "backup", tmp_path / "data", "--out", tmp_path / "out", "--json")
        printed = json.loads(done.stdout)
        assert (printed["wasServed"], printed["begin"], printed["unchanged"]) == (True, 0, 0)
        assert printed["copied"] == printed["end"] > result.queue_offset
        again = run_here("store", "backup", tmp_path / "data", "--out", tmp_path / "out", "--json")
        assert json.loads(again.stdout)["unchanged"] == printed["end"]
        assert running.stop() == 0
    full = run_here("store", "restore", tmp_path / "out", tmp_path / "data")
    assert (full.returncode, str(tmp_path / "data") in full.stderr) == (1, True)
    (piece,) = (tmp_path / "out" / "commitlog").iterdir()
    piece.unlink()
    lacking = run_here("store", "restore", tmp_path / "out", tmp_path / "new")
    assert (lacking.returncode, piece.name in lacking.stderr, (tmp_path / "new").exists()) == (1, True, False)
    assert check(tmp_path / "data") == []
