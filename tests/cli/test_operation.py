"""Servers as services: banner, log level, reload, and messages to systemd."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rucola.broker.services.configuration import CHANGEABLE
from rucola.cli import systemd
from rucola.namesrv.config import NamesrvConfig
from rucola.settings import to_properties
from support.servers import Server, run, run_here, server

FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")
DOCS = Path(__file__).parents[2] / "docs"
UNITS = DOCS.parent / "deploy" / "systemd"


@pytest.fixture
def notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket as systemd's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def received(listening: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in listening.recv(4096).decode().splitlines())


def logged(running: Server) -> list[str]:
    return [json.loads(line)["message"] for line in running.log.read_text().splitlines()]


@pytest.mark.slow
def test_a_broker_tells_systemd_when_it_is_ready_reloads_and_stops(
    tmp_path: Path, notifications: socket.socket
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("maxMessageSize=1000\nbrokerName=b\nfileReservedTime=48\n")
    store = tmp_path / "store"
    arguments = ("standalone", "--store", store, *FREE_PORTS, "-c", conf, "--logFormat", "json")
    with server(*arguments, log=tmp_path / "log") as running:
        namesrv, broker = running.addresses()
        assert received(notifications) == {"READY": "1", "STATUS": running.first_line.strip()}

        def reload(text: str) -> str:
            conf.write_text(text)
            running.process.send_signal(signal.SIGHUP)
            begun = received(notifications)
            assert begun["RELOADING"] == "1"
            assert int(begun["MONOTONIC_USEC"]) > 0
            assert received(notifications)["READY"] == "1"
            return logged(running)[-1]

        # Changed and removed keys apply at once, keys of the start are named.
        line = reload("maxMessageSize=2000\nbrokerName=other\nlistenPort=1\n")
        assert line == (
            f"{conf} reloaded; changed: fileReservedTime=72, maxMessageSize=2000; "
            "after a restart: brokerName, listenPort"
        )
        shown = json.loads(run_here("admin", "getBrokerConfig", "-n", namesrv, "-b", broker, "--json").stdout)[broker]
        assert (shown["maxMessageSize"], shown["fileReservedTime"], shown["brokerName"]) == ("2000", "72", "b")
        # An invalid file changes nothing.
        assert "did you mean maxMessageSize" in reload("maxMesageSize=1\n")
        assert "expected an integer" in reload("maxMessageSize=many\n")
        shown = json.loads(run_here("admin", "getBrokerConfig", "-n", namesrv, "-b", broker, "--json").stdout)[broker]
        assert shown["maxMessageSize"] == "2000"
        assert running.stop() == 0
        assert received(notifications) == {"STOPPING": "1"}
    assert run_here("store", "check", store).returncode == 0


@pytest.mark.slow
def test_a_name_server_reloads(tmp_path: Path, notifications: socket.socket) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("bindAddress=127.0.0.1\nlistenPort=0\n")
    with server("namesrv", "-c", conf, "--logFormat", "json", log=tmp_path / "log") as running:
        assert received(notifications)["READY"] == "1"
        conf.write_text("bindAddress=127.0.0.1\nlistenPort=1\norderMessageEnable=true\n")
        running.process.send_signal(signal.SIGHUP)
        assert (received(notifications)["RELOADING"], received(notifications)["READY"]) == ("1", "1")
        assert logged(running)[-1] == f"{conf} reloaded; changed: orderMessageEnable=true; after a restart: listenPort"
        assert running.stop() == 0


def test_an_abstract_socket_is_notified_and_a_missing_one_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"rucola-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        systemd.stopping()
        assert received(listening) == {"STOPPING": "1"}
    systemd.ready("x")
    assert "systemd was not notified of READY=1" in caplog.text
    monkeypatch.delenv("NOTIFY_SOCKET")
    caplog.clear()
    systemd.ready("x")
    assert caplog.text == ""


@pytest.mark.slow
def test_the_log_begins_with_what_the_server_is(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\nmaxMessageSize=1000\nsendMessageThreadPoolNums=16\n")
    arguments = ("standalone", "--store", tmp_path / "store", *FREE_PORTS, "-c", conf)
    with server(*arguments, "--logFormat", "json", log=tmp_path / "log") as running:
        _, broker = running.addresses()
        assert running.stop() == 0
        text = "\n".join(logged(running))
    assert f"process {running.process.pid}" in text
    assert f"broker b of cluster DefaultCluster, id 0, ASYNC_MASTER, ASYNC_FLUSH: clients at {broker}" in text
    assert f"store {tmp_path}/store" in text
    assert "maxMessageSize=1000" in text
    assert f"{conf}: keys of Apache's that have no effect here: sendMessageThreadPoolNums" in text
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert [line["level"] for line in lines].count("WARNING") == 1


@pytest.mark.slow
def test_the_log_level_is_an_option(tmp_path: Path) -> None:
    arguments = ("standalone", "--store", tmp_path / "store", *FREE_PORTS, "--logLevel", "warning")
    with server(*arguments, log=tmp_path / "log") as running:
        assert running.stop() == 0
    assert (tmp_path / "log").read_text() == ""
    assert run("namesrv", "--logLevel", "loud").returncode == 2


def test_the_page_lists_the_keys_that_a_reload_changes() -> None:
    page = (DOCS / "operation.md").read_text()
    listed = page.partition("need no restart, here")[2].partition("Of namesrv.conf")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == CHANGEABLE
    listed = page.partition("Of namesrv.conf these are")[2].partition(".")[0]
    config = NamesrvConfig()
    assert set(re.findall(r"`(\w+)`", listed)) == to_properties(config).keys() - config.fixed_keys


@pytest.mark.slow
@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service"), key=str), ids=lambda path: path.name)
def test_units_start_commands_that_exist(unit: Path) -> None:
    entries = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line and line[0] != "#")
    assert entries["Type"] == "notify"
    program, command, *options = entries["ExecStart"].split()
    assert program.endswith("/rucola")
    assert run(command, "--help").returncode == 0
    assert options[0] == "-c"
    assert entries["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(entries["LimitNOFILE"]) >= 65536
