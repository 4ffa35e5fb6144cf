"""Errors of every command of `rucola admin`: one line, an exit code, and no traceback."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rucola.admin.commands import CATALOGUE, Target
from rucola.cli.admin import admin
from rucola.cli.main import main
from rucola.cli.option_types import TimeType
from support.golden_cluster import GoldenCluster

NOWHERE = "127.0.0.1:1"
NO_MESSAGE = "7F00000100000001" + 16 * "0"  # an offsetMsgId with the address of this machine

VALUES = {
    "actions": "All", "broker_name": "broker-a", "cluster": "DefaultCluster", "decision": "Allow",
    "from_broker": "broker-a", "group": "g",
    "method": "get", "msg_id": NO_MESSAGE, "msg_ids": NO_MESSAGE, "offsets": "broker-a:0:0",
    "subject": "User:u", "to_broker": "broker-a", "unique_key": NO_MESSAGE,
}  # fmt: skip
"""Values of required arguments that could not be any text or number."""
MORE = {"sendMsgStatus": ["-c", "1"], "startMonitoring": ["--once"], "updateUser": ["-s", "disable"]}
COMMANDS = sorted(CATALOGUE)
MAKES_THE_TOPIC = {"checkMsgSendRT", "sendMessage", "updateTopic"}
OF_A_TOPIC = [
    name
    for name in COMMANDS
    if any(one.name == "topic" and one.is_required for one in CATALOGUE[name].arguments())
    and name not in MAKES_THE_TOPIC
]


def complete(command: str, broker: str, path: Path, topic: str = "T") -> list[str]:
    """A command line with all required arguments."""
    listed = path / "list.json"
    listed.write_text('[{"topicName": "T", "groupName": "g"}]')
    of_format = {"address": broker, "file": str(listed), "new file": str(path / "unwritten")}
    words = [command, *MORE.get(command, []), *["--yes"] * bool(CATALOGUE[command].confirm)]
    for one in CATALOGUE[command].arguments():
        if one.type is Target:
            words += ["-b", broker]
        elif one.is_required:
            usual = "0" if one.type is int else one.option.choices[0] if one.option.choices else "x"
            text = topic if one.name == "topic" else VALUES.get(one.name) or of_format.get(one.option.format, usual)
            words += [one.option.flags.split()[0], text]
    return words


def run(command: str, path: Path, *more: str, **environment: str) -> Result:
    """Run a command with an unreachable broker."""
    return CliRunner().invoke(main, ["admin", *complete(command, NOWHERE, path), *more], env=environment)


def says(result: Result, what: str, code: int = 1) -> None:
    """Assert that a command failed with one line that has this text; with code 2 after its usage."""
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), "nothing else may get out"
    *_, last = result.stderr.splitlines()
    assert what in last
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_unreachable_servers_are_named(tmp_path: Path, command: str, more: tuple[str, ...]) -> None:
    result = run(command, tmp_path, *more, NAMESRV_ADDR=NOWHERE)
    says(result, NOWHERE)
    assert result.stdout == "" or command == "sendMsgStatus", "which tells of each message how it went"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_default_name_server_is_that_of_clients(command: str) -> None:
    (option,) = [each for each in admin.commands[command].params if each.name == "namesrv_addr"]
    assert (option.envvar, option.default) == (("ROCKETMQ_NAMESRV", "NAMESRV_ADDR"), "localhost:9876")


def test_name_servers_of_the_environment_are_named_with_their_variable(tmp_path: Path) -> None:
    result = run("topicList", tmp_path, ROCKETMQ_NAMESRV=NOWHERE, NAMESRV_ADDR="other:1")
    says(result, f"{NOWHERE}")
    assert "(the address is that of the environment variable ROCKETMQ_NAMESRV)" in result.stderr
    assert "environment" not in run("topicList", tmp_path, "-n", NOWHERE).stderr


@pytest.mark.parametrize("command", OF_A_TOPIC)
def test_an_unknown_topic_is_named(cluster: GoldenCluster, command: str, tmp_path: Path) -> None:
    """If a command names a group as well, the unknown group may be reported first."""
    result = cluster.admin(shlex.join(complete(command, cluster.broker, tmp_path, "NoSuchTopic")))
    says(result, "NoSuchTopic")
    assert result.stdout == ""


@pytest.mark.parametrize("option", ["-b", "-n"])
@pytest.mark.parametrize("address", ["localhost", "localhost:99999", ":10911"])
def test_an_invalid_address_is_a_wrong_command_line(cluster: GoldenCluster, option: str, address: str) -> None:
    command = f"brokerStatus -b {cluster.broker} {option} {address}"
    says(cluster.admin(command), f"'{address}' is no address: write host:port", code=2)


def test_every_time_has_one_type() -> None:
    times = [one for command in admin.commands.values() for one in command.params if (one.name or "").endswith("_ms")]
    assert len([one for one in times if isinstance(one.type, TimeType)]) == len(times) - 1, "all but a timeout"


def test_a_missing_permission_is_named(cluster: GoldenCluster) -> None:
    """A topic without read permission, one without write permission, and settings that cannot be changed."""
    cluster.done("updateTopicPerm -c DefaultCluster -t GDelay -p 2")
    for command in ("printMsg -t GDelay", "consumeMessage -t GDelay"):
        assert cluster.admin(command).stdout == "", "it has no queue to read"
    says(cluster.admin("queryMsgByOffset -t GDelay -b broker-a -i 0 -o 0"), "GDelay")
    says(cluster.admin("printMsgByQueue -t GDelay -a broker-a -i 0"), "GDelay")
    cluster.done("updateTopicPerm -c DefaultCluster -t GDelay -p 4")
    says(cluster.admin("sendMessage -t GDelay -p x"), "GDelay")
    says(cluster.admin("checkMsgSendRT -t GDelay -a 1"), "GDelay")
    says(cluster.admin("updateBrokerConfig -c DefaultCluster -k listenPort -v 1"), "listenPort")
    says(cluster.admin("updateNamesrvConfig -k listenPort -v 1"), "black list")
    says(cluster.admin("updateTopic -c DefaultCluster -t TBW102"), "TBW102")
    says(cluster.admin("deleteTopic -c DefaultCluster -t SCHEDULE_TOPIC_XXXX --yes"), "SCHEDULE_TOPIC_XXXX")
