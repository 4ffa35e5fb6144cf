"""docs/mqadmin.md says of each of mqadmin's commands whether it is there, as the code has it."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from rucola.cli.admin import admin

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "mqadmin.md"
MQADMIN = [
    "updateTopic",
    "deleteTopic",
    "updateSubGroup",
    "deleteSubGroup",
    "updateBrokerConfig",
    "updateTopicPerm",
    "topicRoute",
    "topicStatus",
    "topicClusterList",
    "brokerStatus",
    "queryMsgById",
    "queryMsgByKey",
    "queryMsgByUniqueKey",
    "queryMsgByOffset",
    "queryMsgTraceById",
    "printMsg",
    "printMsgByQueue",
    "sendMsgStatus",
    "brokerConsumeStats",
    "producerConnection",
    "consumerConnection",
    "consumerProgress",
    "consumerStatus",
    "cloneGroupOffset",
    "producer",
    "clusterList",
    "topicList",
    "updateKvConfig",
    "deleteKvConfig",
    "wipeWritePerm",
    "addWritePerm",
    "resetOffsetByTime",
    "skipAccumulatedMessage",
    "updateOrderConf",
    "cleanExpiredCQ",
    "deleteExpiredCommitLog",
    "cleanUnusedTopic",
    "startMonitoring",
    "statsAll",
    "allocateMQ",
    "checkMsgSendRT",
    "clusterRT",
    "getNamesrvConfig",
    "updateNamesrvConfig",
    "getBrokerConfig",
    "getConsumerConfig",
    "queryCq",
    "sendMessage",
    "consumeMessage",
    "updateAclConfig",
    "deleteAclConfig",
    "clusterAclConfigVersion",
    "updateGlobalWhiteAddr",
    "exportMetadata",
    "exportConfigs",
    "exportMetrics",
]
ASKS_FIRST = {
    "cloneGroupOffset", "deleteExpiredCommitLog", "deleteKvConfig", "deleteSubGroup", "deleteTopic",
    "redriveDlq", "resetOffset", "resetOffsetByTime", "skipAccumulatedMessage", "wipeWritePerm",
}  # fmt: skip


def tables() -> tuple[set[str], set[str], set[str]]:
    """mqadmin's commands that are there, the others that are there, and mqadmin's that are not."""
    there, rest = DOCUMENT.read_text(encoding="utf-8").split("these mqadmin does not have:")
    own, not_there = rest.split("these there are not:")
    return commands_of(there), commands_of(own), commands_of(not_there)


def commands_of(text: str) -> set[str]:
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_tables_are_the_code() -> None:
    there, own, not_there = tables()
    assert there | own == set(admin.commands)
    assert there & (own | not_there) == set()


def test_every_command_of_mqadmin_is_in_one_of_the_tables() -> None:
    there, _, not_there = tables()
    assert there | not_there == set(MQADMIN)
    assert f"Of the {len(MQADMIN)} commands" in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(admin.commands))
def test_every_command_has_examples_and_json(name: str) -> None:
    command = admin.commands[name]
    assert f"rucola admin {name}" in (command.help or "")
    options = {text for option in command.params if isinstance(option, click.Option) for text in option.opts}
    assert {"--json", "--namesrvAddr", "-n"} <= options
    assert ("--yes" in options) == (name in ASKS_FIRST)
    assert all(isinstance(option, click.Option) and (option.help or len(option.opts) > 1) for option in command.params)
