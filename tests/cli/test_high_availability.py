"""haStatus, promote, switchover and demote, on processes that are killed and started again as systemd would."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rucola.cli import output
from rucola.cli.main import main
from rucola.cli.output import time_text
from rucola.store.tools.check import check
from support.ports import free_ports
from support.servers import Server, run_here, server
from support.waiting import wait_until

pytestmark = pytest.mark.slow


class Pair:
    """A name server and two brokers of one name. Ports are chosen by the system once, and then kept."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path, self.stack = path, stack
        (path / "namesrv.conf").write_text("listenPort=0\n")
        namesrv = stack.enter_context(server("namesrv", "-c", path / "namesrv.conf", log=path / "namesrv.log"))
        self.namesrv = namesrv.first_line.split()[-1]
        self.addresses: dict[str, str] = {}
        self.servers: dict[str, Server] = {}

    def start(self, name: str, *lines: str) -> str:
        """Start a broker, with more lines in its broker.conf; return its address."""
        conf, known = self.path / f"{name}.conf", self.addresses.get(name)
        port = known.partition(":")[2] if known else str(free_ports(1, 1)[0])
        settings = ["brokerName=pair", "mappedFileSizeCommitLog=1048576", f"storePathRootDir={self.path / name}"]
        conf.write_text("\n".join([*settings, f"listenPort={port}", f"namesrvAddr={self.namesrv}", *lines]))
        running = self.stack.enter_context(server("broker", "-c", conf, log=self.path / f"{name}.log"))
        self.servers[name] = running
        self.addresses[name] = running.first_line.split("pair, ")[1].split("]")[0]
        return self.addresses[name]

    def kill(self, name: str) -> None:
        self.servers[name].process.kill()
        self.servers[name].process.wait()

    def admin(self, command: str) -> Result:
        return CliRunner().invoke(main, ["admin", *shlex.split(command)], env={"NAMESRV_ADDR": self.namesrv})

    def json(self, command: str) -> Any:
        result = self.admin(command + " --json")
        assert result.exit_code == 0, (command, result.stderr, result.exception)
        return json.loads(result.stdout)

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.json("haStatus")["brokers"][self.addresses[name]])

    def send(self, count: int) -> None:
        for number in range(count):
            assert "SEND_OK" in self.admin(f"sendMessage -t T -p 'message {number}'").stdout


def shown_on_terminal(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that operators look for fits into 80 columns."""
    with monkeypatch.context() as terminal:
        terminal.setattr(output, "terminal_width", lambda: 80)
        shown = pair.admin("haStatus").stdout
    assert max(map(len, shown.splitlines())) <= 80
    status = pair.status("first")
    expected = ["ASYNC_MASTER", "serves", "follows", "switchover", time_text(status["switchedMs"]).split()[0]]
    assert {*expected, str(status["epoch"]), str(status["end"])} <= {*shown.split()}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def test_a_dead_master_is_replaced_and_follows_when_it_is_back(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pair.start("first")
    alone = pair.status("first")
    assert (alone["unreplicatedBytes"], alone["unreplicatedMessages"], bool(alone["unreplicatedReason"])) == (
        None,
        None,
        True,
    )
    assert re.search(r" serves +- +- *\n", pair.admin("haStatus").stdout), "it is not known"
    second = pair.start("second", "brokerRole=SLAVE", "brokerId=1")
    wait_until(lambda: bool(pair.status("first")["slaves"]))
    pair.send(3)
    wait_until(lambda: pair.status("first")["unreplicatedBytes"] == 0)
    assert pair.status("first")["slaves"][0]["inSync"] is None, "which only elections have"
    table = pair.admin("haStatus").stdout
    assert "follows" in table
    assert re.search(r" serves +0 +0 *\n", table), "nothing would be lost with the master"
    refused = pair.admin(f"promote -b {second} --yes")
    assert (refused.exit_code, "rucola admin switchover" in refused.stderr) == (1, True)
    assert pair.admin(f"promote -b {first} --yes").exit_code == 1, "it is master"
    # What the master has alone, and is killed with.
    pair.kill("second")
    pair.send(2)
    alone = pair.status("first")
    assert (alone["slaves"], alone["unreplicatedMessages"], bool(alone["unreplicatedReason"])) == ([], 2, True)
    pair.kill("first")
    pair.start("second", "brokerRole=SLAVE", "brokerId=1")
    unsure = pair.admin(f"promote -b {second} --yes")
    assert (unsure.exit_code, "cannot be asked" in unsure.stderr) == (1, True)
    assert pair.status("second")["switchReason"] == "", "it has always been a slave"
    assert pair.json(f"promote -b {second} --force --yes")["epoch"] == 2
    promoted_ms = pair.status("second")["switchedMs"]
    pair.send(4)
    # systemd restarts the new master: it is master still.
    assert pair.servers["second"].stop() == 0
    pair.start("second", "brokerRole=SLAVE", "brokerId=1")
    assert pair.status("second")["isAccepting"]
    assert pair.status("second")["epoch"] == 3
    assert (pair.status("second")["switchReason"], pair.status("second")["switchedMs"]) == ("promote", promoted_ms)
    assert pair.status("second")["roleSinceMs"] > promoted_ms
    # The old one returns with its old file, says why it is refused, and follows when it is told to.
    pair.start("first")
    assert f"and {second} is master in epoch 3: it accepts no messages" in (tmp_path / "first.log").read_text()
    named = pair.admin(f"demote -b {first} --yes")
    assert (named.exit_code, "has 2 messages" in named.stderr) == (1, True)
    assert "is slave" in pair.admin(f"demote -b {first} --yes --force").stdout
    wait_until(lambda: pair.status("first")["end"] == pair.status("second")["end"])
    assert "2 messages, " in (tmp_path / "first.log").read_text()
    (kept,) = (tmp_path / "first" / "diverged").iterdir()
    found = run_here("store", "grep", kept, "-t", "T")
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 2
    switched = pair.admin(f"switchover -b {first} --yes")
    assert f"{first} is master in epoch 4; no messages were accepted for" in switched.stdout, switched.stderr
    assert [pair.status(name)["switchReason"] for name in ("first", "second")] == ["switchover"] * 2
    wait_until(lambda: pair.status("second")["isFollowing"])
    pair.send(1)
    shown_on_terminal(pair, monkeypatch)
    for name in ("first", "second"):
        assert pair.servers[name].stop() == 0
        assert check(tmp_path / name) == []
    shown = run_here("store", "stat", tmp_path / "first").stdout
    # Nothing was written in epoch 3, which gives way to 4.
    assert re.search(r"^epochs       1 from 0, 2 from [0-9]+, 4 from [0-9]+$", shown, re.MULTILINE)
