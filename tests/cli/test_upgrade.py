"""docs/upgrade.md: a pair is upgraded one by one, and back, beside an earlier version, with a ledger."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from rucola.client.sync import PushConsumer
from rucola.store.tools.check import check
from support.earlier import VERSIONS, earlier
from support.ledger import Ledger
from support.ports import HOST, free_ports
from support.servers import RUCOLA, Server, run_here
from support.stores import log_of
from support.waiting import wait_until

SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "cleanFileForciblyEnable": "false",
}


class Pair:
    """A name server, a SYNC_MASTER and its slave, each of a version of its own."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        namesrv, master, slave = free_ports(3, 1)
        self.namesrv, self.ports = f"{HOST}:{namesrv}", {"namesrv": namesrv, "master": master, "slave": slave}
        self._running: dict[str, Server] = {}
        self._starts = 0

    def start(self, name: str, program: list[str]) -> None:
        """Start a server of a version, after the one that ran until now has stopped cleanly."""
        if (before := self._running.get(name)) is not None:
            before.process.terminate()
            assert before.process.wait() == 0
        conf = self._path / f"{name}.conf"
        settings: dict[str, object] = {"listenPort": self.ports[name], "bindAddress": HOST}
        if name != "namesrv":
            role = {"brokerRole": "SYNC_MASTER"} if name == "master" else {"brokerRole": "SLAVE", "brokerId": 1}
            settings |= SMALL | role | {"brokerName": "a", "brokerIP1": HOST, "namesrvAddr": self.namesrv}
            settings |= {"storePathRootDir": self._path / name, "haListenPort": self.ports[name] + 1}
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._starts += 1
        log = self._path / f"{name}-{self._starts}.log"
        command = "namesrv" if name == "namesrv" else "broker"
        running = Server(command, "-c", conf, log=log, program=program)
        self._stack.callback(running.stdout.close)
        self._stack.callback(running.process.wait)
        self._stack.callback(running.process.kill)
        assert "success" in running.first_line, log.read_text()
        self._running[name] = running

    def end(self, name: str) -> int:
        """The end of a broker's log."""
        status = run_here("admin", "brokerStatus", "-b", f"{HOST}:{self.ports[name]}", "--json")
        (figures,) = json.loads(status.stdout).values()
        return int(figures["commitLogMaxOffset"])

    def stop(self) -> None:
        for name in ("master", "slave", "namesrv"):
            self._running[name].process.terminate()
            assert self._running[name].process.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_pair_is_upgraded_one_by_one_and_back(tmp_path: Path, earlier_versions: Path, version: str) -> None:
    old = earlier(version, earlier_versions)
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack)
        for name in ("namesrv", "slave", "master"):
            pair.start(name, old)
        ledger = Ledger(pair.namesrv)
        try:
            ledger.grows()
            # Forth: the slave first. Each step is complete when messages are acknowledged, which a slave has.
            for name in ("slave", "master", "namesrv"):
                pair.start(name, RUCOLA)
                ledger.grows()
            # And back, in the opposite order.
            for name in ("namesrv", "master", "slave"):
                pair.start(name, old)
                ledger.grows()
        finally:
            wanted = ledger.stop()
        wait_until(lambda: pair.end("slave") == pair.end("master"))
        found: set[bytes] = set()
        with PushConsumer("readers", pair.namesrv) as consumer:
            consumer.subscribe("T")
            for message in consumer.messages(idle_timeout_ms=20_000):
                found.add(message.body)
                if wanted <= found:
                    break
        assert wanted <= found
        pair.stop()
    assert check(tmp_path / "master") == check(tmp_path / "slave") == []
    assert log_of(tmp_path / "master") == log_of(tmp_path / "slave")
