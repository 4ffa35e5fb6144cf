"""docs/reliable.md does what it says: its tutorial runs as written, each program as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from rucola.testing.rocketmq import RocketMQ
from support.outbox import until
from support.servers import RUCOLA, server

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reliable.md").read_text(encoding="utf-8")
TUTORIAL = PAGE[PAGE.index("## Tutorial") : PAGE.index("## States")]


@pytest.fixture
def tutorial(tmp_path: Path, rocketmq: RocketMQ, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.chdir(tmp_path)
    for name, source in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TUTORIAL, re.DOTALL):
        Path(name).write_text(source.replace("127.0.0.1:9876", rocketmq.namesrv))
    with ExitStack() as running:
        yield running


def commands() -> list[list[str]]:
    return [line.split() for line in re.findall(r"^\$ (.*)$", TUTORIAL, re.MULTILINE)]


@pytest.mark.slow
def test_tutorial_works_as_written(tutorial: ExitStack, rocketmq: RocketMQ, tmp_path: Path) -> None:
    said: dict[str, str] = {}
    for program, *arguments in commands():
        arguments = [argument.replace("127.0.0.1:9876", rocketmq.namesrv) for argument in arguments]
        if program == "rucola" and arguments[0] == "standalone":
            continue  # runs already
        if program == "rucola" and "relay" in arguments:
            tutorial.enter_context(server(*arguments, log=tmp_path / "relay.log"))
            rocketmq.wait_for_messages("Orders")
        elif arguments == ["billing.py"]:
            billing = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
            tutorial.callback(billing.wait)
            tutorial.callback(billing.kill)
            assert billing.stdout is not None
            tutorial.callback(billing.stdout.close)
            assert billing.stdout.readline() == "billed 1 pizza\n"
            _wait_for("SELECT count(*) FROM rucola_stub WHERE status = 'CONFIRMED'", 1)
        else:
            command = [*RUCOLA, *arguments] if program == "rucola" else [sys.executable, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
            assert done.returncode == 0, done.stderr
            said[" ".join([program, *arguments[:2]])] = done.stdout
    message_id = said["python order.py pizza"].split()[1]
    assert re.search(rf"{message_id}\s+NEW", said["rucola reliable list"])
    assert re.search(r"CONFIRMED\s+1", said["rucola reliable stats"])
    _wait_for("SELECT count(*) FROM invoices", 1)


def _wait_for(query: str, count: int) -> None:
    import asyncio

    def holds() -> bool:
        with create_engine("sqlite:///shop.db").connect() as connection:
            return connection.scalar(text(query)) == count

    asyncio.run(until(holds))


def test_every_state_is_explained() -> None:
    from rucola.reliable.schema import STATUSES

    for status in STATUSES:
        assert PAGE.count(status) >= 2, status


def test_defaults_on_the_page_are_those_of_the_program() -> None:
    from rucola.reliable.operations import LEAST_PURGE_AFTER_MS
    from rucola.reliable.policy import Policy
    from rucola.reliable.schema import LANES

    policy = Policy()
    assert (policy.stuck_after_ms, policy.overdue_after_ms) == (6 * 3_600_000, 24 * 3_600_000)
    assert (policy.lease_ms, policy.poll_ms, LANES, LEAST_PURGE_AFTER_MS) == (30_000, 2000, 16, 77 * 3_600_000)
    for words in ("for 6 h", "for 24 h", "30 s", "2 s at most", "16 lanes", "77 hours"):
        assert words in PAGE
