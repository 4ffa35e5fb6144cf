"""Servers as processes: ready lines, signals, configuration files and errors."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import signal
import socket
from pathlib import Path

import pytest

from rucola.cli.servers import serve_until_cancelled, set_store_directory
from support.servers import run, run_here, server

FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_standalone_serves_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    store = tmp_path / "store"
    with server("standalone", "--store", store, *FREE_PORTS, log=tmp_path / "log") as standalone:
        namesrv, broker = standalone.addresses()
        created = run_here("admin", "updateTopic", "-n", namesrv, "-b", broker, "-t", "Orders", "-r", "2", "-w", "2")
        assert created.returncode == 0, created.stderr
        assert created.stdout.startswith(f"create topic to {broker} success.\n")
        assert (store / "abort").exists()
        # The descriptor table is grown at the start: the kernel stalls the process while it grows.
        status = Path(f"/proc/{standalone.process.pid}/status").read_text()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert int(status.partition("FDSize:")[2].split()[0]) >= min(hard, 1 << 16)
        standalone.process.send_signal(number)
        assert standalone.stop(number) == 0, "a second signal changes nothing"
    assert not (store / "abort").exists()
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert run_here("store", "check", store).returncode == 0
    with server("standalone", "--store", store, *FREE_PORTS, log=tmp_path / "log") as standalone:
        namesrv, _ = standalone.addresses()
        status = run_here("admin", "topicStatus", "-n", namesrv, "-t", "Orders", "--json")
        assert [queue["queueId"] for queue in json.loads(status.stdout)] == [0, 1]
        assert standalone.stop() == 0


async def test_objects_of_the_start_are_frozen_for_the_garbage_collector(capsys: pytest.CaptureFixture[str]) -> None:
    assert gc.get_freeze_count() == 0
    try:

        async def reload() -> None:
            raise AssertionError

        serving = asyncio.ensure_future(serve_until_cancelled("ready", reload))
        await asyncio.sleep(0)
        serving.cancel()
        assert capsys.readouterr().out == "ready\n"
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()


@pytest.mark.slow
def test_a_store_in_use_is_named_before_the_ports_that_are_in_use_as_well(tmp_path: Path) -> None:
    """Both belong to the first broker: the second call of the same command line is about the store."""
    store = tmp_path / "store"
    with server("standalone", "--store", store, *FREE_PORTS, log=tmp_path / "log") as standalone:
        namesrv, broker = (address.rpartition(":")[2] for address in standalone.addresses())
        second = run("standalone", "--store", store, "--namesrv-port", namesrv, "--broker-port", broker)
        assert (second.returncode, second.stdout) == (1, "")
        assert str(store) in second.stderr
        assert "Traceback" not in second.stderr
        assert standalone.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("taken", "other"), [("--namesrv-port", "--broker-port"), ("--broker-port", "--namesrv-port")])
def test_a_taken_port_is_refused_and_leaves_the_store_closed(tmp_path: Path, taken: str, other: str) -> None:
    store = tmp_path / "store"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        result = run("standalone", "--store", store, taken, str(port), other, "0")
    assert (result.returncode, result.stdout) == (1, "")
    assert f"127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (store / "abort").exists()
    assert run_here("store", "check", store).returncode == 0


@pytest.mark.slow
def test_namesrv_and_broker_run_as_two_processes(tmp_path: Path) -> None:
    namesrv_conf, broker_conf = tmp_path / "namesrv.conf", tmp_path / "broker.conf"
    namesrv_conf.write_text("bindAddress=127.0.0.1\nlistenPort=0\n")
    with server("namesrv", "-c", namesrv_conf, log=tmp_path / "namesrv.log") as namesrv:
        assert namesrv.first_line.startswith("The Name Server boot success. ")
        address = namesrv.first_line.split()[-1]
        broker_conf.write_text(
            f"# a broker\nbrokerName = two\nbrokerIP1=127.0.0.1\nlistenPort=0\nstorePathRootDir={tmp_path / 'store'}\n"
        )
        with server("broker", "-n", address, "-c", broker_conf, log=tmp_path / "broker.log") as broker:
            assert broker.first_line.startswith("The broker[two, 127.0.0.1:")
            assert broker.first_line.endswith(f"] boot success. and name server is {address}\n")
            listed = run_here("admin", "clusterList", "-n", address)
            assert "two" in listed.stdout
            assert broker.stop() == 0
        assert namesrv.stop() == 0


@pytest.mark.parametrize(
    ("options", "in_file", "address"),
    [
        (["-n", "line:1"], "namesrvAddr=file:2\n", "line:1"),
        ([], "namesrvAddr=file:2\n", "file:2"),
        ([], "", "environment:3"),
    ],
)
def test_a_broker_registers_as_the_line_the_file_or_the_environment_says(
    tmp_path: Path, options: list[str], in_file: str, address: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=a\n{in_file}")
    printed = run_here("broker", "-c", conf, *options, "-p", ROCKETMQ_NAMESRV="environment:3", NAMESRV_ADDR="other:4")
    assert f"namesrvAddr={address}\n" in printed.stdout.replace(" ", "")


@pytest.mark.slow
def test_a_port_on_the_command_line_overrides_both_of_the_file(tmp_path: Path) -> None:
    """Two brokers share a configuration file, and run on different ports."""
    conf = tmp_path / "broker.conf"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        conf.write_text(f"listenPort={port}\nhaListenPort={port}\n")
        ports = ("--namesrv-port", "0", "--broker-port", "0")
        with server(
            "standalone", "--store", tmp_path / "store", *ports, "-c", conf, log=tmp_path / "log"
        ) as standalone:
            assert standalone.stop() == 0


@pytest.mark.slow
def test_a_changed_setting_survives_a_restart(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# how large\nmaxMessageSize = 1000\nbrokerName=b\n")
    arguments = ("standalone", "--store", tmp_path / "store", *FREE_PORTS, "-c", conf)
    with server(*arguments, log=tmp_path / "log") as standalone:
        namesrv, broker = standalone.addresses()
        change = ("updateBrokerConfig", "-n", namesrv, "-b", broker)
        assert run_here("admin", *change, "-k", "maxMessageSize", "-v", "2000").returncode == 0
        assert run_here("admin", *change, "-k", "fileReservedTime", "-v", "48").returncode == 0
        assert run_here("admin", *change, "-k", "maxMessageSize", "-v", "large").returncode == 1
        assert standalone.stop() == 0
    assert conf.read_text() == "# how large\nmaxMessageSize=2000\nbrokerName=b\nfileReservedTime=48\n"
    with server(*arguments, log=tmp_path / "log") as standalone:
        namesrv, broker = standalone.addresses()
        shown = json.loads(run_here("admin", "getBrokerConfig", "-n", namesrv, "-b", broker, "--json").stdout)[broker]
        assert (shown["maxMessageSize"], shown["fileReservedTime"]) == ("2000", "48")


def test_print_settings_starts_no_server(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=printed\nstorePathRootDir={tmp_path / 'store'}\nflushDiskType=SYNC_FLUSH\n")
    result = run_here("broker", "-c", conf, "-p", "-n", "a:9876")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert {"brokerName=printed", "flushDiskType=SYNC_FLUSH", "namesrvAddr=a:9876", "listenPort=10911"} <= set(lines)
    assert not (tmp_path / "store").exists()
    important = run_here("broker", "-c", conf, "-m", "-n", "a:9876").stdout.splitlines()
    assert {"brokerName=printed", "flushDiskType=SYNC_FLUSH", "fileReservedTime=72"} <= set(important) < set(lines)
    assert "listenPort=10911" not in important
    assert "listenPort=9876" in run_here("namesrv", "-p", "-n", "other:9876").stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "wrong"),
    [("listenPort=many", "listenPort=many"), ("messageDelayLevel=1s 5x", "messageDelayLevel contains '5x'")],
)
def test_an_unreadable_value_is_named_with_its_file_even_if_the_port_is_taken(
    tmp_path: Path, setting: str, wrong: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{setting}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run("standalone", "--store", tmp_path / "store", "-c", conf, "--namesrv-port", port)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert str(conf) in line
    assert wrong in line


def test_an_invalid_name_server_address_is_refused(tmp_path: Path) -> None:
    result = run_here("broker", "-n", "localhost:9876;nonsense", "-c", "/dev/null")
    assert result.returncode == 2
    assert "'nonsense' is no address: write host:port" in result.stderr


def test_an_unknown_key_is_refused_with_a_near_one(tmp_path: Path) -> None:
    conf = tmp_path / "server.conf"
    for command, line, near in (
        (("broker", "-p"), "flushDiscType=SYNC_FLUSH", "flushDiskType"),
        (("broker", "-p"), "listenport=1", "listenPort"),
        (("standalone", "--store", tmp_path / "store"), "sendMessageThreadPoolNum=1", "sendMessageThreadPoolNums"),
        (("namesrv", "-p"), "orderMesageEnable=true", "orderMessageEnable"),
        (("proxy", "-n", "127.0.0.1:1"), "bindAdress=127.0.0.1", "bindAddress"),
    ):
        conf.write_text(f"# the settings\n{line}")
        result = run_here(*command, "-c", conf)
        key = line.partition("=")[0]
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == f"Error: {conf}, line 2: {key}: there is no such setting; did you mean {near}?\n"
    assert not (tmp_path / "store").exists()
    # The offline commands read the file, too.
    (tmp_path / "commitlog").mkdir()
    conf.write_text("maxHashSlotNums=1")
    assert "did you mean maxHashSlotNum?" in run_here("store", "check", tmp_path, "-c", conf).stderr


def test_paths_below_the_home_directory_are_expanded(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("storePathCommitLog=~/log\nmapedFileSizeCommitLog=65536\n")
    lines = run_here("broker", "-p", "-c", conf, HOME=str(tmp_path)).stdout.splitlines()
    expected = {f"storePathRootDir={tmp_path}/store", f"storePathCommitLog={tmp_path}/log"}
    assert {*expected, "mappedFileSizeCommitLog=65536"} <= set(lines)
    conf.write_text("kvConfigPath=~/kv.json\nconfigStorePath=\n")
    lines = run_here("namesrv", "-p", "-c", conf, HOME=str(tmp_path)).stdout.splitlines()
    assert f"kvConfigPath={tmp_path}/kv.json" in lines


@pytest.mark.parametrize(
    ("before", "log_after"),
    [
        ({}, None),
        ({"storePathRootDir": "/old"}, None),
        ({"storePathRootDir": "/old", "storePathCommitLog": "/old/commitlog"}, "/new/commitlog"),
        ({"storePathRootDir": "/old", "storePathCommitLog": "/disk/log"}, "/disk/log"),
        ({"storePathCommitLog": "/disk/log"}, "/disk/log"),
    ],
)
def test_a_store_on_the_command_line_moves_its_commit_log(before: dict[str, str], log_after: str | None) -> None:
    properties = dict(before)
    set_store_directory(properties, Path("/new"))
    assert properties["storePathRootDir"] == "/new"
    assert properties.get("storePathCommitLog") == log_after
