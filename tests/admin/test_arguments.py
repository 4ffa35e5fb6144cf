"""Arguments of commands from outside, and what an account may run."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from rucola.acl.requirements import ResourceType
from rucola.admin.commands import CATALOGUE, Command, Target
from rucola.admin.commands.arguments import InvalidArgument, command_line, is_local, parse, schema
from rucola.admin.commands.authorization import (
    RESOURCES,
    Account,
    Forbidden,
    Role,
    authorize,
    parse_grants,
    required_role,
)
from rucola.cli.admin import admin
from rucola.errors import ConfigError


@pytest.mark.parametrize(
    ("command", "given", "arguments"),
    [
        ("topicStatus", {"topic": " Orders ", "x": ""}, {"topic": "Orders"}),
        ("updateTopic", {"topic": "T", "cluster": "c", "read_queue_nums": 4, "order": True},
         {"target": Target(None, "c"), "topic": "T", "read_queue_nums": 4, "order": True}),
        ("resetOffsetByTime", {"group": "g", "topic": "T", "timestamp_ms": "now", "force": "off"},
         {"group": "g", "topic": "T", "timestamp_ms": -1, "force": False}),
        ("resetOffsetByTime", {"group": "g", "topic": "T", "timestamp_ms": "2013-01-01T00:00:00Z"},
         {"group": "g", "topic": "T", "timestamp_ms": 1_356_998_400_000}),
        ("cleanExpiredCQ", {"address": "h:1"}, {"target": Target("h:1", None)}),
        ("deleteExpiredCommitLog", {}, {"target": Target(None, None)}),
    ],
)  # fmt: skip
def test_texts_become_typed_arguments(command: str, given: dict[str, object], arguments: dict[str, Any]) -> None:
    parsed = parse(CATALOGUE[command], given)
    assert {name: value for name, value in parsed.items() if name in arguments} == arguments


@pytest.mark.parametrize(
    ("command", "given", "subject"),
    [
        ("topicStatus", {}, "topic"),
        ("topicStatus", {"topic": "T", "tpic": "T"}, "tpic"),
        ("updateTopic", {"topic": "T"}, "cluster"),
        ("updateTopic", {"topic": "T", "address": "h:1", "cluster": "c"}, "cluster"),
        ("updateTopic", {"topic": "T", "address": "h"}, "address"),
        ("updateTopic", {"topic": "T", "cluster": "c", "perm": "5"}, "perm"),
        ("updateTopic", {"topic": "T", "cluster": "c", "read_queue_nums": "0"}, "read_queue_nums"),
        ("updateTopic", {"topic": "T", "cluster": "c", "read_queue_nums": "1.5"}, "read_queue_nums"),
        ("updateTopic", {"topic": "T", "cluster": "c", "order": "perhaps"}, "order"),
        ("startMonitoring", {"interval_s": "nan"}, "interval_s"),
        ("resetOffsetByTime", {"group": "g", "topic": "T", "timestamp_ms": "noon"}, "timestamp_ms"),
    ],
)
def test_a_refusal_names_the_argument(command: str, given: dict[str, object], subject: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(CATALOGUE[command], given)
    assert refused.value.subject == subject


EXAMPLES = {"integer": "7", "number": "7.5", "boolean": "true"}


def has_secret(one: Command) -> bool:
    return any(argument.option.prompt for argument in one.arguments())


@pytest.mark.parametrize("name", [name for name, one in CATALOGUE.items() if not is_local(one) and not has_secret(one)])
def test_the_command_line_of_arguments_has_the_same_arguments(name: str) -> None:
    """Every argument of the schema is accepted, and click reads the line as `parse` read the values."""
    one = CATALOGUE[name]
    given = {}
    for key, described in schema(one)["properties"].items():
        text = described["enum"][0] if "enum" in described else EXAMPLES.get(described["type"], f"x {key}")
        option = next((each.option for each in one.arguments() if each.name == key), None)
        given[key] = {"address": "h:1", "time": "86400000", "time or end": "86400000"}.get(
            option.format if option else "", text
        )
    given.pop("address", None) if "cluster" in given else None
    parsed = parse(one, given)
    line = shlex.split(command_line(one, parsed))
    context = admin.commands[name].make_context(name, line[3:], resilient_parsing=True)
    for key, value in parsed.items():
        if isinstance(value, Target):
            assert (context.params["address"], context.params["cluster"]) == (value.address, value.cluster)
        else:
            assert context.params[key] == value


def test_a_command_line_has_no_secret() -> None:
    one = CATALOGUE["createUser"]
    line = command_line(one, parse(one, {"cluster": "c", "name": "ann", "password": "hidden"}))
    assert line == "rucola admin createUser -c c -u ann -p -"


def test_every_argument_with_a_topic_or_group_is_a_resource() -> None:
    """Else an account that may change one topic could name another there."""
    lists = {"topic_perms", "group_perms", "default_topic_perm", "default_group_perm"}  # of an account
    for one in CATALOGUE.values():
        if one.name == "queryMsgById":  # its messages are of any topic, so that it takes a grant for everything
            continue
        for argument in one.arguments():
            names = any(word in argument.option.flags.lower() for word in ("topic", "group"))
            is_text = argument.type is str and not argument.option.format and argument.name not in lists
            assert argument.name in RESOURCES or not (names and is_text), (one.name, argument.name)


@pytest.mark.parametrize(
    ("grants", "command", "arguments", "is_allowed"),
    [
        ("viewer", "topicStatus", {"topic": "T"}, True),
        ("viewer", "statsAll", {}, True),
        ("viewer", "updateTopic", {"topic": "T"}, False),
        ("operator", "updateTopic", {"topic": "T"}, True),
        ("operator", "updateBrokerConfig", {}, False),
        ("admin", "updateBrokerConfig", {}, True),
        ("viewer Topic:a-*", "topicStatus", {"topic": "a-1"}, True),
        ("viewer Topic:a-*", "topicStatus", {"topic": "b"}, False),
        ("viewer Topic:a-*", "statsAll", {}, False),
        ("viewer Topic:a-*", "statsAll", {"topic": None}, False),
        ("viewer, operator Topic:a", "resetOffsetByTime", {"topic": "a", "group": "g"}, False),
        ("operator Group:g, operator Topic:a", "resetOffsetByTime", {"topic": "a", "group": "g"}, True),
        ("viewer Group:g", "topicStatus", {"topic": "%DLQ%g"}, True),
        ("viewer Topic:%*", "topicStatus", {"topic": "%DLQ%g"}, False),
    ],
)
def test_an_account_runs_what_its_grants_allow(
    grants: str, command: str, arguments: dict[str, Any], is_allowed: bool
) -> None:
    account = Account("ann", parse_grants(grants))
    if is_allowed:
        authorize(account, CATALOGUE[command], arguments)
    else:
        with pytest.raises(Forbidden) as refused:
            authorize(account, CATALOGUE[command], arguments)
        assert refused.value.subject in (*arguments.values(), command)


def test_roles_are_ordered_by_risk() -> None:
    roles = {name: required_role(CATALOGUE[name]) for name in ("topicList", "sendMessage", "promote", "createUser")}
    assert list(roles.values()) == [Role.VIEWER, Role.OPERATOR, Role.ADMIN, Role.ADMIN]
    assert Account("ann", parse_grants("admin")).may(Role.VIEWER, ResourceType.TOPIC, "T")
    for text in ("chief", "", "viewer Topic"):
        with pytest.raises(ConfigError):
            parse_grants(text)
