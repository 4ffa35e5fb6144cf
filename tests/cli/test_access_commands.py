"""The commands about accounts, users and policies, against brokers with access control."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rucola.acl.credentials import CREDENTIALS_FILE_VARIABLE
from rucola.cli.main import main
from rucola.testing.rocketmq import RocketMQ
from support.access import ADMIN, make_home

FIRST = '{"username":"operator","password":"secret of the operator"}'
SECRET = "a secret of billing"


class Commands:
    """`rucola admin` with the operator's keys, at one broker."""

    def __init__(self, rocketmq: RocketMQ, tools: Path) -> None:
        self.rocketmq = rocketmq
        self._tools = str(tools)

    def run(self, name: str, *options: str, at: str = "-b", stdin: str | None = None) -> Result:
        where = ["-b", self.rocketmq.broker] if at == "-b" else ["-c", "DefaultCluster"]
        arguments = ["admin", name, "-n", self.rocketmq.namesrv, "--credentials", self._tools, *where, *options]
        result = CliRunner().invoke(main, arguments, input=stdin)
        assert SECRET not in result.output
        assert CREDENTIALS_FILE_VARIABLE not in os.environ
        return result

    def succeed(self, name: str, *options: str, at: str = "-b", stdin: str | None = None) -> str:
        result = self.run(name, *options, at=at, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.output

    def read(self, name: str, *options: str) -> Any:
        return json.loads(self.succeed(name, *options, "--json"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    path = tmp_path_factory.mktemp("accounts")
    home = make_home(path / "home")
    with RocketMQ(path, {"aclEnable": True, "rocketmqHome": str(home)}, ADMIN) as rocketmq:
        yield Commands(rocketmq, home / "conf" / "tools.yml")


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    path = tmp_path_factory.mktemp("users")
    home = make_home(path / "home")
    settings = {"authenticationEnabled": True, "authorizationEnabled": True, "initAuthenticationUser": FIRST}
    with RocketMQ(path, settings, ADMIN) as rocketmq:
        yield Commands(rocketmq, home / "conf" / "tools.yml")


def test_an_account_is_created_shown_and_deleted(plain: Commands) -> None:
    (before,) = plain.read("clusterAclConfigVersion")
    options = ("-a", "billing1", "-t", "Orders=SUB", "-g", "billing=SUB", "-w", "10.0.0.1")
    shown = plain.succeed("updateAclConfig", *options, "-s", "-", at="-c", stdin=f"{SECRET}\n")
    assert "create or update plain access config to 127.0.0.1" in shown
    (after,) = plain.read("clusterAclConfigVersion")
    assert after["version"] == before["version"] + 1
    assert after["aclFilePath"].endswith("conf/plain_acl.yml")
    assert SECRET in Path(after["aclFilePath"]).read_text()
    assert "plain_acl.yml" in plain.succeed("clusterAclConfigVersion", at="-c")
    assert "success" in plain.succeed("deleteAclConfig", "-a", "billing1", "--yes")
    assert SECRET not in Path(after["aclFilePath"]).read_text()


def test_a_destructive_command_asks(plain: Commands) -> None:
    assert plain.run("deleteAclConfig", "-a", "writer1", stdin="n\n").exit_code == 1
    assert "success" in plain.succeed("deleteAclConfig", "-a", "writer1", stdin="y\n")


def test_errors_of_the_broker_are_shown(plain: Commands) -> None:
    result = plain.run("deleteAclConfig", "-a", "operator", "--yes")
    assert result.exit_code == 1
    assert "no admin account" in result.output
    result = plain.run("createUser", "-u", "u", "-p", "p")
    assert "authenticationEnabled=true enables them" in result.output


def test_white_addresses_are_replaced(plain: Commands) -> None:
    shown = plain.succeed("updateGlobalWhiteAddr", "-g", "10.10.103.*,192.168.0.1", "--yes")
    assert "update global white remote addresses" in shown
    result = plain.run("updateGlobalWhiteAddr", "-g", "everywhere", "--yes")
    assert "no pattern of addresses" in result.output


def test_without_credentials_a_command_fails_with_the_reason(plain: Commands) -> None:
    result = CliRunner().invoke(
        main, ["admin", "getBrokerConfig", "-n", plain.rocketmq.namesrv, "-b", plain.rocketmq.broker]
    )
    assert result.exit_code == 1
    assert "no access key" in result.output


def test_users_and_policies(policies: Commands) -> None:
    policies.succeed("createUser", "-u", "billing", "-p", "-", at="-c", stdin=f"{SECRET}\n")
    policies.succeed("createAcl", "-s", "User:billing", "-r", "Topic:Orders,Group:billing", "-a", "Sub", "-d", "Allow")
    policies.succeed(
        "updateAcl", "-s", "User:billing", "-r", "Topic:Orders", "-a", "Sub,Get", "-d", "Allow", "-i", "10.0.0.0/8"
    )
    assert policies.read("getAcl", "-s", "User:billing") == [
        {
            "subject": "User:billing", "policyType": "Custom", "resource": "Group:billing", "actions": ["Sub"],
            "sourceIps": [], "decision": "Allow",
        },
        {
            "subject": "User:billing", "policyType": "Custom", "resource": "Topic:Orders", "actions": ["Sub", "Get"],
            "sourceIps": ["10.0.0.0/8"], "decision": "Allow",
        },
    ]  # fmt: skip
    assert [one["resource"] for one in policies.read("listAcl", "-r", "Group")] == ["Group:billing"]
    assert "Topic:Orders" in policies.succeed("listAcl")
    policies.succeed("updateUser", "-u", "billing", "-s", "disable")
    assert policies.read("getUser", "-u", "billing") == [
        {"username": "billing", "userType": "Normal", "userStatus": "disable"}
    ]
    assert [one["username"] for one in policies.read("listUser")] == ["operator", "billing"]
    assert "#UserName" in policies.succeed("listUser", "-f", "bill")
    policies.succeed("deleteAcl", "-s", "User:billing", "-r", "Topic:Orders", "--yes")
    policies.succeed("deleteUser", "-u", "billing", "--yes")
    assert policies.read("listUser", "-f", "billing") == []


def test_wrong_command_lines_are_refused(policies: Commands) -> None:
    assert policies.run("updateUser", "-u", "billing").exit_code == 2
    result = policies.run("createAcl", "-s", "User:operator", "-r", "Orders", "-a", "Sub", "-d", "Allow")
    assert result.exit_code == 1
    assert "expected Topic:NAME" in result.output
