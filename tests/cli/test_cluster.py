"""`rucola cluster` with real processes: killed servers and supervisors, wrong configurations, and the status."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from rucola.client import Message
from rucola.client.sync import Producer, PullConsumer
from rucola.cluster.layout import ServerRole, Size, open_layout
from rucola.cluster.supervisor import ServerStatus
from rucola.errors import ConfigError, MQError
from rucola.store.tools.check import check
from support.documents import Document
from support.errors import raises
from support.servers import RUCOLA, Server, run, server
from support.waiting import wait_until

# Files that are created quickly on any disk.
SMALL = "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"


@contextmanager
def cluster(directory: Path, *options: str) -> Iterator[Server]:
    """A running cluster; a new one gets small files."""
    if options and not directory.exists():
        numbers = dict(zip(options[::2], map(int, options[1::2]), strict=True))
        size = Size(numbers.get("--masters", 1), numbers.get("--slaves", 0), numbers.get("--namesrvs", 1))
        for spec in open_layout(directory, size):
            if spec.role is not ServerRole.NAMESRV:
                spec.config_file.write_text(spec.config_file.read_text() + SMALL)
    with server("cluster", directory, *options, log=directory.with_suffix(".log")) as running:
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.process.terminate()
                running.process.wait()


def namesrv_of(running: Server) -> str:
    prefix, _, addresses = running.first_line.strip().partition("namesrv=")
    assert prefix == "rucola ready ", running.log.read_text()
    return addresses


def status(directory: Path) -> dict[str, ServerStatus]:
    result = run("cluster", directory, "--status", "--json")
    assert result.returncode == 0, result.stderr
    return {one.name: one for one in msgspec.json.decode(result.stdout, type=list[ServerStatus])}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process whose parent died is reaped by init, or remains as a zombie in a container.
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def send(namesrv: str, topic: str, bodies: list[bytes]) -> set[str]:
    """Send the bodies; return the brokers that stored them."""
    with Producer("cluster", namesrv) as producer:
        return {producer.send(Message(topic, body)).queue.broker_name for body in bodies}


def stored(namesrv: str, topic: str) -> set[bytes]:
    with PullConsumer("cluster", namesrv) as consumer:
        bodies: set[bytes] = set()
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                bodies |= {message.body for message in result.messages}
                offset = result.next_begin_offset
        return bodies


def pids(directory: Path) -> list[int]:
    return [one.pid for one in status(directory).values() if one.pid is not None]


@pytest.mark.slow
def test_a_killed_master_starts_again_with_its_messages(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    sent = [b"%d" % number for number in range(40)]
    with cluster(directory, "--masters", "2", "--slaves", "1", "--namesrvs", "2") as running:
        namesrv = namesrv_of(running)
        assert len(namesrv.split(";")) == 2
        assert send(namesrv, "TopicTest", sent) == {"broker-a", "broker-b"}
        before = status(directory)
        assert [one.role for one in before.values()] == ["namesrv"] * 2 + ["master"] * 2 + ["slave"] * 2
        assert {one.state for one in before.values()} == {"ready"}
        killed = before["broker-a"].pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: (now := status(directory)["broker-a"]).pid not in (None, killed) and now.state == "ready")
        after = status(directory)
        assert (after["broker-a"].restarts, after["broker-a"].last_exit) == (1, "SIGKILL")
        assert after["broker-a"].address == before["broker-a"].address
        assert after["broker-b"].pid == before["broker-b"].pid
        assert stored(namesrv, "TopicTest") == set(sent)
        table = run("cluster", directory, "--status").stdout
        assert "broker-a-slave-1" in table
        assert "SIGKILL" in table
        all_pids = pids(directory)
        assert running.stop() == 0
    assert not any(map(is_alive, all_pids))
    for name in ("broker-a", "broker-b", "broker-a-slave-1", "broker-b-slave-1"):
        assert check(directory / name, index_slots=1000) == []
    # The end of the supervisor was orderly: the masters stopped first, the name servers last.
    log = running.log.read_text()
    assert "stopping" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_the_commands_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/cluster.md; addresses, times and process ids of its output differ from run to run."""
    monkeypatch.chdir(tmp_path)
    start, show = [command for block in Document.read("docs/cluster.md").blocks for command, _ in block.commands]
    _, *start_options = shlex.split(start)
    with server(*start_options, log=tmp_path / "log", program=RUCOLA) as running:
        assert running.first_line.count("127.0.0.1:") == 2
        shown = run(*shlex.split(show)[1:]).stdout.splitlines()
        assert [line.split()[0] for line in shown[1:]] == [
            "namesrv-1", "namesrv-2", "broker-a", "broker-b", "broker-a-slave-1", "broker-b-slave-1",
        ]  # fmt: skip
        assert shown[0].split()[:4] == ["#Name", "#Role", "#Addr", "#State"]
        assert running.stop() == 0


@pytest.mark.slow
def test_servers_of_a_killed_supervisor_stop_and_start_with_the_next(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with cluster(directory, "--masters", "1") as running:
        namesrv = namesrv_of(running)
        send(namesrv, "TopicTest", [b"kept"])
        servers = pids(directory)
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        wait_until(lambda: not any(map(is_alive, servers)))
    result = run("cluster", directory, "--status")
    assert (result.returncode, result.stderr) == (
        1,
        f"Error: no supervisor runs {directory}; `rucola cluster {directory}` starts it\n",
    )
    with cluster(directory) as running:
        assert namesrv_of(running) == namesrv
        assert stored(namesrv, "TopicTest") == {b"kept"}
        second = run("cluster", directory)
        assert second.returncode == 1
        assert f"another supervisor runs {directory}" in second.stderr
        assert running.stop(signal.SIGINT) == 0
    assert check(directory / "broker-a", index_slots=1000) == []


@pytest.mark.slow
def test_a_server_that_cannot_start_ends_the_first_start_but_not_a_running_cluster(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with cluster(directory, "--masters", "2") as running:
        namesrv = namesrv_of(running)
        config = directory / "broker-b.conf"
        valid = config.read_text()
        config.write_text(valid + "brokerRole=KING\n")
        failing = status(directory)["broker-b"].pid
        assert failing is not None
        os.kill(failing, signal.SIGTERM)
        wait_until(lambda: status(directory)["broker-b"].last_exit == "exit code 1")
        send(namesrv, "TopicTest", [b"by the other"])
        assert "KING" in (directory / "logs" / "broker-b.log").read_text()
        assert "KING" in running.log.read_text()
        config.write_text(valid)
        wait_until(lambda: status(directory)["broker-b"].state == "ready")
        config.write_text(valid + "brokerRole=KING\n")
        assert running.stop() == 0
    result = run("cluster", directory)
    assert result.returncode == 1
    assert "broker-b does not start: exit code 1" in result.stderr
    assert str(config) in result.stderr
    assert "KING" in result.stderr
    assert check(directory / "broker-a", index_slots=1000) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--sync"], 2, "--sync needs --slaves"),
        (["--etcd"], 2, "--etcd needs --slaves"),
        (["--json"], 2, "--json belongs to --status"),
        (["--masters", "0"], 2, "--masters"),
        (["--masters", "27"], 2, "--masters"),
        (["--status"], 1, "holds no cluster"),
    ],
)
def test_wrong_command_lines(tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    result = run("cluster", tmp_path / "data", *arguments)
    assert (result.returncode, text in result.stderr) == (code, True), result.stderr
    assert not (tmp_path / "data").exists()


def test_a_directory_keeps_its_size(tmp_path: Path) -> None:
    first = open_layout(tmp_path / "data", Size(masters=2, slaves=1, namesrvs=2, is_sync=True))
    assert [spec.name for spec in first] == [
        "namesrv-1", "namesrv-2", "broker-a", "broker-b", "broker-a-slave-1", "broker-b-slave-1",
    ]  # fmt: skip
    addresses = [spec.address for spec in first]
    assert len(set(addresses)) == len(addresses)
    assert open_layout(tmp_path / "data", None) == first
    with raises(ConfigError, subject=str(tmp_path / "data")):
        open_layout(tmp_path / "data", Size())


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with raises(ConfigError, subject=str(tmp_path)):
        open_layout(tmp_path, Size())


@pytest.mark.slow
def test_an_elected_cluster_shows_its_roles_and_elects_again(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    size = Size(masters=1, slaves=1, namesrvs=1, is_sync=True, is_elected=True)
    for spec in open_layout(directory, size):
        if spec.role is ServerRole.MEMBER:
            spec.config_file.write_text(spec.config_file.read_text() + SMALL)
    with cluster(directory) as running:
        before = status(directory)
        assert [one.role for one in before.values()][:2] == ["etcd", "namesrv"]
        roles = {name: before[name].role for name in ("broker-a-1", "broker-a-2")}
        assert sorted(roles.values()) == ["master", "slave"]
        (killed,) = (name for name, role in roles.items() if role == "master")
        wait_until(lambda: send_one(namesrv_of(running)))
        # Only a member of the in-sync set can be elected.
        log = directory / "logs" / f"{killed}.log"
        wait_until(lambda: re.search(r"in-sync set of epoch \d+: \[1, 2\]", log.read_text()) is not None)
        pid = before[killed].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        # The supervisor restarts it before its lease ends: whichever of the two is elected, the other follows.
        wait_until(lambda: status(directory)[killed].pid not in (None, pid))
        wait_until(lambda: sorted(status(directory)[name].role for name in roles) == ["master", "slave"])
        wait_until(lambda: send_one(namesrv_of(running)))
        all_pids = pids(directory)
        assert running.stop() == 0
    assert not any(map(is_alive, all_pids))
    for name in roles:
        assert check(directory / name, index_slots=1000) == []


def send_one(namesrv: str) -> bool:
    """Send a message; whether a slave has it as well."""
    with Producer("cluster", namesrv) as producer:
        try:
            return producer.send(Message("TopicTest", b"x")).is_ok
        except MQError:
            return False
