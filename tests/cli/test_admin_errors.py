"""Errors of every command of `rucola admin`: one line, an exit code, and no traceback."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rucola.cli.admin import admin
from rucola.cli.main import main
from rucola.cli.option_types import TimeType
from support.golden_cluster import GoldenCluster

NOWHERE = "127.0.0.1:1"
NO_MESSAGE = "7F00000100000001" + 16 * "0"  # an offsetMsgId with the address of this machine

ARGUMENTS = {
    "addWritePerm": "-b broker-a",
    "allocateMQ": "-t T -i a",
    "clusterAclConfigVersion": "-b {broker}",
    "createAcl": "-b {broker} -s User:u -r * -a All -d Allow",
    "createUser": "-b {broker} -u u -p p",
    "deleteAcl": "-b {broker} -s User:u --yes",
    "deleteAclConfig": "-b {broker} -a billing1 --yes",
    "deleteUser": "-b {broker} -u u --yes",
    "getAcl": "-b {broker} -s User:u",
    "getUser": "-b {broker} -u u",
    "listAcl": "-b {broker}",
    "listUser": "-b {broker}",
    "updateAcl": "-b {broker} -s User:u -r * -a All -d Allow",
    "updateAclConfig": "-b {broker} -a billing1 -s 12345678",
    "updateGlobalWhiteAddr": "-b {broker} -g 10.0.0.1 --yes",
    "updateUser": "-b {broker} -u u -s disable",
    "brokerConsumeStats": "-b {broker}",
    "brokerStatus": "-b {broker}",
    "checkMsgSendRT": "-t T -a 1",
    "cleanExpiredCQ": "-b {broker}",
    "cleanUnusedTopic": "-b {broker}",
    "cloneGroupOffset": "-s g -d h -t T --yes",
    "clusterList": "",
    "clusterRT": "-a 1",
    "consumeMessage": "-t T",
    "consumerConnection": "-g g",
    "consumerProgress": "-g g",
    "consumerStatus": "-g g",
    "doctor": "",
    "deleteExpiredCommitLog": "-b {broker} --yes",
    "deleteKvConfig": "-s n -k k --yes",
    "deleteSubGroup": "-b {broker} -g g --yes",
    "deleteTopic": "-c DefaultCluster -t T --yes",
    "demote": "-b {broker} --yes",
    "dlqList": "",
    "exportConfigs": "-c DefaultCluster",
    "exportDlq": "-g g -o {path}",
    "exportMetadata": "-b {broker}",
    "exportMetrics": "-c DefaultCluster",
    "getBrokerConfig": "-b {broker}",
    "getConsumerConfig": "-g g",
    "getNamesrvConfig": "",
    "haStatus": "",
    "printDlq": "-g g",
    "printMsg": "-t T",
    "printMsgByQueue": "-t T -a broker-a -i 0 -p true",
    "producer": "-b {broker}",
    "producerConnection": "-g g -t T",
    "promote": "-b {broker} --yes",
    "queryCq": "-t T -q 0 -i 0",
    "queryMsgById": f"-i {NO_MESSAGE}",
    "resumeCheckHalfMessage": f"-i {NO_MESSAGE}",
    "queryMsgByKey": "-t T -k k",
    "queryMsgByOffset": "-t T -b broker-a -i 0 -o 0",
    "queryMsgByUniqueKey": f"-t T -i {NO_MESSAGE}",
    "queryMsgTraceById": f"-i {NO_MESSAGE}",
    "redriveDlq": "-g g --yes",
    "resetOffset": "-g g -t T -b broker-a -q 0 -o 0 --yes",
    "resetOffsetByTime": "-g g -t T -s 0 --yes",
    "sendMessage": "-t T -p x",
    "sendMsgStatus": "-b broker-a -c 1",
    "skipAccumulatedMessage": "-g g -t T --yes",
    "startMonitoring": "--once",
    "statsAll": "",
    "safeToStop": "-b {broker}",
    "switchover": "-b {broker} --yes",
    "topicClusterList": "-t T",
    "topicList": "",
    "topicRoute": "-t T",
    "topicStatus": "-t T",
    "updateBrokerConfig": "-b {broker} -k maxMessageSize -v 1",
    "updateKvConfig": "-s n -k k -v v",
    "updateNamesrvConfig": "-k orderMessageEnable -v true",
    "updateOrderConf": "-t T -m get",
    "updateSubGroup": "-b {broker} -g g",
    "updateSubGroupList": "-b {broker} -f {list}",
    "updateTopic": "-b {broker} -t T",
    "updateTopicList": "-b {broker} -f {list}",
    "updateTopicPerm": "-b {broker} -t T -p 6",
    "wipeWritePerm": "-b broker-a --yes",
}
"""A complete command line for every command, with placeholders for a broker and a file."""

MAKES_THE_TOPIC = {"checkMsgSendRT", "sendMessage", "updateTopic"}
OF_A_TOPIC = sorted(
    name for name, arguments in ARGUMENTS.items() if "-t T" in arguments and name not in MAKES_THE_TOPIC
)


def run(command: str, path: Path, *more: str, **environment: str) -> Result:
    """Fill in an unreachable broker, and files in a directory."""
    listed = path / "list.json"
    listed.write_text('[{"topicName": "T", "groupName": "g"}]')
    arguments = ARGUMENTS[command].format(broker=NOWHERE, path=path / "unwritten", list=listed)
    return CliRunner().invoke(main, ["admin", command, *shlex.split(arguments), *more], env=environment)


def says(result: Result, what: str, code: int = 1) -> None:
    """Assert that a command failed with one line that has this text; with code 2 after its usage."""
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), "nothing else may get out"
    *_, last = result.stderr.splitlines()
    assert what in last
    assert "Traceback" not in result.output


def test_the_table_has_every_command() -> None:
    assert set(ARGUMENTS) == set(admin.commands)


@pytest.mark.parametrize("command", sorted(ARGUMENTS))
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_unreachable_servers_are_named(tmp_path: Path, command: str, more: tuple[str, ...]) -> None:
    result = run(command, tmp_path, *more, NAMESRV_ADDR=NOWHERE)
    says(result, NOWHERE)
    assert result.stdout == "" or command == "sendMsgStatus", "which tells of each message how it went"


@pytest.mark.parametrize("command", sorted(ARGUMENTS))
def test_the_default_name_server_is_that_of_clients(command: str) -> None:
    (option,) = [each for each in admin.commands[command].params if each.name == "namesrv_addr"]
    assert (option.envvar, option.default) == (("ROCKETMQ_NAMESRV", "NAMESRV_ADDR"), "localhost:9876")


def test_name_servers_of_the_environment_are_named_with_their_variable(tmp_path: Path) -> None:
    result = run("topicList", tmp_path, ROCKETMQ_NAMESRV=NOWHERE, NAMESRV_ADDR="other:1")
    says(result, f"{NOWHERE}")
    assert "(the address is that of the environment variable ROCKETMQ_NAMESRV)" in result.stderr
    assert "environment" not in run("topicList", tmp_path, "-n", NOWHERE).stderr


@pytest.mark.parametrize("command", OF_A_TOPIC)
def test_an_unknown_topic_is_named(cluster: GoldenCluster, command: str) -> None:
    """If a command names a group as well, the unknown group may be reported first."""
    arguments = ARGUMENTS[command].replace("-t T", "-t NoSuchTopic").format(broker=cluster.broker)
    result = cluster.admin(f"{command} {arguments}")
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
